"""Holds the committed offsets of one group, and finds expired ones (KIP-211).

`GroupOffsets.apply` and `end_transaction` alone change them, live and as the log is loaded. Live they are called once a
record or a marker is durable: a consumer must not continue from an offset that may still be lost. What is being written
is counted beside them (`OffsetsInFlight`), because a deletion in the meantime must cover it: its tombstone follows the
commit in the log.

Offsets that are committed in a transaction are invisible until the transaction's marker reaches the partition; where
both kinds of commits meet, the one that is later in the log wins, as it does after compaction.
"""

from __future__ import annotations

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


class OffsetsInFlight:
    """Counts the writes of a group's offsets that are not durable yet: soft state, which the log does not have."""

    __slots__ = ("_in_transactions", "_plain")

    def __init__(self) -> None:
        self._plain: dict[TopicPartition, int] = {}
        self._in_transactions: dict[tuple[int, TopicPartition], int] = {}

    def __bool__(self) -> bool:
        return bool(self._plain or self._in_transactions)

    def __contains__(self, partition: TopicPartition) -> bool:
        """Return whether a write of this partition outside of transactions is pending."""
        return partition in self._plain

    def partitions(self) -> set[TopicPartition]:
        """Return the partitions of the writes outside of transactions."""
        return set(self._plain)

    def in_transactions(self) -> set[TopicPartition]:
        """Return the partitions of the writes in transactions."""
        return {partition for _, partition in self._in_transactions}

    def begin(self, partitions: Collection[TopicPartition], *, producer_id: int = NO_PRODUCER_ID) -> None:
        """Note that a write of these partitions is pending."""
        if producer_id == NO_PRODUCER_ID:
            _add(self._plain, partitions)
        else:
            _add(self._in_transactions, [(producer_id, partition) for partition in partitions])

    def end(self, partitions: Collection[TopicPartition], *, producer_id: int = NO_PRODUCER_ID) -> None:
        """Note that a write of these partitions is durable or has failed."""
        if producer_id == NO_PRODUCER_ID:
            _subtract(self._plain, partitions)
        else:
            _subtract(self._in_transactions, [(producer_id, partition) for partition in partitions])


class GroupOffsets:
    """Holds the offsets of one group."""

    __slots__ = ("_applied", "_committed", "_orders", "_pending", "in_flight")

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, CommittedOffset] = {}
        self._pending: dict[int, dict[TopicPartition, _Pending]] = {}  # of open transactions, by producer id
        self._applied = 0  # how many changes were applied, in the order of the log
        self._orders: dict[TopicPartition, int] = {}  # which of them committed an offset while a transaction was open
        self.in_flight = OffsetsInFlight()

    def __len__(self) -> int:
        return len(self._committed)

    @property
    def changes(self) -> int:
        """Return how many commits and deletions were applied, also those of the log as it was loaded."""
        return self._applied

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
        return self._committed.keys() | self.in_flight.partitions() | self.in_transactions()

    def in_transactions(self) -> set[TopicPartition]:
        """Return the partitions with an offset of an open transaction: a reader of stable offsets has to wait."""
        written = {partition for pending in self._pending.values() for partition in pending}
        return written | self.in_flight.in_transactions()

    @property
    def has_open_transactions(self) -> bool:
        """Return whether a transaction with durable offsets of this group has no marker yet."""
        return bool(self._pending)

    def is_stable(self, partition: TopicPartition) -> bool:
        """Return whether no write and no open transaction of the partition is pending."""
        return self.all_stable or (partition not in self.in_flight and partition not in self.in_transactions())

    @property
    def all_stable(self) -> bool:
        """Return whether no write and no open transaction is pending."""
        return not self.in_flight and not self._pending

    # ---- Changes

    def apply(self, change: Change, *, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply durable records. A tombstone deletes the partition's offsets in open transactions too."""
        self._applied += 1
        for partition, committed in change.items():
            if committed is None:
                self._committed.pop(partition, None)
                self._orders.pop(partition, None)
                for pending in self._pending.values():
                    pending.pop(partition, None)
            elif producer_id == NO_PRODUCER_ID:
                self._committed[partition] = committed
                if self._pending:
                    self._orders[partition] = self._applied
            else:
                self._pending.setdefault(producer_id, {})[partition] = _Pending(self._applied, committed)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Apply the marker of a producer's transaction: make its offsets visible, or drop them."""
        ended = self._pending.pop(producer_id, {})
        if commit:
            for partition, (order, committed) in ended.items():
                if order > self._orders.get(partition, -1):
                    self._committed[partition] = committed
                    self._orders[partition] = order
        if not self._pending:
            self._orders.clear()  # whatever a later transaction commits is later in the log


def _add(counts: dict[_T, int], items: Iterable[_T]) -> None:
    for item in items:
        counts[item] = counts.get(item, 0) + 1


def _subtract(counts: dict[_T, int], items: Iterable[_T]) -> None:
    for item in items:
        assert counts.get(item, 0) > 0, f"{item} has no pending write"
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
