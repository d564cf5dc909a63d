"""All partitions of this broker: they follow the cluster's picture, and handlers find them here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ottla.coordination.view import ClusterView, PartitionView, TopicView
from ottla.core.clock import Clock
from ottla.core.errors import NotLeaderOrFollower, StorageError, UnknownTopicOrPartition
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.replication.commit import GroupCommit
from ottla.replication.partition import Partition
from ottla.storage.config import LogConfig, topic_config
from ottla.storage.directory import LogDirectory

log = logging.getLogger(__name__)


class Replicas:
    """The partitions that lie on this broker's disk."""

    def __init__(self, directory: LogDirectory, *, node_id: int, defaults: LogConfig, clock: Clock) -> None:
        self.directory = directory
        self.defaults = defaults
        self.partitions: dict[TopicPartition, Partition] = {}
        self._node_id = node_id
        self._clock = clock
        self._view = ClusterView()
        self._on_stop: dict[Callable[[], None], None] = {}
        self._offline: StorageError | None = None
        self._commit = GroupCommit(str(directory.path), on_failure=self._directory_failed)

    # ---- Finding -----------------------------------------------------------------------------------------------

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """The replica on this broker. Raises UnknownTopicOrPartition, NotLeaderOrFollower or StorageError."""
        found = self.partitions.get(topic_partition)
        if found is not None:
            return found
        if self._view.partition(*topic_partition) is None:
            raise UnknownTopicOrPartition
        if self._offline is not None:
            raise self._offline
        raise NotLeaderOrFollower

    @property
    def offline(self) -> bool:
        """Whether the disk has refused."""
        return self._offline is not None

    # ---- Following the cluster ---------------------------------------------------------------------------------

    def follow(self, old: ClusterView, new: ClusterView) -> None:
        """Create, change and delete replicas as the cluster has decided. A subscriber of `Cluster`."""
        self._view = new
        if old.topics is new.topics and old.configs is new.configs:
            return
        for name in old.topics.keys() - new.topics.keys():
            self._drop(old.topics[name])
        for name, topic in new.topics.items():
            before = old.topics.get(name)
            if before is topic:
                continue
            if before is not None and before.topic_id != topic.topic_id:
                self._drop(before)
            self._apply(topic)

    def reconfigure(self, defaults: LogConfig) -> None:
        """The broker's own defaults have changed: every log hears of it."""
        self.defaults = defaults
        for topic in self._view.topics.values():
            config = topic_config(defaults, topic.config)
            for view in topic.partitions:
                if (partition := self.partitions.get(TopicPartition(topic.name, view.index))) is not None:
                    partition.log.reconfigure(config)

    def _apply(self, topic: TopicView) -> None:
        config = topic_config(self.defaults, topic.config)
        for view in topic.partitions:
            if self._node_id not in view.replicas:
                continue
            topic_partition = TopicPartition(topic.name, view.index)
            partition = self.partitions.get(topic_partition)
            if partition is None:
                self._open(topic_partition, topic, view, config)
            else:
                partition.log.reconfigure(config)
                partition.apply(view)

    def _open(self, topic_partition: TopicPartition, topic: TopicView, view: PartitionView, config: LogConfig) -> None:
        try:
            found = self.directory.logs.get(topic_partition)
            if found is not None and found.topic_id not in {NO_TOPIC_ID, topic.topic_id}:
                log.warning("%s on disk belongs to a deleted topic of the same name; it is removed", topic_partition)
                self.directory.delete_log(topic_partition)
                found = None
            if found is None or found.topic_id == NO_TOPIC_ID:  # a damaged partition.metadata is written anew
                found = self.directory.create_log(topic_partition, topic.topic_id, config)
        except OSError as error:
            self._directory_failed(StorageError(str(error)))
            return
        found.reconfigure(config)
        self.partitions[topic_partition] = Partition(found, view, node_id=self._node_id, commit=self._commit)

    def _drop(self, topic: TopicView) -> None:
        for view in topic.partitions:
            topic_partition = TopicPartition(topic.name, view.index)
            partition = self.partitions.pop(topic_partition, None)
            if partition is not None:
                partition.remove()
                self.directory.delete_log(topic_partition)

    def report_strays(self) -> None:
        """Logs on disk whose topic the cluster does not know are left alone, and named once."""
        strays = [
            str(topic_partition) for topic_partition in self.directory.logs if topic_partition not in self.partitions
        ]
        if strays:
            log.warning("logs that belong to no topic of this cluster are left as they are: %s", ", ".join(strays))

    # ---- Trouble and the end -----------------------------------------------------------------------------------

    def _directory_failed(self, error: StorageError) -> None:
        self._offline = error
        log.error("log directory %s is offline until a restart: %s", self.directory.path, error)
        for partition in self.partitions.values():
            partition.fail_flush(error)

    def on_stop(self, callback: Callable[[], None]) -> None:
        """Call back when the broker stops, so that long polls end at once."""
        self._on_stop[callback] = None

    def forget_stop(self, callback: Callable[[], None]) -> None:
        """The reverse of `on_stop`."""
        self._on_stop.pop(callback, None)

    def wake_all(self) -> None:
        """End every long poll."""
        for callback in tuple(self._on_stop):
            callback()

    async def close(self) -> None:
        """Flush everything and leave the directory as a clean stop leaves it."""
        await self._commit.close()
        if self._offline is None:
            await asyncio.to_thread(self.directory.close)
