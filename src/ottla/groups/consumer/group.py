"""Holds the state of one consumer group (KIP-848), applies records to it, and asserts its invariants."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import assert_never
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
from ottla.groups.consumer.records import (
    NO_CURRENT,
    ConsumerCurrentAssignment,
    ConsumerRecord,
    ConsumerRecordKey,
    ConsumerRecordType,
    ConsumerRecordValue,
    ResolvedRegex,
    TopicsMetadata,
    current_of,
    encode,
)
from ottla.groups.group import GroupSummary, OffsetExpiry
from ottla.groups.machine import SessionTimer
from ottla.groups.modern.group import ModernGroup
from ottla.groups.modern.records import GroupMetadata, TargetMember, TargetMetadata
from ottla.internal_topics.topic_log import KeyValue

log = logging.getLogger(__name__)

INITIAL_EPOCH = 1
"""Epoch of a group before its first member joins, as in Kafka: the first target assignment has epoch 2."""

CHECKED_ALWAYS_MAX = 32
"""Up to this size a group's invariants are checked after all steps but commits, which change no member.

Those of larger groups are checked with every target assignment."""


@dataclass(slots=True)
class ConsumerGroup(ModernGroup[ConsumerMember, ConsumerCurrentAssignment, Timer]):
    """Holds one group. Only `apply` changes it, live and as the log is loaded."""

    epoch: int = INITIAL_EPOCH
    regexes: dict[str, ResolvedRegex] = field(default_factory=dict)  # the resolved ones
    has_partition_metadata: bool = False  # Kafka 4.0 wrote the metadata of topics, which is deleted with a change
    # What follows from the members:
    by_instance: dict[str, str] = field(default_factory=dict)  # static members: instance id -> member id
    owners: dict[UUID, dict[int, str]] = field(default_factory=dict)  # partition -> the member that has it
    contested: set[tuple[UUID, int]] = field(default_factory=set, compare=False)  # partitions that had two owners

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
        """Return the records that delete the group from the log."""
        return [encode(record) for record in self.deletion()]

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

    def apply(self, record: ConsumerRecord) -> None:
        """Apply a record of the group. The last record of a key counts, in whatever order it follows on other keys."""
        (kind, _, name), value = record
        match value:
            case GroupMetadata(epoch, metadata_hash):
                self.epoch, self.metadata_hash, self.is_in_log = epoch, metadata_hash, True
            case TargetMetadata(epoch, wall_ms):
                self.target_epoch, self.target_wall_ms = epoch, wall_ms
            case TargetMember(partitions):
                self.target[name] = partitions
            case ConsumerMember():
                member = self.members.get(name)
                self._put(
                    _with_current(value, self.early.pop(name, NO_CURRENT) if member is None else current_of(member))
                )
            case ConsumerCurrentAssignment():
                self._apply_current(name, value)
            case ResolvedRegex():
                self.regexes[name] = value
            case TopicsMetadata():
                self.has_partition_metadata = True
            case None:
                self._apply_tombstone(kind, name)
            case _:
                assert_never(value)

    def _apply_current(self, member_id: str, current: ConsumerCurrentAssignment) -> None:
        member = self.members.get(member_id)
        if member is not None:
            self._put(_with_current(member, current))
        else:  # after compaction the record of the member may follow
            self.early[member_id] = current

    def _apply_tombstone(self, kind: ConsumerRecordType, name: str) -> None:
        match kind:
            case ConsumerRecordType.GROUP_METADATA:
                self.epoch, self.metadata_hash, self.is_in_log = INITIAL_EPOCH, 0, False
            case ConsumerRecordType.PARTITION_METADATA:
                self.has_partition_metadata = False
            case ConsumerRecordType.MEMBER_METADATA:
                member = self.members.pop(name, None)
                if member is not None:
                    self._disown(member)
                    self._forget_instance(member)
            case ConsumerRecordType.TARGET_ASSIGNMENT_METADATA:
                self.target_epoch = self.target_wall_ms = 0
            case ConsumerRecordType.TARGET_ASSIGNMENT_MEMBER:
                self.target.pop(name, None)
            case ConsumerRecordType.CURRENT_MEMBER_ASSIGNMENT:
                self.early.pop(name, None)
                if name in self.members:
                    self._apply_current(name, NO_CURRENT)
            case ConsumerRecordType.REGULAR_EXPRESSION:
                self.regexes.pop(name, None)
            case _:
                assert_never(kind)

    def _put(self, member: ConsumerMember) -> None:
        older = self.members.get(member.member_id)
        if older is not None:
            self._disown(older)
            self._forget_instance(older)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.by_instance[member.instance_id] = member.member_id
        for partitions in (member.assigned, member.pending_revocation):
            self._own(member.member_id, partitions)

    def _forget_instance(self, member: ConsumerMember) -> None:
        if member.instance_id is not None and self.by_instance.get(member.instance_id) == member.member_id:
            del self.by_instance[member.instance_id]

    def _own(self, member_id: str, partitions: AssignedPartitions) -> None:
        for topic_id, indexes in partitions.items():
            owners = self.owners.setdefault(topic_id, {})
            for index in indexes:
                if owners.setdefault(index, member_id) != member_id:
                    self.contested.add((topic_id, index))

    def _disown(self, member: ConsumerMember) -> None:
        for partitions in (member.assigned, member.pending_revocation):
            for topic_id, indexes in partitions.items():
                owners = self.owners.get(topic_id, {})
                for index in indexes:
                    if owners.get(index) == member.member_id:
                        del owners[index]
                if not owners:
                    self.owners.pop(topic_id, None)

    # ---- Records

    def _record(self, kind: ConsumerRecordType, value: ConsumerRecordValue = None, name: str = "") -> ConsumerRecord:
        return ConsumerRecordKey(kind, self.group_id, name), value

    def deletion(self) -> list[ConsumerRecord]:
        """Return the records that delete the group, in the order that Kafka needs."""
        kinds, record, members = ConsumerRecordType, self._record, list(self.members)
        return [
            *(record(kinds.CURRENT_MEMBER_ASSIGNMENT, name=member_id) for member_id in members),
            *(record(kinds.TARGET_ASSIGNMENT_MEMBER, name=member_id) for member_id in members),
            record(kinds.TARGET_ASSIGNMENT_METADATA),
            *(record(kinds.MEMBER_METADATA, name=member_id) for member_id in members),
            *(record(kinds.REGULAR_EXPRESSION, name=regex) for regex in self.regexes),
            *([record(kinds.PARTITION_METADATA)] if self.has_partition_metadata else []),
            record(kinds.GROUP_METADATA),
        ]

    def repair(self) -> list[ConsumerRecord]:
        """Return the records that make the group consistent, which only one from a log with missing records is not."""
        kinds, record = ConsumerRecordType, self._record
        records: list[ConsumerRecord] = []
        if self.target_epoch > self.epoch:
            records.append(record(kinds.TARGET_ASSIGNMENT_METADATA, TargetMetadata(self.epoch, self.target_wall_ms)))
        taken: set[tuple[UUID, int]] = set()
        for member_id, member in self.members.items():
            current = current_of(member)
            consistent = current._replace(
                epoch=min(member.epoch, self.epoch),
                assigned=self._free(member_id, member.assigned, taken),
                pending_revocation=self._free(member_id, member.pending_revocation, taken),
            )
            if consistent != current:
                records.append(record(kinds.CURRENT_MEMBER_ASSIGNMENT, consistent, member_id))
        unknown = self.target.keys() - self.members.keys()
        unused = self.regexes.keys() - self.subscribed_regexes()
        records += (record(kinds.TARGET_ASSIGNMENT_MEMBER, name=member_id) for member_id in sorted(unknown))
        records += (record(kinds.REGULAR_EXPRESSION, name=regex) for regex in sorted(unused))
        return records

    def _free(self, member_id: str, partitions: AssignedPartitions, taken: set[tuple[UUID, int]]) -> AssignedPartitions:
        """Leave out partitions that an earlier member has too, and note the others."""
        if not self.contested:
            return partitions
        free: dict[UUID, dict[int, int]] = {}
        for topic_id, indexes in partitions.items():
            for index, epoch in indexes.items():
                if (topic_id, index) in taken:
                    log.warning("group %s: %s loses %s-%d to another member", self.group_id, member_id, topic_id, index)
                else:
                    taken.add((topic_id, index))
                    free.setdefault(topic_id, {})[index] = epoch
        return free

    def settle_owners(self) -> None:
        """Find the owners of all partitions again, after records in which some had two."""
        self.owners.clear()
        self.contested.clear()
        for member in self.members.values():
            for partitions in (member.assigned, member.pending_revocation):
                self._own(member.member_id, partitions)

    # ---- Invariants

    def check(self, *, thorough: bool = True) -> None:
        """Assert the invariants: all, or those that cost nothing. In production too: no response beats a wrong one."""
        assert 0 <= self.target_epoch <= self.epoch, f"target epoch {self.target_epoch} of epoch {self.epoch}"
        assert self.target.keys() <= self.members.keys(), "an unknown member has a part of the target"
        assert not self.contested, f"two members own {self.contested}"
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
        if self.regexes:
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


def _with_current(member: ConsumerMember, current: ConsumerCurrentAssignment) -> ConsumerMember:
    return replace(
        member,
        epoch=current.epoch,
        previous_epoch=current.previous_epoch,
        state=current.state,
        assigned=current.assigned,
        pending_revocation=current.pending_revocation,
    )
