"""Holds the state of one share group (KIP-932), applies records to it, and asserts its invariants."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import assert_never
from uuid import UUID

from ottla.core.errors import ErrorCode
from ottla.core.ids import GroupType
from ottla.groups.assignors.spec import NO_PARTITIONS, Partitions
from ottla.groups.group import GroupSummary, OffsetExpiry
from ottla.groups.machine import SessionTimer
from ottla.groups.modern.group import ModernGroup
from ottla.groups.modern.records import GroupMetadata, TargetMember, TargetMetadata
from ottla.groups.share.records import (
    NO_CURRENT,
    ShareCurrentAssignment,
    ShareMember,
    ShareRecord,
    ShareRecordKey,
    ShareRecordType,
    ShareRecordValue,
    StatePartitions,
    current_of,
    encode,
)
from ottla.internal_topics.topic_log import KeyValue

PROTOCOL_TYPE = "share"

INITIAL_EPOCH = 1
"""Epoch of a group before its first member joins, and of its target then, as in Kafka."""


class ShareGroupState(Enum):
    """Lists the states of a share group, with Kafka's names in ListGroups and ShareGroupDescribe."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True)
class ShareGroup(ModernGroup[ShareMember, ShareCurrentAssignment, SessionTimer]):
    """Holds one group. Only `apply` changes it, live and as the log is loaded."""

    epoch: int = INITIAL_EPOCH
    target_epoch: int = INITIAL_EPOCH
    initialized: dict[UUID, frozenset[int]] = field(default_factory=dict)  # partitions that have a share state
    names: dict[UUID, str] = field(default_factory=dict)  # of those topics

    @property
    def state(self) -> ShareGroupState:
        """Return the state of the group."""
        if self.is_dead:
            return ShareGroupState.DEAD
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    def topics(self) -> frozenset[str]:
        """Return the topics that a member subscribes to."""
        return frozenset[str]().union(*(member.topics for member in self.members.values()))

    def target_of(self, member_id: str) -> Partitions:
        """Return a member's part of the target: only partitions that have a share state."""
        target = self.target.get(member_id, NO_PARTITIONS)
        usable = {topic: indexes & self.initialized.get(topic, frozenset()) for topic, indexes in target.items()}
        return {topic: indexes for topic, indexes in usable.items() if indexes}

    # ---- The port `Group`

    @property
    def summary(self) -> GroupSummary:
        """Return its type and state."""
        return GroupSummary(self.group_id, GroupType.SHARE, PROTOCOL_TYPE, self.state.value)

    @property
    def is_unused(self) -> bool:
        """Return whether it was never written: a share group without members stays until it is deleted."""
        return not self.members and self.is_written and not self.is_dead and not self.is_in_log

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether a member subscribes to a topic."""
        return any(topic in member.topics for member in self.members.values())

    def offset_expiry(self) -> OffsetExpiry | None:
        """Return None: a share group has no committed offsets."""
        return None

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:  # noqa: ARG002  # the port
        """Refuse: a share group has no committed offsets."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def validate_offset_deletion(self) -> ErrorCode:
        """Refuse: a share group has no committed offsets."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    def tombstones(self) -> list[KeyValue]:
        """Return the records that delete the group from the log."""
        return [encode(record) for record in self.deletion()]

    # ---- Changes

    def apply(self, record: ShareRecord) -> None:
        """Apply a record of the group. The last record of a key counts, in whatever order it follows on other keys."""
        (kind, _, member_id), value = record
        match value:
            case GroupMetadata(epoch, metadata_hash):
                self.epoch, self.metadata_hash, self.is_in_log = epoch, metadata_hash, True
            case TargetMetadata(epoch, wall_ms):
                self.target_epoch, self.target_wall_ms = epoch, wall_ms
            case TargetMember(partitions):
                self.target[member_id] = partitions
            case ShareMember():
                member = self.members.get(member_id)
                current = self.early.pop(member_id, NO_CURRENT) if member is None else current_of(member)
                self.members[member_id] = _with_current(value, current)
            case ShareCurrentAssignment():
                self._apply_current(member_id, value)
            case StatePartitions(initialized):
                self.initialized = {topic_id: indexes for topic_id, (_, indexes) in initialized.items()}
                self.names = {topic_id: name for topic_id, (name, _) in initialized.items()}
            case None:
                self._apply_tombstone(kind, member_id)
            case _:
                assert_never(value)

    def _apply_current(self, member_id: str, current: ShareCurrentAssignment) -> None:
        member = self.members.get(member_id)
        if member is not None:
            self.members[member_id] = _with_current(member, current)
        else:  # after compaction the record of the member may follow
            self.early[member_id] = current

    def _apply_tombstone(self, kind: ShareRecordType, member_id: str) -> None:
        match kind:
            case ShareRecordType.GROUP_METADATA:
                self.epoch, self.metadata_hash, self.is_in_log = INITIAL_EPOCH, 0, False
            case ShareRecordType.MEMBER_METADATA:
                self.members.pop(member_id, None)
            case ShareRecordType.TARGET_ASSIGNMENT_METADATA:
                self.target_epoch, self.target_wall_ms = INITIAL_EPOCH, 0
            case ShareRecordType.TARGET_ASSIGNMENT_MEMBER:
                self.target.pop(member_id, None)
            case ShareRecordType.CURRENT_MEMBER_ASSIGNMENT:
                self.early.pop(member_id, None)
                if member_id in self.members:
                    self._apply_current(member_id, NO_CURRENT)
            case ShareRecordType.STATE_PARTITION_METADATA:
                self.initialized, self.names = {}, {}
            case _:
                assert_never(kind)

    # ---- Records

    def _record(self, kind: ShareRecordType, value: ShareRecordValue = None, member_id: str = "") -> ShareRecord:
        return ShareRecordKey(kind, self.group_id, member_id), value

    def deletion(self) -> list[ShareRecord]:
        """Return the records that delete the group, in the order that Kafka needs."""
        kinds, record, members = ShareRecordType, self._record, list(self.members)
        return [
            *(record(kinds.CURRENT_MEMBER_ASSIGNMENT, member_id=member_id) for member_id in members),
            *(record(kinds.TARGET_ASSIGNMENT_MEMBER, member_id=member_id) for member_id in members),
            record(kinds.TARGET_ASSIGNMENT_METADATA),
            *(record(kinds.MEMBER_METADATA, member_id=member_id) for member_id in members),
            record(kinds.STATE_PARTITION_METADATA),
            record(kinds.GROUP_METADATA),
        ]

    def repair(self) -> list[ShareRecord]:
        """Return the records that make the group consistent, which only one from a log with missing records is not."""
        kinds, record = ShareRecordType, self._record
        records: list[ShareRecord] = []
        target_epoch = min(self.target_epoch, self.epoch)
        if target_epoch < self.target_epoch:
            records.append(record(kinds.TARGET_ASSIGNMENT_METADATA, TargetMetadata(target_epoch, self.target_wall_ms)))
        for member_id, member in self.members.items():
            if member.epoch > target_epoch:
                consistent = current_of(member)._replace(epoch=target_epoch)
                records.append(record(kinds.CURRENT_MEMBER_ASSIGNMENT, consistent, member_id))
        unknown = self.target.keys() - self.members.keys()
        records += (record(kinds.TARGET_ASSIGNMENT_MEMBER, member_id=member_id) for member_id in sorted(unknown))
        return records

    # ---- Invariants

    def check(self) -> None:
        """Assert the invariants. Runs after every step, in production too: a wrong response is worse than none."""
        assert 0 <= self.target_epoch <= self.epoch, f"target epoch {self.target_epoch} of epoch {self.epoch}"
        assert self.target.keys() <= self.members.keys(), "an unknown member has a part of the target"
        assert all(member.epoch <= self.target_epoch for member in self.members.values()), "a member is in the future"


def _with_current(member: ShareMember, current: ShareCurrentAssignment) -> ShareMember:
    return replace(member, epoch=current.epoch, previous_epoch=current.previous_epoch, assigned=current.assigned)
