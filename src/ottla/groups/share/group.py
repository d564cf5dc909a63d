"""Holds the state of one share group (KIP-932) and asserts its invariants. Only `machine.py` changes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from ottla.core.errors import ErrorCode
from ottla.core.ids import GroupType
from ottla.groups.assignors.spec import NO_PARTITIONS, Partitions
from ottla.groups.group import GroupSummary, OffsetExpiry
from ottla.groups.machine import SessionTimer
from ottla.groups.modern.group import ModernGroup
from ottla.groups.share.records import ShareMember, ShareRecordType, tombstone
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
class ShareGroup(ModernGroup[ShareMember, SessionTimer]):
    """Holds one group."""

    epoch: int = INITIAL_EPOCH
    target_epoch: int = INITIAL_EPOCH
    is_persisted: bool = False  # the log has a record of it, or soon will: it stays until it is deleted
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
        return not self.members and self.is_written and not self.is_dead and not self.is_persisted

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
        """Return the records that delete the group from the log, in the order that Kafka needs."""
        group_id, members = self.group_id, list(self.members)
        return [
            *(tombstone(ShareRecordType.CURRENT_MEMBER_ASSIGNMENT, group_id, member_id) for member_id in members),
            *(tombstone(ShareRecordType.TARGET_ASSIGNMENT_MEMBER, group_id, member_id) for member_id in members),
            tombstone(ShareRecordType.TARGET_ASSIGNMENT_METADATA, group_id),
            *(tombstone(ShareRecordType.MEMBER_METADATA, group_id, member_id) for member_id in members),
            tombstone(ShareRecordType.STATE_PARTITION_METADATA, group_id),
            tombstone(ShareRecordType.GROUP_METADATA, group_id),
        ]

    # ---- Invariants

    def check(self) -> None:
        """Assert the invariants. Runs after every step, in production too: a wrong response is worse than none."""
        assert 0 <= self.target_epoch <= self.epoch, f"target epoch {self.target_epoch} of epoch {self.epoch}"
        assert self.target.keys() <= self.members.keys(), "an unknown member has a part of the target"
        assert all(member.epoch <= self.target_epoch for member in self.members.values()), "a member is in the future"
