"""Runs one partition of the share coordinator as a pure state machine: requests in, records and results out.

It keeps the state of share partitions (KIP-932): what a share partition persists with WriteShareGroupState, and reads
again when it is loaded elsewhere. Every `snapshot_interval` changes the whole state is written as a snapshot; earlier
records of the share partition are redundant then, and are deleted from the log.

A request changes nothing: it returns records. `apply` alone changes the state, by a record of the log that is loaded
and by one that was just decided. The latter is applied before it is durable, so that the next decision follows from it;
if its write fails, the partition must be loaded again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple
from uuid import UUID

from ottla.core.errors import ErrorCode
from ottla.core.ids import NO_OFFSET
from ottla.share_coordinator.records import UNKNOWN_COUNT, SharePartitionKey, Snapshot, StateRecord, Update
from ottla.share_coordinator.state_batches import combine
from ottla.share_coordinator.states import StateBatch

NO_EPOCH = -1

NEGATIVE_PARTITION = "The partition id is negative."
NOT_INITIALIZED = "The share partition is not initialized."


class StateResult(NamedTuple):
    """Holds the result of a request for one share partition, and the records to write before it is answered."""

    error: ErrorCode = ErrorCode.NONE
    message: str = ""
    state: Snapshot | None = None  # that a request reads
    records: tuple[StateRecord, ...] = ()


class StateWrite(NamedTuple):
    """Holds the content of WriteShareGroupState for one share partition.

    -1 leaves the start offset and the leader epoch as they are, and makes the count unknown.
    """

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


class _Kept(NamedTuple):
    """Holds the state of one share partition."""

    state: Snapshot
    updates: int = 0  # since the last snapshot
    snapshot_at: int = 0  # offset in the log at or before the last snapshot


class ShareCoordinatorMachine:
    """Holds the states of the share partitions of one partition of `__share_group_state`."""

    def __init__(self, snapshot_interval: int, exists: Callable[[UUID, int], bool]) -> None:
        self._interval, self._exists = snapshot_interval, exists
        self._kept: dict[SharePartitionKey, _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[SharePartitionKey]:
        return iter(self._kept)

    # ---- The state

    def apply(self, record: StateRecord, offset: int) -> None:
        """Change the state by a record; `offset` is at or before its own.

        An update without a snapshot is what a deletion left.
        """
        key, content = record
        match content:
            case Snapshot():
                self._kept[key] = _Kept(content, 0, offset)
            case Update():
                kept = self._kept.get(key)
                if kept is not None:
                    self._kept[key] = kept._replace(state=_updated(kept.state, content), updates=kept.updates + 1)
            case None:
                self._kept.pop(key, None)

    def states(self) -> dict[SharePartitionKey, tuple[Snapshot, int]]:
        """Return each state with its number of updates since its last snapshot: all that decisions follow from."""
        return {key: (kept.state, kept.updates) for key, kept in self._kept.items()}

    @property
    def first_needed_offset(self) -> int | None:
        """Return an offset before which all records are redundant; None if nothing is kept."""
        return min((kept.snapshot_at for kept in self._kept.values()), default=None)

    # ---- Requests

    def initialize(
        self, key: SharePartitionKey, state_epoch: int, start_offset: int, *, now_wall_ms: int
    ) -> StateResult:
        """Begin or reset the state of a share partition."""
        kept = self._kept.get(key)
        if refusal := self._refusal(key, kept, state_epoch=state_epoch):
            return refusal
        snapshot = Snapshot(
            snapshot_epoch=0 if kept is None else kept.state.snapshot_epoch + 1,
            state_epoch=state_epoch,
            leader_epoch=0 if kept is None else kept.state.leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=UNKNOWN_COUNT if start_offset == NO_OFFSET else 0,
            created_wall_ms=now_wall_ms,
            written_wall_ms=now_wall_ms,
        )
        return StateResult(records=(StateRecord(key, snapshot),))

    def write(self, key: SharePartitionKey, write: StateWrite, *, now_wall_ms: int) -> StateResult:
        """Change the state of a share partition."""
        kept = self._kept.get(key)
        if refusal := self._refusal(key, kept, state_epoch=write.state_epoch, leader_epoch=write.leader_epoch):
            return refusal
        if kept is None:
            return StateResult(ErrorCode.INVALID_REQUEST, NOT_INITIALIZED)
        return StateResult(records=(self._change(key, kept, write, now_wall_ms),))

    def read(self, key: SharePartitionKey, leader_epoch: int, *, now_wall_ms: int) -> StateResult:
        """Read the state for a new leader, whose epoch fences the writes of earlier ones."""
        kept = self._kept.get(key)
        if refusal := self._refusal(key, kept, leader_epoch=leader_epoch):
            return refusal
        if kept is None:
            return StateResult(ErrorCode.INVALID_REQUEST, NOT_INITIALIZED)
        state = kept.state
        if leader_epoch in (NO_EPOCH, state.leader_epoch):
            return StateResult(state=state)
        write = StateWrite(state.state_epoch, leader_epoch, state.start_offset, state.delivery_complete_count, ())
        return StateResult(state=state, records=(self._change(key, kept, write, now_wall_ms),))

    def summary(self, key: SharePartitionKey) -> StateResult:
        """Read the state without its batches; that of a share partition without one has no start."""
        if refusal := self._refusal(key, None):
            return refusal
        kept = self._kept.get(key)
        return StateResult(state=kept.state if kept is not None else Snapshot(0, 0, 0, NO_OFFSET))

    def delete(self, key: SharePartitionKey) -> StateResult:
        """Delete the state of a share partition; succeeds if there is none."""
        if refusal := self._refusal(key, None):
            return refusal
        return StateResult(records=(StateRecord(key, None),) if key in self._kept else ())

    def maintain(self, *, not_since_wall_ms: int, now_wall_ms: int) -> StateResult:
        """Delete the states of topics that do not exist any more, and write old snapshots again.

        The records between these snapshots can be deleted then.
        """
        existing = {key: kept for key, kept in self._kept.items() if self._exists(key.topic_id, key.partition)}
        deletions = tuple(StateRecord(key, None) for key in self._kept if key not in existing)
        cold = {key: kept.state for key, kept in existing.items() if kept.state.written_wall_ms <= not_since_wall_ms}
        if len(cold) == len(existing) and not any(kept.updates for kept in existing.values()):
            return StateResult(records=deletions)  # nothing changes any more: nothing becomes redundant
        snapshots = tuple(
            StateRecord(key, state._replace(snapshot_epoch=state.snapshot_epoch + 1, written_wall_ms=now_wall_ms))
            for key, state in cold.items()
        )
        return StateResult(records=deletions + snapshots)

    # ---- Internals

    def _refusal(
        self, key: SharePartitionKey, kept: _Kept | None, *, state_epoch: int = NO_EPOCH, leader_epoch: int = NO_EPOCH
    ) -> StateResult | None:
        if key.partition < 0:
            return StateResult(ErrorCode.INVALID_REQUEST, NEGATIVE_PARTITION)
        if kept is not None and NO_EPOCH != leader_epoch < kept.state.leader_epoch:
            return StateResult(ErrorCode.FENCED_LEADER_EPOCH, f"The leader epoch is {kept.state.leader_epoch}.")
        if kept is not None and NO_EPOCH != state_epoch < kept.state.state_epoch:
            return StateResult(ErrorCode.FENCED_STATE_EPOCH, f"The state epoch is {kept.state.state_epoch}.")
        if not self._exists(key.topic_id, key.partition):
            return StateResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic or partition does not exist.")
        return None

    def _change(self, key: SharePartitionKey, kept: _Kept, write: StateWrite, now_wall_ms: int) -> StateRecord:
        """Return an update, or after so many of them a snapshot."""
        leader_epoch = kept.state.leader_epoch if write.leader_epoch == NO_EPOCH else write.leader_epoch
        update = Update(
            kept.state.snapshot_epoch,
            leader_epoch,
            write.start_offset,
            write.delivery_complete_count,
            combine((), write.batches, write.start_offset),
        )
        if kept.updates < self._interval:
            return StateRecord(key, update)
        state = _updated(kept.state, update)
        snapshot = state._replace(
            snapshot_epoch=state.snapshot_epoch + 1, created_wall_ms=now_wall_ms, written_wall_ms=now_wall_ms
        )
        return StateRecord(key, snapshot)


def _updated(state: Snapshot, update: Update) -> Snapshot:
    start_offset = state.start_offset if update.start_offset == NO_OFFSET else update.start_offset
    return state._replace(
        leader_epoch=max(state.leader_epoch, update.leader_epoch),
        start_offset=start_offset,
        delivery_complete_count=update.delivery_complete_count,
        batches=combine(state.batches, update.batches, start_offset),
    )
