"""Holds a group's committed offsets and their pending writes, and finds expired offsets (KIP-211).

Pure: the coordinator writes and reports the results. Pending writes are counted, because a deletion in the meantime
must cover them: its tombstone follows the commit in the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

from ottla.client.consumer_protocol import CONSUMER
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.groups.events import State
from ottla.groups.group import Group

NO_LEADER_EPOCH = -1
NEVER_MS = -1
"""As `expires_wall_ms`: offsets.retention.minutes applies."""


class CommittedOffset(NamedTuple):
    """Holds the committed position of a group in one partition."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    committed_wall_ms: int = -1
    expires_wall_ms: int = NEVER_MS  # set by clients of OffsetCommit v2 to v4 alone
    topic_id: UUID = NO_TOPIC_ID


Change = Mapping[TopicPartition, CommittedOffset | None]
"""New offsets; None deletes one."""


class GroupOffsets:
    """Holds the offsets of one group."""

    __slots__ = ("_committed", "_in_flight")

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, CommittedOffset] = {}
        self._in_flight: Counter[TopicPartition] = Counter()

    def __len__(self) -> int:
        return len(self._committed)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._committed)

    def get(self, partition: TopicPartition) -> CommittedOffset | None:
        """Return the durable offset: a consumer must not continue from one that may still be lost."""
        return self._committed.get(partition)

    def items(self) -> Iterable[tuple[TopicPartition, CommittedOffset]]:
        """Return all durable offsets."""
        return self._committed.items()

    def begin(self, partitions: Collection[TopicPartition]) -> None:
        """Note that a write of these partitions is pending."""
        self._in_flight.update(partitions)

    def finish(self, change: Change, *, stored: bool) -> None:
        """Complete a pending write. Called in the order of the log, so that the last one wins."""
        for partition in change:
            assert self._in_flight[partition] > 0, f"{partition} has no pending write"
            self._in_flight[partition] -= 1
            if not self._in_flight[partition]:
                del self._in_flight[partition]
        if stored:
            self.apply(change)

    def apply(self, change: Change) -> None:
        """Apply a durable change."""
        for partition, committed in change.items():
            if committed is None:
                self._committed.pop(partition, None)
            else:
                self._committed[partition] = committed

    def all_partitions(self) -> set[TopicPartition]:
        """Return the partitions with a durable or a pending offset."""
        return self._committed.keys() | self._in_flight.keys()

    def is_stable(self, partition: TopicPartition) -> bool:
        """Return whether no write of the partition is pending."""
        return partition not in self._in_flight

    @property
    def all_stable(self) -> bool:
        """Return whether no write is pending."""
        return not self._in_flight


def expired(offsets: GroupOffsets, group: Group, *, now_wall_ms: int, retention_ms: int) -> list[TopicPartition]:
    """Find the expired offsets.

    A group with a protocol keeps them while it has members, and `retention_ms` longer; but of a stable consumer group
    those of topics that no member subscribes to expire `retention_ms` after their commit. Without a protocol (consumers
    that assign partitions to themselves) each expires `retention_ms` after its commit.
    """
    alone = group.protocol_type is None
    empty = group.state is State.EMPTY
    stable_consumers = group.state is State.STABLE and group.protocol_type == CONSUMER and group.topics is not None
    if not (alone or empty or stable_consumers):
        return []

    def is_expired(committed: CommittedOffset) -> bool:
        if committed.expires_wall_ms != NEVER_MS:
            return now_wall_ms >= committed.expires_wall_ms
        since_group = empty and not alone and group.state_since_wall_ms >= 0
        # An administrator may set an offset after the group became empty. It gets the full retention.
        since = (
            max(group.state_since_wall_ms, committed.committed_wall_ms) if since_group else committed.committed_wall_ms
        )
        return now_wall_ms - since >= retention_ms

    return [
        partition
        for partition, committed in offsets.items()
        if not group.is_subscribed_to(partition.topic) and offsets.is_stable(partition) and is_expired(committed)
    ]
