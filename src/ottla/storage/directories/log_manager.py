"""Manages all log directories of a broker: which can be used, where a partition is, where a new one is created.

A directory that cannot be used at the start, or fails later, is offline until a restart; the others go on. A partition
of an offline directory is not rebuilt elsewhere: it would be empty. A new partition goes where the fewest are, as in
Kafka.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple, Self

from ottla.core.clock import Clock
from ottla.core.errors import StorageError
from ottla.core.files import FileSystem
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.core.runtime import new_uuid
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

_PREFERRED_MAX = 100_000
"""A client may name any number of partitions that do not exist; the oldest are forgotten."""


class DuplicateLog(Exception):
    """One partition is in two directories, and it is unknown which of the two is right."""


class Unusable(NamedTuple):
    """A directory that could not be opened."""

    path: PurePath
    error: OSError | StorageError


class LogManager:
    """The directories of `log.dirs`, in their order. Made by `open`; all of it is for one thread."""

    def __init__(self, paths: Sequence[PurePath]) -> None:
        self.paths = tuple(paths)
        self.opened: tuple[LogDirectory, ...] = ()  # those that were well at the start
        self.unusable: tuple[Unusable, ...] = ()
        self.cordoned: frozenset[PurePath] = frozenset()  # they get no new logs while there are others
        self._preferred: dict[TopicPartition, PurePath] = {}  # where logs that do not exist yet are to be created

    @classmethod
    def open(
        cls,
        files: FileSystem,
        paths: Sequence[PurePath],
        clock: Clock,
        config: LogConfig,
        *,
        node_id: int,
        cluster_id: str,
        topic_overrides: Mapping[str, Mapping[str, str]] | None = None,
        new_id: Callable[[], uuid.UUID] = new_uuid,
        threads: int = 1,
    ) -> Self:
        """Open each. One that the system refuses is unusable; a foreign or locked one, or a duplicate log, stops all.

        Raises DirectoryInUse, ForeignDirectory, DuplicateLog; what was opened by then is closed again.
        """
        self = cls(paths)
        try:
            for path in paths:
                try:
                    directory = LogDirectory.open(
                        files,
                        path,
                        clock,
                        config,
                        node_id=node_id,
                        cluster_id=cluster_id,
                        topic_overrides=topic_overrides,
                        new_id=new_id,
                        threads=threads,
                        other_paths=[each for each in paths if each != path],
                    )
                except (OSError, StorageError) as error:
                    self.unusable += (Unusable(path, error),)
                else:
                    self.opened += (directory,)
            if any(directory.replaced or directory.future_logs for directory in self.opened):
                from ottla.storage.directories.log_replacement import complete_replacements, remove_stale_copies

                complete_replacements(self.opened)
                remove_stale_copies(self.opened)
            self._forget_moved_logs()
            self._check_duplicates()
        except BaseException:
            self.close()
            raise
        return self

    def _forget_moved_logs(self) -> None:
        """Count a log as lost no more if another directory has it: the checkpoint files are older than its move.

        One that lacks records below the high watermark of those files was created again, and is not a copy.
        """
        for directory in self.opened:
            for topic_partition, lost in tuple(directory.lost_logs.items()):
                for other in self.holding(topic_partition):
                    log = other.logs[topic_partition]
                    if log.topic_id == lost.topic_id and log.end_offset >= lost.high_watermark:
                        directory.lost_logs.pop(topic_partition, None)

    def _check_duplicates(self) -> None:
        """Raise DuplicateLog if a log is in two directories.

        Two topic ids are two topics: the cluster knows which is there.
        """
        if len(self.opened) == 1:
            return
        seen: dict[TopicPartition, list[PartitionLog]] = {}
        for directory in self.opened:
            for topic_partition, log in directory.logs.items():
                for other in seen.setdefault(topic_partition, []):
                    if log.topic_id == other.topic_id or NO_TOPIC_ID in {log.topic_id, other.topic_id}:
                        raise DuplicateLog(
                            f"{topic_partition} is in two log directories, {other.directory} and {log.directory}: "
                            "move one of the two away"
                        )
                seen[topic_partition].append(log)

    # ---- Listing

    @property
    def online(self) -> list[LogDirectory]:
        """Return the directories that are not offline."""
        return [directory for directory in self.opened if directory.health.failure is None]

    @property
    def offline(self) -> dict[PurePath, str]:
        """Those that cannot be used, since the start or since a failure, and why."""
        failed = {
            directory.path: directory.health.failure
            for directory in self.opened
            if directory.health.failure is not None
        }
        return {unusable.path: str(unusable.error) for unusable in self.unusable} | failed

    def logs(self) -> Iterator[tuple[LogDirectory, PartitionLog]]:
        """Yield every log, with where it is."""
        for directory in self.opened:
            for log in list(directory.logs.values()):
                yield directory, log

    # ---- Placement

    def cordon(self, names: Sequence[str]) -> None:
        """Create no more logs in these directories; `*` names all."""
        if "*" in names:
            self.cordoned = frozenset(self.paths)
        else:
            self.cordoned = frozenset(Path(name).expanduser().absolute() for name in names)

    @property
    def is_cordoned(self) -> bool:
        """Whether there is no directory for new logs. The controller places none here then."""
        return self.cordoned.issuperset(self.paths)

    def holding(self, topic_partition: TopicPartition) -> list[LogDirectory]:
        """List the directories with a log of this name; of deleted topics there may be more than one."""
        return [directory for directory in self.opened if topic_partition in directory.logs]

    def create_log(
        self, topic_partition: TopicPartition, topic_id: uuid.UUID, config: LogConfig
    ) -> tuple[LogDirectory, PartitionLog]:
        """Create a log in the directory with the fewest logs that takes it. Raises StorageError where none does.

        If a directory was chosen for it (`prefer`), the log is created there.
        """
        refusal = StorageError("all log directories are offline")
        online, preferred = self.online, self._preferred.get(topic_partition)
        if preferred not in [log_directory.path for log_directory in online]:
            preferred = None
        by_load = sorted(online, key=lambda each: len(each.logs) + len(each.future_logs))
        for directory in sorted(by_load, key=lambda each: each.path in self.cordoned):
            if preferred is None or directory.path == preferred:
                try:
                    created = directory.create_log(topic_partition, topic_id, config)
                except StorageError as error:
                    refusal = error
                else:
                    self._preferred.pop(topic_partition, None)
                    return directory, created
        raise refusal

    def prefer(self, topic_partition: TopicPartition, directory: LogDirectory) -> None:
        """Create the log of a partition in this directory, if it comes to this broker later in this run."""
        self._preferred.pop(topic_partition, None)
        if len(self._preferred) >= _PREFERRED_MAX:
            del self._preferred[next(iter(self._preferred))]
        self._preferred[topic_partition] = directory.path

    def future_logs(self) -> Iterator[tuple[LogDirectory, PartitionLog]]:
        """Yield every copy that will replace a log of another directory, with where it is."""
        for directory in self.opened:
            for log in list(directory.future_logs.values()):
                yield directory, log

    def with_future_log(self, topic_partition: TopicPartition) -> LogDirectory | None:
        """Return the directory that has a copy of a log of another one."""
        return next((directory for directory in self.opened if topic_partition in directory.future_logs), None)

    def close(self, *, broker_epoch: int = -1) -> None:
        """Stop: each directory is left as a clean stop leaves it, if it is well."""
        for directory in self.opened:
            directory.close(broker_epoch=broker_epoch)
