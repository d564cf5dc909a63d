"""Counts what was appended to each topic, from the ends of its logs: an append itself counts nothing.

The end offset of a log says how many records it got, and the sizes of its newest segments how many bytes. What is
removed at the other end changes neither. Both are compared with the last scrape's.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple

from ottla.core.ids import TopicPartition
from ottla.replication.partition import Partition
from ottla.storage.log.partition_log import PartitionLog


class _Seen(NamedTuple):
    """Holds the end of a log at the last scrape."""

    leader_epoch: int  # NOT_LED: as a follower
    end_offset: int
    base_offset: int  # of the active segment
    size_bytes: int


NOT_LED = -1


class TopicTraffic:
    """The traffic of a topic on this broker since its start."""

    __slots__ = ("bytes_in", "messages_in", "replication_bytes_in")

    def __init__(self) -> None:
        self.messages_in = self.bytes_in = self.replication_bytes_in = 0


class Traffic:
    """The counts of all topics. Those of a deleted topic are kept in `removed`, so that the sum never falls."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicTraffic] = {}
        self.removed = TopicTraffic()
        self._seen: dict[Partition, _Seen] = {}

    def look_at(self, partition: Partition) -> None:
        """Count what a replica has got since the last scrape; at the first sight what the term has brought."""
        log, state = partition.log, partition.leader_state
        active = log.active
        now = _Seen(NOT_LED if state is None else state.epoch, log.end_offset, active.base_offset, active.size_bytes)
        before = self._seen.get(partition)
        if before is not None and before == now:
            return
        self._seen[partition] = now
        name = partition.topic_partition.topic
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = TopicTraffic()
        if before is not None:
            grown_bytes = _grown_bytes(log, before)
        else:  # all of a log that was empty when the term began
            grown_bytes = log.size_bytes if state is not None and state.term_start == 0 else 0
        if state is None:
            topic.replication_bytes_in += grown_bytes
            return
        term_start = state.term_start
        first = term_start if before is None or before.leader_epoch != state.epoch else before.end_offset
        topic.messages_in += max(0, now.end_offset - max(first, 0))
        topic.bytes_in += grown_bytes

    def forget_removed(self, partitions: Mapping[TopicPartition, Partition], topics: Container[str]) -> None:
        """Keep nothing of replicas and topics that are gone."""
        if len(self._seen) > len(partitions):
            present = set(partitions.values())
            self._seen = {partition: seen for partition, seen in self._seen.items() if partition in present}
        for name in [name for name in self.topics if name not in topics]:
            gone = self.topics.pop(name)
            self.removed.messages_in += gone.messages_in
            self.removed.bytes_in += gone.bytes_in
            self.removed.replication_bytes_in += gone.replication_bytes_in


def _grown_bytes(log: PartitionLog, before: _Seen) -> int:
    """Return the bytes after the end that a log had: of its last segment then, and of those that followed."""
    active = log.active
    if active.base_offset == before.base_offset:
        return max(0, active.size_bytes - before.size_bytes)
    grown = 0
    for segment in reversed(log.segments):
        if segment.base_offset < before.base_offset:
            break
        grown += segment.size_bytes - (before.size_bytes if segment.base_offset == before.base_offset else 0)
    return max(0, grown)
