"""Holds the state of one classic group and asserts its invariants.

The log has a classic group as it was when its leader's assignment was written, when a static member returned, or when
the last member left: that is `stored`, which `apply` alone changes, live and as the log is loaded. All else is soft
state, which `machine.py` changes; after a restart it begins with what is stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.client.consumer_protocol import CONSUMER, read_subscriptions
from ottla.core.errors import ErrorCode
from ottla.core.ids import GroupType
from ottla.groups.classic.events import (
    GroupSnapshot,
    JoinAnswer,
    JoinTimer,
    LeaveAnswer,
    MemberSnapshot,
    State,
    SyncTimer,
    Timer,
)
from ottla.groups.classic.members import GroupMembers, Member
from ottla.groups.classic.records import group_key
from ottla.groups.classic.settings import ClassicSettings
from ottla.groups.group import GroupSummary, OffsetExpiry
from ottla.groups.machine import SessionTimer
from ottla.internal_topics.machine_events import Reply
from ottla.internal_topics.topic_log import KeyValue

# Every legal state transition; `move` asserts it.
MOVES: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.PREPARING, State.DEAD}),
    State.PREPARING: frozenset({State.COMPLETING, State.EMPTY}),
    State.COMPLETING: frozenset({State.STABLE, State.PREPARING}),
    State.STABLE: frozenset({State.PREPARING}),
    State.DEAD: frozenset({State.EMPTY}),  # the write of a deletion failed
}


class AssignmentInFlight(NamedTuple):
    """A pending write of the leader's assignment for a generation."""

    generation: int
    assignments: dict[str, bytes]


class ReturnInFlight(NamedTuple):
    """A pending write of a static member's new id."""

    member_id: str
    ticket: int
    generation: int
    answer: JoinAnswer


class DepartureInFlight(NamedTuple):
    """A pending write after the group became empty; the last leaver may wait for it."""

    replies: tuple[Reply[LeaveAnswer], ...]


InFlight = AssignmentInFlight | ReturnInFlight | DepartureInFlight


@dataclass(slots=True)
class ClassicGroup:
    """Holds one group."""

    group_id: str
    settings: ClassicSettings = field(default_factory=ClassicSettings)
    stored: GroupSnapshot | None = None  # the last durable record; None: the log has none
    # Soft state:
    state: State = State.EMPTY
    state_since_wall_ms: int = -1  # -1: missing in a record of an old version
    generation: int = 0
    protocol_type: str | None = None  # kept when the group becomes empty: the expiry of its offsets depends on it
    protocol: str | None = None
    topics: frozenset[str] | None = None  # subscribed by the last generation; None: unknown
    members: GroupMembers = field(default_factory=GroupMembers)
    timers: dict[Timer, int] = field(default_factory=dict)  # deadlines of the timers that are set
    in_flight: dict[int, InFlight] = field(default_factory=dict)  # pending writes, by number

    def move(self, to: State, *, wall_ms: int) -> None:
        """Change the state; nothing else does."""
        assert to in MOVES[self.state], f"illegal move {self.state} -> {to}"
        self.state = to
        self.state_since_wall_ms = wall_ms

    def apply(self, snapshot: GroupSnapshot | None) -> None:
        """Apply a record of the group; None deletes it."""
        self.stored = snapshot

    def restore(self) -> None:
        """Begin with what is stored, after it was read from the log. `Loaded` follows, which sets the timers."""
        snapshot = self.stored
        if snapshot is None:
            return
        self.state = State.STABLE if snapshot.members else State.EMPTY
        self.state_since_wall_ms = snapshot.state_since_wall_ms
        self.generation = snapshot.generation
        self.protocol_type, self.protocol = snapshot.protocol_type or None, snapshot.protocol
        for member in snapshot.members:
            self.members.add(_member(member, snapshot.protocol or ""))
        if snapshot.leader in self.members.by_id:
            self.members.leader = snapshot.leader
        self.topics = self.subscribed_topics()

    def become_stable(self) -> None:
        """Take members into use that have an assignment from their time in a consumer group."""
        self.protocol = self.members.chosen_protocol()
        self.topics = self.subscribed_topics()
        self.state = State.STABLE

    # ---- The port `Group`

    @property
    def summary(self) -> GroupSummary:
        """Return its protocol type and state."""
        return GroupSummary(self.group_id, GroupType.CLASSIC, self.protocol_type or "", self.state.value)

    @property
    def is_unused(self) -> bool:
        """Return whether it has no member, no assigned member id and no pending write."""
        return self.state is State.EMPTY and not self.members.pending and not self.in_flight

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether members consume the topic; consumers with unknown subscriptions may consume any (KIP-211)."""
        return topic in self.topics if self.topics is not None else self.has_consumers

    def offset_expiry(self) -> OffsetExpiry | None:
        """Return when offsets expire.

        A group with a protocol keeps them while it has members, and for the retention after that; but of a stable
        consumer group those of topics to which no member subscribes expire after their commit. Without a protocol
        (consumers that assign partitions to themselves) each expires after its commit.
        """
        if self.protocol_type is None:
            return OffsetExpiry()
        if self.state is State.EMPTY:
            return OffsetExpiry(self.state_since_wall_ms if self.state_since_wall_ms >= 0 else None)
        if self.state is State.STABLE and self.has_consumers and self.topics is not None:
            return OffsetExpiry()
        return None

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:  # noqa: ARG002
        """Let every client read the offsets: a classic group does not check who fetches."""
        return ErrorCode.GROUP_ID_NOT_FOUND if self.state is State.DEAD else ErrorCode.NONE

    def validate_offset_deletion(self) -> ErrorCode:
        """Refuse the deletion while the group has members whose topics are unknown."""
        if self.state is State.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        return ErrorCode.NONE if self.state is State.EMPTY or self.has_consumers else ErrorCode.NON_EMPTY_GROUP

    def tombstones(self) -> list[KeyValue]:
        """Return the record that deletes the group from the log."""
        return [(group_key(self.group_id), None)]

    # ---- Members

    @property
    def has_consumers(self) -> bool:
        """Return whether its protocol is that of consumers, so that their subscriptions can be read."""
        return self.protocol_type == CONSUMER

    def subscribed_topics(self) -> frozenset[str] | None:
        """Decode the subscribed topics from the members' metadata; empty without members, None if unknown."""
        if self.protocol_type != CONSUMER:
            return None
        return read_subscriptions(member.metadata_for(self.protocol) for member in self.members.by_id.values())

    def assignment_in_flight(self) -> bool:
        """Return whether a write of this generation's assignment is pending."""
        return any(
            isinstance(why, AssignmentInFlight) and why.generation == self.generation for why in self.in_flight.values()
        )

    def validate_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Validate a member id; of two members with one instance id the older is fenced (KIP-345)."""
        if instance_id is not None:
            owner = self.members.by_instance.get(instance_id)
            if owner is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if owner != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members.by_id else ErrorCode.UNKNOWN_MEMBER_ID

    def snapshot(self, assignments: dict[str, bytes] | None = None) -> GroupSnapshot:
        """Return the group as it would be written, with new assignments if given."""
        return GroupSnapshot(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.members.leader,
            state_since_wall_ms=self.state_since_wall_ms,
            members=tuple(
                member.snapshot(self.protocol, member.assignment if assignments is None else assignments[name])
                for name, member in self.members.by_id.items()
            ),
        )

    def check(self, *, thorough: bool = True) -> None:
        """Assert the invariants: all, or those that cost nothing. In production too: no response beats a wrong one."""
        state, members = self.state, self.members
        if state in {State.EMPTY, State.DEAD}:
            assert not members.by_id, f"{state} with members"
        assert (JoinTimer() in self.timers) == (state is State.PREPARING), f"{state}: the join timer is wrong"
        assert (not members.syncing) or state is State.COMPLETING, f"{state}: a member waits for an assignment"
        if not thorough:
            return
        members.check()
        if state is State.COMPLETING:
            assert members.not_synced or self.assignment_in_flight(), "nothing will end this rebalance"
        assert (SyncTimer() in self.timers) == bool(members.not_synced), f"{state}: the sync timer is wrong"
        for name, member in members.by_id.items():
            watched = SessionTimer(name) in self.timers
            assert watched or name in members.joining or name in members.syncing, f"{name} could stay for ever"
            assert not member.is_new or name in members.joining, f"{name} is new and does not wait for a join"
        assert all(SessionTimer(name) in self.timers for name in members.pending), "an assigned member id never expires"
        watched_names = {timer.member_id for timer in self.timers if isinstance(timer, SessionTimer)}
        assert watched_names <= members.by_id.keys() | members.pending, "a session timer for an unknown member"
        if state not in {State.PREPARING, State.STABLE}:
            assert not members.joining, f"{state}: a member waits for a rebalance that is not running"
        if state is State.STABLE:
            returning = {why.member_id for why in self.in_flight.values() if isinstance(why, ReturnInFlight)}
            assert members.joining.keys() <= returning, "a member waits for a rebalance that is not running"


def _member(saved: MemberSnapshot, protocol: str) -> Member:
    return Member(
        saved.member_id,
        saved.instance_id,
        saved.client_id,
        saved.client_host,
        saved.session_timeout_ms,
        saved.rebalance_timeout_ms,
        ((protocol, saved.subscription),),
        saved.assignment,
    )
