"""Implements what all groups with server-side assignment have in common: epochs, targets, writes, timers, deletion.

A machine decides by records: each is applied to the group at once, by the `apply` that also loads it from the log, and
written in that order, one batch at a time. A request is answered when everything before its answer is durable. If a
write fails, its requests fail, and its records are written with the next event: memory is never older than the log.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from ottla.core.errors import ErrorCode
from ottla.groups.assignors.spec import TargetAssignment
from ottla.groups.classic.events import JoinAnswer, LeaveAnswer, SyncAnswer
from ottla.groups.machine import AppendRecords, CancelTimer, GroupAnswer, Now, Output, PlainAnswer, SetTimer
from ottla.groups.modern.events import HeartbeatAnswer
from ottla.groups.modern.group import ModernGroup
from ottla.groups.modern.records import GroupMetadata, TargetMember, TargetMetadata
from ottla.groups.modern.topics import TopicsImage, group_metadata_hash
from ottla.internal_topics.machine_events import NotStored, Reply
from ottla.internal_topics.topic_log import KeyValue

UNWRITTEN_MAX = 1_000
"""More records than this that could not be written are reduced to the last one of each key."""


GroupT = TypeVar("GroupT", bound=ModernGroup[Any, Any, Any])


class ModernMachine(Generic[GroupT]):
    """Changes the state of one group, which is in `group`. `topics` may be replaced between events."""

    __slots__ = ("_in_flight", "_out", "_records", "_refresh_requested", "_replies", "_writes", "group", "topics")

    def __init__(self, group: GroupT, topics: TopicsImage, first_records: Iterable[KeyValue] = ()) -> None:
        self.group, self.topics = group, topics
        self._writes = 0
        self._out: list[Output] = []
        self._records: list[KeyValue] = list(first_records)  # changes that are not being written yet
        self._replies: list[Reply[GroupAnswer]] = []  # they wait for all changes so far
        self._in_flight: dict[int, tuple[list[KeyValue], list[Reply[GroupAnswer]]]] = {}  # the pending write
        self._refresh_requested = True  # topics may have changed since the epoch was computed
        group.is_written = not self._records

    @property
    def outline(self) -> tuple[object, ...]:
        """Return the epoch of the group, that of the target, and the number of members."""
        return self.group.epoch, self.group.target_epoch, len(self.group.members)

    def begin_deletion(self) -> ErrorCode:
        """Prevent joins while the deletion of the group is written. Returns an error unless the group is empty."""
        if self.group.is_dead:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if self.group.members:
            return ErrorCode.NON_EMPTY_GROUP
        if not self.group.is_written:  # the tombstones must be the last records of the group
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self.group.is_dead = True
        return ErrorCode.NONE

    def cancel_deletion(self) -> None:
        """Restore the group after the write of its deletion failed."""
        self.group.is_dead = False

    # ---- Records

    def _change_epoch(self, metadata: GroupMetadata) -> None:
        """Change the group's epoch by a record."""
        raise NotImplementedError

    def _change_target_epoch(self, metadata: TargetMetadata) -> None:
        """Change the epoch of the target assignment by a record."""
        raise NotImplementedError

    def _change_target(self, member_id: str, target: TargetMember) -> None:
        """Change a member's part of the target by a record."""
        raise NotImplementedError

    # ---- The epoch and the target

    def _update_epoch(self, *, increase: bool) -> None:
        """Increase the group's epoch, at least if the metadata of its topics changed."""
        self._refresh_requested = False
        metadata_hash = group_metadata_hash(self.group.topics(), self.topics)
        if increase or metadata_hash != self.group.metadata_hash:
            self._increase_epoch(metadata_hash)

    def _increase_epoch(self, metadata_hash: int) -> None:
        self._change_epoch(GroupMetadata(self.group.epoch + 1, metadata_hash))

    def _set_target(self, target: TargetAssignment, now: Now) -> None:
        """Replace the target assignment by that of the group's epoch."""
        for member_id, partitions in target.items():
            if self.group.target.get(member_id) != partitions:
                self._change_target(member_id, TargetMember(partitions))
        self._change_target_epoch(TargetMetadata(self.group.epoch, now.wall_ms))

    def _complete_if_empty(self) -> None:
        """Set the target of a group without members, which is empty: the next member need not wait for an interval."""
        if not self.group.members:
            self._change_target_epoch(TargetMetadata(self.group.epoch, 0))

    # ---- Timers

    def _set_timer(self, timer: Hashable, at_ms: int) -> None:
        self.group.timers[timer] = at_ms
        self._out.append(SetTimer(timer, at_ms))

    def _cancel_timer(self, timer: Hashable) -> None:
        if self.group.timers.pop(timer, None) is not None:
            self._out.append(CancelTimer(timer))

    # ---- Writes and answers

    def _reply(self, ticket: int, answer: GroupAnswer) -> None:
        """Answer once all changes so far are durable."""
        self._replies.append(Reply(ticket, answer))

    def _write(self, event: object) -> None:
        """Write the changes, or answer at once if there are none. A failed write waits for the next event."""
        if not self._in_flight and not isinstance(event, NotStored):
            if self._records:
                self._store()
            else:
                self._out += self._replies
                self._replies = []
        self.group.is_written = not self._in_flight and not self._records

    def _store(self) -> None:
        self._writes += 1
        self._in_flight[self._writes] = self._records, self._replies
        self._out.append(AppendRecords(self._writes, tuple(self._records)))
        self._records, self._replies = [], []

    def _stored(self, write: int) -> None:
        self._out += self._in_flight.pop(write)[1]

    def stored_late(self, records: Sequence[KeyValue]) -> None:
        """Do nothing: the records are applied, and are written again."""

    def _not_stored(self, write: int, error: ErrorCode) -> None:
        unwritten, replies = self._in_flight.pop(write)
        self._out += (Reply(reply.ticket, _failed(reply.answer, error)) for reply in (*replies, *self._replies))
        self._replies = []
        self._records = unwritten + self._records
        if len(self._records) > UNWRITTEN_MAX:
            last = dict(self._records)
            self._records = [(key, last[key]) for key in dict.fromkeys(key for key, _ in reversed(self._records))][::-1]


def _failed(answer: GroupAnswer, error: ErrorCode) -> GroupAnswer:
    """Return the answer to a request whose changes could not be written."""
    match answer:
        case HeartbeatAnswer():
            return HeartbeatAnswer(error)
        case JoinAnswer():
            return JoinAnswer(error=error, member_id=answer.member_id)
        case SyncAnswer():
            return SyncAnswer(error=error)
        case LeaveAnswer():
            return LeaveAnswer(error=error)
        case _:
            return PlainAnswer(error)
