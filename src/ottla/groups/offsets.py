"""Holds the committed offsets of the groups of one partition of `__consumer_offsets`, and finds expired ones (KIP-211).

Pure: the shard writes and reports the results. Pending writes are counted, because a deletion in the meantime must
cover them: its tombstone follows the commit in the log. Offsets that are committed in a transaction are invisible until
the transaction's marker reaches the partition; where both kinds of commits meet, the one that is later in the log wins,
as it does after compaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar
from uuid import UUID

from ottla.core.ids import NO_PRODUCER_ID, NO_TOPIC_ID, TopicPartition
from ottla.groups.group import Group

NO_LEADER_EPOCH = -1
NEVER_MS = -1
"""As `expires_wall_ms`: offsets.retention.minutes applies."""


_T = TypeVar("_T")


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


class _Pending(NamedTuple):
    """Holds an offset of an open transaction, and its order among the commits of the group."""

    order: int
    committed: CommittedOffset


class GroupOffsets:
    """Holds the offsets of one group."""

    __slots__ = ("_applied", "_committed", "_in_flight", "_orders", "_pending", "_pending_in_flight")

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, CommittedOffset] = {}
        self._applied = 0  # how many changes were applied, in the order of the log
        self._orders: dict[TopicPartition, int] = {}  # which of them committed an offset
        self._in_flight: Counter[TopicPartition] = Counter()
        self._pending: dict[int, dict[TopicPartition, _Pending]] = {}  # durable, by producer id
        self._pending_in_flight: Counter[tuple[int, TopicPartition]] = Counter()

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

    def all_partitions(self) -> set[TopicPartition]:
        """Return the partitions with a durable or a pending offset, those of open transactions too."""
        return self._committed.keys() | self._in_flight.keys() | self.in_transactions()

    def in_transactions(self) -> set[TopicPartition]:
        """Return the partitions with an offset of an open transaction."""
        written = {partition for pending in self._pending.values() for partition in pending}
        return written | {partition for _, partition in self._pending_in_flight}

    def open_transactions(self) -> set[int]:
        """Return the producers with a durable offset in an open transaction."""
        return set(self._pending)

    @property
    def has_open_transactions(self) -> bool:
        """Return whether a transaction with offsets of this group has no marker yet."""
        return bool(self._pending or self._pending_in_flight)

    def is_in_transaction(self, partition: TopicPartition) -> bool:
        """Return whether an open transaction commits this partition: a reader of stable offsets has to wait."""
        return any(partition in pending for pending in self._pending.values()) or any(
            partition == each for _, each in self._pending_in_flight
        )

    def is_stable(self, partition: TopicPartition) -> bool:
        """Return whether no write and no open transaction of the partition is pending."""
        return partition not in self._in_flight and not self.is_in_transaction(partition)

    @property
    def is_written(self) -> bool:
        """Return whether no write of an offset is pending."""
        return not self._in_flight and not self._pending_in_flight

    @property
    def all_stable(self) -> bool:
        """Return whether no write and no open transaction is pending."""
        return not self._in_flight and not self.has_open_transactions

    # ---- Writes

    def begin(self, partitions: Collection[TopicPartition], *, producer_id: int = NO_PRODUCER_ID) -> None:
        """Note that a write of these partitions is pending."""
        if producer_id == NO_PRODUCER_ID:
            self._in_flight.update(partitions)
        else:
            self._pending_in_flight.update((producer_id, partition) for partition in partitions)

    def finish(self, change: Change, *, stored: bool, producer_id: int = NO_PRODUCER_ID) -> None:
        """Complete a pending write. Called in the order of the log, so that the last one wins."""
        if producer_id == NO_PRODUCER_ID:
            _subtract(self._in_flight, change)
        else:
            _subtract(self._pending_in_flight, [(producer_id, partition) for partition in change])
        if stored:
            self.apply(change, producer_id=producer_id)

    def apply(self, change: Change, *, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply a durable change. A tombstone deletes the partition's offsets in open transactions too."""
        self._applied += 1
        for partition, committed in change.items():
            if committed is None:
                self._committed.pop(partition, None)
                self._orders.pop(partition, None)
                for pending in self._pending.values():
                    pending.pop(partition, None)
            elif producer_id == NO_PRODUCER_ID:
                self._committed[partition] = committed
                self._orders[partition] = self._applied
            else:
                self._pending.setdefault(producer_id, {})[partition] = _Pending(self._applied, committed)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Complete the transaction of a producer: make its offsets visible, or drop them."""
        ended = self._pending.pop(producer_id, {})
        if not commit:
            return
        for partition, (order, committed) in ended.items():
            if order > self._orders.get(partition, -1):
                self._committed[partition] = committed
                self._orders[partition] = order


def _subtract(counts: Counter[_T], items: Iterable[_T]) -> None:
    for item in items:
        assert counts[item] > 0, f"{item} has no pending write"
        counts[item] -= 1
        if not counts[item]:
            del counts[item]


def expired(offsets: GroupOffsets, group: Group, *, now_wall_ms: int, retention_ms: int) -> list[TopicPartition]:
    """Find the expired offsets.

    The group determines from when on the retention counts, and keeps those of topics to which its members subscribe.
    An offset that its client gave an expiry time of its own expires then.
    """
    expiry = group.offset_expiry()
    if expiry is None:
        return []

    def is_expired(committed: CommittedOffset) -> bool:
        if committed.expires_wall_ms != NEVER_MS:
            return now_wall_ms >= committed.expires_wall_ms
        # An administrator may set an offset after the group became empty. It gets the full retention.
        since = max(expiry.since_wall_ms or 0, committed.committed_wall_ms)
        return now_wall_ms - since >= retention_ms

    return [
        partition
        for partition, committed in offsets.items()
        if not group.is_subscribed_to(partition.topic) and offsets.is_stable(partition) and is_expired(committed)
    ]
