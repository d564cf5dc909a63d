"""Begins, cancels and continues the moves of replicas between the log directories of this broker (KIP-113).

`alter_log_dirs.py` copies them; it is imported with the first move.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.core.errors import LogDirNotFound, StorageError
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.replication.group_commit import GroupCommit
from ottla.replication.partition import Partition
from ottla.replication.replication_context import ReplicationContext
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.directories.log_manager import LogManager

if TYPE_CHECKING:
    from ottla.replication.alter_log_dirs import AlterLogDirs, LogDirMove

log = logging.getLogger(__name__)


class LogDirMoves:
    """The moves between log directories, as an operator asks for them or as the last run had begun them."""

    def __init__(
        self,
        directories: LogManager,
        partitions: Mapping[TopicPartition, Partition],
        commits: Mapping[LogDirectory, GroupCommit],
        context: ReplicationContext,
    ) -> None:
        self._directories, self._partitions = directories, partitions
        self._commits, self._context = commits, context
        self._copies: AlterLogDirs | None = None  # until the first move
        self._may_continue = False

    def find(self, topic_partition: TopicPartition) -> LogDirMove | None:
        """Return the move of a replica, if one is under way."""
        return None if self._copies is None else self._copies.moves.get(topic_partition)

    def online_directory(self, path: str) -> LogDirectory:
        """Return the log directory with this path. Raises LogDirNotFound or StorageError."""
        if path not in [str(each) for each in self._directories.paths]:
            raise LogDirNotFound(f"Log dir {path} is not found in the config.")
        log_directory = next((directory for directory in self._directories.online if str(directory.path) == path), None)
        if log_directory is None:
            raise StorageError(f"Log directory {path} is offline")
        return log_directory

    def _directory_of(self, partition: Partition) -> LogDirectory:
        for directory in self._directories.opened:
            if directory.logs.get(partition.topic_partition) is partition.log:
                return directory
        raise StorageError(f"the log of {partition.topic_partition} is in no log directory")

    def cancel_elsewhere(self, topic_partition: TopicPartition, target: LogDirectory) -> None:
        """Cancel a move to another directory than this one. Raises StorageError."""
        move = self.find(topic_partition)
        if move is not None and move.target is not target and self._copies is not None:
            self._copies.cancel(topic_partition)

    def begin(self, partition: Partition, target: LogDirectory) -> None:
        """Move the replica, unless it is there or on its way already. Raises StorageError."""
        topic_partition = partition.topic_partition
        if self.find(topic_partition) is not None:
            return
        source, left = self._directory_of(partition), self._directories.with_future_log(topic_partition)
        if left is not None and left is not target:
            left.delete_future_log(topic_partition)  # of a move whose cancellation the disk refused
        if source is target:
            return
        if self._directories.offline:
            raise StorageError("no copy is made while a log directory is offline: it may have one already")
        if left is target:
            self._continue(partition, source)
            return
        target.create_future_log(partition.log)
        self._start(partition, source, target)

    def _start(self, partition: Partition, source: LogDirectory, target: LogDirectory) -> None:
        if self._copies is None:
            from ottla.replication.alter_log_dirs import AlterLogDirs

            self._copies = AlterLogDirs(self._commits, self._context)
        self._copies.start(partition, source, target)

    def continue_all(self) -> None:
        """Continue the moves that the last run had begun, and from now on those of replicas that are opened later."""
        self._may_continue = True
        for _, future in self._directories.future_logs():
            partition = self._partitions.get(future.topic_partition)
            if partition is not None:
                self._continue(partition, self._directory_of(partition))

    def partition_opened(self, partition: Partition, directory: LogDirectory) -> None:
        """Continue the move of a replica that is in service now. Never raises."""
        if self._may_continue:
            self._continue(partition, directory)

    def _continue(self, partition: Partition, source: LogDirectory) -> None:
        """Continue the move that the last run had begun. Never raises."""
        topic_partition = partition.topic_partition
        target = self._directories.with_future_log(topic_partition)
        if target is None or target.health.failure is not None or self.find(topic_partition) is not None:
            return
        future = target.future_logs[topic_partition]
        try:
            if future.topic_id not in (partition.log.topic_id, NO_TOPIC_ID):
                target.delete_future_log(topic_partition)
                return
            if future.topic_id != partition.log.topic_id:
                target.corrupt_future_logs.add(topic_partition)
            target.truncate_to_certain(topic_partition)
        except StorageError as error:
            log.warning("the move of %s to %s is not continued: %s", topic_partition, target.path, error)
        else:
            self._start(partition, source, target)

    def stop(self, topic_partition: TopicPartition) -> None:
        """Stop a move, if there is one. The copy stays."""
        if self._copies is not None:
            self._copies.stop(topic_partition)

    async def close(self) -> None:
        """Stop all moves: the next start continues them."""
        if self._copies is not None:
            await self._copies.close()
