"""Holds the state of one consumer group (KIP-848) and asserts its invariants. Only `machine.py` changes it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

from ottla.client.consumer_protocol import CONSUMER
from ottla.core.errors import ErrorCode
from ottla.core.ids import GroupType
from ottla.groups.assignors.spec import NO_PARTITIONS, Partitions
from ottla.groups.consumer.events import (
    STATIC_LEAVE_EPOCH,
    GroupState,
    MemberJoinTimer,
    MemberSyncTimer,
    RebalanceTimer,
    Timer,
)
from ottla.groups.consumer.member import AssignedPartitions, ConsumerMember, MemberState
from ottla.groups.consumer.records import ConsumerRecordType, ResolvedRegex, tombstone
from ottla.groups.group import GroupSummary, OffsetExpiry
from ottla.groups.machine import SessionTimer
from ottla.groups.modern.group import ModernGroup
from ottla.internal_topics.topic_log import KeyValue

INITIAL_EPOCH = 1
"""Epoch of a group before its first member joins, as in Kafka: the first target assignment has epoch 2."""

CHECKED_ALWAYS_MAX = 32
"""Up to this size a group's invariants are checked after all steps but commits, which change no member.

Those of larger groups are checked with every target assignment."""


@dataclass(slots=True)
class ConsumerGroup(ModernGroup[ConsumerMember, Timer]):
    """Holds one group."""

    epoch: int = INITIAL_EPOCH
    by_instance: dict[str, str] = field(default_factory=dict)  # static members: instance id -> member id
    owners: dict[UUID, dict[int, str]] = field(default_factory=dict)  # partition -> the member that has it
    regexes: dict[str, ResolvedRegex] = field(default_factory=dict)  # the resolved ones
    has_partition_metadata: bool = False  # Kafka 4.0 wrote the metadata of topics, which is deleted with a change

    # ---- The port `Group`

    @property
    def summary(self) -> GroupSummary:
        """Return its type and state."""
        return GroupSummary(self.group_id, GroupType.CONSUMER, CONSUMER, self.state.value)

    @property
    def is_unused(self) -> bool:
        """Return whether it has no member and no pending write."""
        return not self.members and self.is_written and not self.is_dead

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether a member subscribes to a topic: then its offsets do not expire (KIP-211)."""
        return any(topic in self.topics_of(member) for member in self.members.values())

    def offset_expiry(self) -> OffsetExpiry | None:
        """Let offsets of topics to which no member subscribes expire after their commit."""
        return OffsetExpiry()

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Validate that a member reads offsets in its current epoch; other clients give neither."""
        if member_id is None and member_epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member_epoch == member.epoch:
            return ErrorCode.NONE
        return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION

    def validate_offset_deletion(self) -> ErrorCode:
        """Let offsets of topics to which no member subscribes be deleted."""
        return ErrorCode.GROUP_ID_NOT_FOUND if self.is_dead else ErrorCode.NONE

    def tombstones(self) -> list[KeyValue]:
        """Return the records that delete the group from the log, in the order that Kafka needs."""
        group_id, members = self.group_id, list(self.members)
        return [
            *(tombstone(ConsumerRecordType.CURRENT_MEMBER_ASSIGNMENT, group_id, member_id) for member_id in members),
            *(tombstone(ConsumerRecordType.TARGET_ASSIGNMENT_MEMBER, group_id, member_id) for member_id in members),
            tombstone(ConsumerRecordType.TARGET_ASSIGNMENT_METADATA, group_id),
            *(tombstone(ConsumerRecordType.MEMBER_METADATA, group_id, member_id) for member_id in members),
            *(tombstone(ConsumerRecordType.REGULAR_EXPRESSION, group_id, regex) for regex in self.regexes),
            *([tombstone(ConsumerRecordType.PARTITION_METADATA, group_id)] if self.has_partition_metadata else []),
            tombstone(ConsumerRecordType.GROUP_METADATA, group_id),
        ]

    # ---- What follows from the members

    @property
    def state(self) -> GroupState:
        """Return the state of the group."""
        if self.is_dead:
            return GroupState.DEAD
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.target_epoch:
            return GroupState.ASSIGNING
        reconciled = all(member.is_reconciled_to(self.target_epoch) for member in self.members.values())
        return GroupState.STABLE if reconciled else GroupState.RECONCILING

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        """Return the member with an instance id."""
        member_id = self.by_instance.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """Return the topics that a member subscribes to, by name or by its regular expression."""
        resolved = self.regexes.get(member.regex) if member.regex else None
        return member.topics if resolved is None else member.topics | resolved.topics

    def topics(self) -> frozenset[str]:
        """Return the topics that a member subscribes to."""
        return frozenset[str]().union(*{self.topics_of(member) for member in self.members.values()})

    def subscribers(self, regex: str) -> int:
        """Return how many members subscribe with a regular expression."""
        return sum(member.regex == regex for member in self.members.values())

    def subscribed_regexes(self) -> frozenset[str]:
        """Return the regular expressions of all members."""
        return frozenset(member.regex for member in self.members.values() if member.regex)

    def target_of(self, member_id: str) -> Partitions:
        """Return a member's part of the target."""
        return self.target.get(member_id, NO_PARTITIONS)

    def is_owned(self, topic_id: UUID, partition: int) -> bool:
        """Return whether a member has a partition or must release it."""
        return partition in self.owners.get(topic_id, {})

    def preferred_assignor(self) -> str | None:
        """Return the assignor that most members ask for; None if no member does. The older choice breaks a tie."""
        votes = Counter(member.assignor for member in self.members.values() if member.assignor)
        return max(votes, key=lambda name: votes[name]) if votes else None

    # ---- Members of the classic protocol

    @property
    def classic_members(self) -> int:
        """Return the number of members of the classic protocol."""
        return sum(member.classic is not None for member in self.members.values())

    def supports_classic_protocols(self, names: set[str]) -> bool:
        """Return whether all members of the classic protocol support one of these."""
        supporters: Counter[str] = Counter()
        classic = 0
        for member in self.members.values():
            if member.classic is not None:
                classic += 1
                supporters.update({name for name, _ in member.classic.protocols})
        return any(supporters[name] == classic for name in names)

    def waits_for_release(self, member: ConsumerMember) -> bool:
        """Return whether a partition of its part of the target is owned by another member."""
        return member.state is MemberState.UNRELEASED_PARTITIONS and any(
            index not in member.assigned.get(topic_id, {}) and self.is_owned(topic_id, index)
            for topic_id, indexes in self.target_of(member.member_id).items()
            for index in indexes
        )

    # ---- Changes

    def put(self, member: ConsumerMember) -> None:
        """Add or replace a member. Asserts that its partitions have no other owner."""
        older = self.members.get(member.member_id)
        if older is not None:
            self._disown(older)
            self._forget_instance(older)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.by_instance[member.instance_id] = member.member_id
        for partitions in (member.assigned, member.pending_revocation):
            self._own(member.member_id, partitions)

    def remove(self, member_id: str) -> None:
        """Remove a member, and its part of the target."""
        member = self.members.pop(member_id)
        self._disown(member)
        self.target.pop(member_id, None)
        self._forget_instance(member)

    def _forget_instance(self, member: ConsumerMember) -> None:
        if member.instance_id is not None and self.by_instance.get(member.instance_id) == member.member_id:
            del self.by_instance[member.instance_id]

    def become_empty(self) -> None:
        """Remove all members after they moved to a group of another type."""
        for owned in (self.members, self.by_instance, self.target, self.owners, self.regexes, self.timers):
            owned.clear()
        self.is_dead = True

    def _own(self, member_id: str, partitions: AssignedPartitions) -> None:
        for topic_id, indexes in partitions.items():
            owners = self.owners.setdefault(topic_id, {})
            for index in indexes:
                owner = owners.setdefault(index, member_id)
                assert owner == member_id, f"{topic_id}-{index} is given to {member_id} but {owner} owns it"

    def _disown(self, member: ConsumerMember) -> None:
        for partitions in (member.assigned, member.pending_revocation):
            for topic_id, indexes in partitions.items():
                owners = self.owners.get(topic_id, {})
                for index in indexes:
                    if owners.get(index) == member.member_id:
                        del owners[index]
                if not owners:
                    self.owners.pop(topic_id, None)

    # ---- Invariants

    def check(self, *, thorough: bool = True) -> None:
        """Assert the invariants: all, or those that cost nothing. In production too: no response beats a wrong one."""
        assert 0 <= self.target_epoch <= self.epoch, f"target epoch {self.target_epoch} of epoch {self.epoch}"
        assert self.target.keys() <= self.members.keys(), "an unknown member has a part of the target"
        if not thorough:
            return
        owners: dict[tuple[UUID, int], str] = {}
        for member_id, member in self.members.items():
            self._check_member(member_id, member)
            for partitions in (member.assigned, member.pending_revocation):
                for topic_id, indexes in partitions.items():
                    for index in indexes:
                        other = owners.setdefault((topic_id, index), member_id)
                        assert other == member_id, f"{topic_id}-{index} has the owners {other} and {member_id}"
        known = {(topic, index): owner for topic, found in self.owners.items() for index, owner in found.items()}
        assert known == owners, "owners does not match the members"
        assert self.by_instance == {
            member.instance_id: member_id
            for member_id, member in self.members.items()
            if member.instance_id is not None
        }, "by_instance does not match the static members"
        targeted = [
            (topic_id, index)
            for partitions in self.target.values()
            for topic_id, indexes in partitions.items()
            for index in indexes
        ]
        assert len(targeted) == len(set(targeted)), "the target gives a partition to two members"
        assert self.regexes.keys() <= self.subscribed_regexes(), "a resolved regular expression has no subscriber"
        named = {timer.member_id for timer in self.timers}
        assert named <= self.members.keys(), f"a timer for an unknown member: {named - self.members.keys()}"

    def _check_member(self, member_id: str, member: ConsumerMember) -> None:
        assert member.member_id == member_id, f"{member.member_id} is kept as {member_id}"
        assert member.epoch <= self.epoch, f"{member_id} has epoch {member.epoch} of {self.epoch}"
        assert SessionTimer(member_id) in self.timers, f"{member_id} could stay for ever"
        left = member.epoch == STATIC_LEAVE_EPOCH
        assert member.epoch >= 0 or left, f"{member_id} has epoch {member.epoch}"
        if member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None and not left:
            assert RebalanceTimer(member_id) in self.timers, f"{member_id} could keep partitions for ever"
        if member.classic is None:
            assert MemberJoinTimer(member_id) not in self.timers, f"{member_id} does not join"
            assert MemberSyncTimer(member_id) not in self.timers, f"{member_id} does not sync"
