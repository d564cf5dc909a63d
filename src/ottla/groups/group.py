"""What is known of one classic group, and what is always true of it. `machine.py` is the only one that changes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.core.errors import ErrorCode
from ottla.groups.consumer_protocol import CONSUMER, topics_of_all
from ottla.groups.events import (
    GroupSnapshot,
    JoinAnswer,
    JoinTimer,
    MemberSnapshot,
    Reply,
    SessionTimer,
    State,
    SyncTimer,
    Timer,
)
from ottla.groups.roster import Member, Roster

# Every legal move. `move` refuses the rest.
MOVES: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.PREPARING, State.DEAD}),
    State.PREPARING: frozenset({State.COMPLETING, State.EMPTY}),
    State.COMPLETING: frozenset({State.STABLE, State.PREPARING}),
    State.STABLE: frozenset({State.PREPARING}),
    State.DEAD: frozenset({State.EMPTY}),  # a deletion that could not be written
}


class Limits(NamedTuple):
    """What the settings say about groups."""

    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1


class AssignmentInFlight(NamedTuple):
    """Being written: the leader's assignment of this generation."""

    generation: int
    assignments: dict[str, bytes]


class ReturnInFlight(NamedTuple):
    """Being written: a static member's new name."""

    member_id: str
    ticket: int
    generation: int
    answer: JoinAnswer


class DepartureInFlight(NamedTuple):
    """Being written: the group became empty. Whoever left last may wait for it."""

    replies: tuple[Reply, ...]


InFlight = AssignmentInFlight | ReturnInFlight | DepartureInFlight


@dataclass(slots=True)
class Group:
    """One group."""

    group_id: str
    limits: Limits = field(default_factory=Limits)
    state: State = State.EMPTY
    state_since_wall_ms: int = -1  # -1: an old record did not say
    generation: int = 0
    protocol_type: str | None = None  # kept when the group empties: it says how its offsets expire
    protocol: str | None = None
    topics: frozenset[str] | None = None  # subscribed by the last generation; None: not to be known
    roster: Roster = field(default_factory=Roster)
    timers: dict[Timer, int] = field(default_factory=dict)  # what is set, and for when
    in_flight: dict[int, InFlight] = field(default_factory=dict)  # what is being written, by the number of its Store

    def move(self, to: State, *, wall_ms: int) -> None:
        """The only place where the state changes."""
        assert to in MOVES[self.state], f"illegal move {self.state} -> {to}"
        self.state = to
        self.state_since_wall_ms = wall_ms

    @property
    def forgettable(self) -> bool:
        """Nobody is in it, nobody was promised a place, nothing is being written."""
        return self.state is State.EMPTY and not self.roster.pending and not self.in_flight

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether its members consume the topic, as far as can be known. Then its offsets must stay (KIP-211)."""
        return self.topics is not None and topic in self.topics

    def subscribed_topics(self) -> frozenset[str] | None:
        """What the members' metadata for the chosen protocol says; empty without members."""
        if self.protocol_type != CONSUMER:
            return None
        return topics_of_all(member.metadata_for(self.protocol) for member in self.roster.members.values())

    def assignment_in_flight(self) -> bool:
        """Whether this generation's assignment is being written."""
        return any(
            isinstance(why, AssignmentInFlight) and why.generation == self.generation for why in self.in_flight.values()
        )

    def who_is(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Nobody may act for a member but itself; of two that claim one instance id the older is fenced (KIP-345)."""
        if instance_id is not None:
            owner = self.roster.by_instance.get(instance_id)
            if owner is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if owner != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.roster.members else ErrorCode.UNKNOWN_MEMBER_ID

    def snapshot(self, assignments: dict[str, bytes] | None = None) -> GroupSnapshot:
        """As it would be written now, or with these assignments once they are agreed."""
        return GroupSnapshot(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.roster.leader,
            state_since_wall_ms=self.state_since_wall_ms,
            members=tuple(
                member.snapshot(self.protocol, member.assignment if assignments is None else assignments[name])
                for name, member in self.roster.members.items()
            ),
        )

    def check(self, *, thorough: bool = True) -> None:
        """What is always true. Runs after every step, in production too: a wrong answer is worse than none."""
        state, roster = self.state, self.roster
        if state in {State.EMPTY, State.DEAD}:
            assert not roster.members, f"{state} with members"
        assert (JoinTimer() in self.timers) == (state is State.PREPARING), f"{state}: the join timer is wrong"
        assert (not roster.syncing) or state is State.COMPLETING, f"{state}: somebody waits for an assignment"
        if not thorough:
            return
        roster.check()
        if state is State.COMPLETING:
            assert roster.not_synced or self.assignment_in_flight(), "nobody will end this rebalance"
        assert (SyncTimer() in self.timers) == bool(roster.not_synced), f"{state}: the sync timer is wrong"
        for name, member in roster.members.items():
            watched = SessionTimer(name) in self.timers
            assert watched or name in roster.joining or name in roster.syncing, f"{name} could stay for ever"
            assert not member.is_new or name in roster.joining, f"{name} is new and does not wait"
        assert all(SessionTimer(name) in self.timers for name in roster.pending), "a promised place is never taken back"
        watched_names = {timer.member_id for timer in self.timers if isinstance(timer, SessionTimer)}
        assert watched_names <= roster.members.keys() | roster.pending, "a timer watches a stranger"
        if state not in {State.PREPARING, State.STABLE}:
            assert not roster.joining, f"{state}: somebody waits for a rebalance that is not"
        if state is State.STABLE:
            returning = {why.member_id for why in self.in_flight.values() if isinstance(why, ReturnInFlight)}
            assert roster.joining.keys() <= returning, "somebody waits for a rebalance that is not"


def restored(group_id: str, snapshot: GroupSnapshot, limits: Limits) -> Group:
    """The group as it was when the snapshot was written. Its first event must be `Loaded`, which sets the timers."""
    group = Group(
        group_id,
        limits,
        state=State.STABLE if snapshot.members else State.EMPTY,
        state_since_wall_ms=snapshot.state_since_wall_ms,
        generation=snapshot.generation,
        protocol_type=snapshot.protocol_type or None,
        protocol=snapshot.protocol,
    )
    for saved in snapshot.members:
        group.roster.add(_member(saved, snapshot.protocol or ""))
    if snapshot.leader in group.roster.members:
        group.roster.leader = snapshot.leader
    group.topics = group.subscribed_topics()
    return group


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
