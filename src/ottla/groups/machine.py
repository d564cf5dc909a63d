"""One classic consumer group, as a pure state machine: events in, outputs out (words: events.py, members: roster.py).

`step` never waits, never reads a clock, never touches a socket or a log, so a whole rebalance is a few plain calls in a
test and a seed replays any schedule. What must be written before it is announced goes out as `Store`; the shell says
`Stored` or `NotStored` later, and anything may happen in between.

A rebalance, drawn:

    Empty --first join--> PreparingRebalance --all joined, or the time is up--> CompletingRebalance
      ^                     ^          |                                              |
      |                     |          nobody is left                                 the leader's assignment is stored
      +---------------------|----------+                                              v
                            +--a member joins, leaves or falls silent------------- Stable

The generation grows once per completed rebalance. Sources: Kafka's group protocol, KIP-62 (two timeouts), KIP-134
(initial delay), KIP-345 (static members), KIP-394 (member id first), KIP-814 (skip assignment).
"""

from __future__ import annotations

from typing import assert_never

from ottla.core.errors import ErrorCode
from ottla.groups import refusals
from ottla.groups.consumer_protocol import CONSUMER, topics_of_all
from ottla.groups.events import (
    NO_MEMBER,
    NO_TICKET,
    Answer,
    CancelTimer,
    Commit,
    Event,
    Heartbeat,
    Join,
    JoinAnswer,
    JoinTimer,
    Leave,
    LeaveAnswer,
    Leaver,
    Loaded,
    NotStored,
    Now,
    Output,
    PlainAnswer,
    Reply,
    SessionTimer,
    SetTimer,
    State,
    Store,
    Stored,
    Sync,
    SyncAnswer,
    SyncTimer,
    Timer,
    TimerFired,
)
from ottla.groups.group import AssignmentInFlight, DepartureInFlight, Group, InFlight, ReturnInFlight
from ottla.groups.roster import Member, member_from

NEW_MEMBER_TIMEOUT_MS = 5 * 60 * 1000
"""A new member cannot send heartbeats while its first join waits; after this long it has gone (KAFKA-7610)."""

LOOK_AGAIN_MS_MIN = 1_000
"""A rebalance that nobody joined is looked at again no sooner, whatever timeout its members ask for."""

CHECKED_ALWAYS_MAX = 32
"""Up to so many members all invariants are checked after every step; larger groups when the state moves."""


class Machine:
    """Moves one group. All that outlives a step is in `group`; only `step`, `die` and `revive` change it."""

    __slots__ = (
        "_began_ms",
        "_initial",
        "_initial_remaining_ms",
        "_joined_during_delay",
        "_out",
        "_roster",
        "_stores",
        "group",
    )

    def __init__(self, group: Group) -> None:
        self.group = group
        self._roster = group.roster
        self._stores = 0
        self._out: list[Output] = []
        # The rebalance at hand:
        self._began_ms = 0
        self._initial = False  # from Empty: it waits out the delay, whoever has joined
        self._joined_during_delay = False
        self._initial_remaining_ms = 0

    # ---- The door --------------------------------------------------------------------------------------------

    def step(self, event: Event, *, now: Now, ticket: int = NO_TICKET) -> list[Output]:
        """What must be done, in order. A ticket is answered exactly once, by this step or by a later one."""
        before = self.group.state
        self._out = []
        self._dispatch(event, now, ticket)
        self.group.check(thorough=len(self._roster) <= CHECKED_ALWAYS_MAX or self.group.state is not before)
        outputs, self._out = self._out, []
        return outputs

    def _dispatch(self, event: Event, now: Now, ticket: int) -> None:
        match event:
            case Heartbeat():
                self._reply(ticket, PlainAnswer(self._heartbeat(event, now)))
            case Commit():
                self._reply(ticket, PlainAnswer(self._commit(event, now)))
            case Join():
                self._join(event, now, ticket)
            case Sync():
                self._sync(event, now, ticket)
            case Leave():
                self._leave(event, now, ticket)
            case TimerFired(timer):
                self._fired(timer, now)
            case Stored(store):
                self._stored(store, now)
            case NotStored(store, error):
                self._not_stored(store, error, now)
            case Loaded():
                self._loaded(now)
            case _:
                assert_never(event)

    def die(self) -> ErrorCode:
        """The group is to be deleted: nothing may join it while that is being written. Refused unless it is empty."""
        if self.group.state is not State.EMPTY:
            return ErrorCode.GROUP_ID_NOT_FOUND if self.group.state is State.DEAD else ErrorCode.NON_EMPTY_GROUP
        self.group.move(State.DEAD, wall_ms=self.group.state_since_wall_ms)
        return ErrorCode.NONE

    def revive(self) -> None:
        """The deletion could not be written."""
        self.group.move(State.EMPTY, wall_ms=self.group.state_since_wall_ms)

    # ---- Join ------------------------------------------------------------------------------------------------

    def _join(self, join: Join, now: Now, ticket: int) -> None:
        if refusal := refusals.why_not_join(self.group, join):
            self._reply(ticket, JoinAnswer(error=refusal, member_id=join.member_id))
        elif not refusals.has_room_for(self.group, join):
            if join.member_id in self._roster.members:
                self._remove(join.member_id)
                self._after_removal(now)
            self._take_back(join.member_id)
            self._reply(ticket, JoinAnswer(error=ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif join.member_id != NO_MEMBER:
            self._join_again(join, now, ticket)
        elif join.instance_id is not None and join.instance_id in self._roster.by_instance:
            self._static_return(join, self._roster.by_instance[join.instance_id], now, ticket)
        elif join.instance_id is None and join.must_know_its_id:
            self._roster.pending.add(join.new_member_id)
            self._set_timer(SessionTimer(join.new_member_id), now.ms + join.session_timeout_ms)
            self._reply(ticket, JoinAnswer(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=join.new_member_id))
        else:
            self._add(join, join.new_member_id, now, ticket)

    def _join_again(self, join: Join, now: Now, ticket: int) -> None:
        if join.member_id in self._roster.pending:
            self._add(join, join.member_id, now, ticket)
            return
        member = self._roster.members[join.member_id]
        unchanged = member.protocols == join.protocols
        if self.group.state is State.COMPLETING and unchanged:  # it did not get our answer
            self._reply(ticket, self._joined(member))
        elif self.group.state is State.STABLE and unchanged and self._roster.leader != member.member_id:
            self._reply(ticket, self._joined(member))  # only the leader may ask for a rebalance without a reason
        else:
            self._roster.update(member, join)
            self._wait_for_rebalance(member, now, ticket)
            self._rebalance(now)

    def _add(self, join: Join, member_id: str, now: Now, ticket: int) -> None:
        if not self._roster.members:
            self.group.protocol_type = join.protocol_type
        if self.group.state is State.PREPARING and self._initial:
            self._joined_during_delay = True
        member = member_from(join, member_id, is_new=True)
        self._roster.add(member)
        self._wait_for_rebalance(member, now, ticket)
        self._set_timer(SessionTimer(member_id), now.ms + NEW_MEMBER_TIMEOUT_MS)
        self._rebalance(now)

    def _wait_for_rebalance(self, member: Member, now: Now, ticket: int) -> None:
        older = self._roster.joining.pop(member.member_id, None)
        if older is not None:  # it asked again over another connection
            self._reply(older, JoinAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id))
        self._roster.joining[member.member_id] = ticket
        if self.group.state is State.PREPARING and not self._initial:
            latest_ms = self._began_ms + member.rebalance_timeout_ms
            if latest_ms > max(now.ms, self.group.timers.get(JoinTimer(), 0)):
                self._set_timer(JoinTimer(), latest_ms)

    def _static_return(self, join: Join, old_id: str, now: Now, ticket: int) -> None:
        """Whoever still speaks under the old name is fenced. A rebalance only if the work may change hands."""
        old_leader = self._roster.leader
        self._dismiss(old_id, ErrorCode.FENCED_INSTANCE_ID)
        member = self._roster.rename(old_id, join.new_member_id)
        topics_before = self._topics(member)
        self._roster.update(member, join)
        self._set_timer(SessionTimer(member.member_id), now.ms + member.session_timeout_ms)
        self._wait_for_rebalance(member, now, ticket)
        same_protocol = self._roster.chosen_protocol() == self.group.protocol
        if self.group.state is not State.STABLE or not same_protocol or self._topics(member) != topics_before:
            self._rebalance(now)
            return
        if join.may_skip_assignment:
            answer = self._joined(member, skip_assignment=self._roster.leader == member.member_id)
        else:  # an older client must not think it leads: it would share out the work in the midst of a generation
            answer = self._joined(member, leader=old_leader)
        self._store(ReturnInFlight(member.member_id, ticket, self.group.generation, answer))

    def _topics(self, member: Member) -> frozenset[str] | None:
        """What a consumer subscribes to; None if that cannot be known, and then nobody cares whether it changed."""
        consumers = self.group.protocol_type == CONSUMER
        return topics_of_all([member.metadata_for(self.group.protocol)]) if consumers else None

    def _joined(self, member: Member, *, leader: str | None = None, skip_assignment: bool = False) -> JoinAnswer:
        leader = leader or self._roster.leader or ""
        return JoinAnswer(
            member_id=member.member_id,
            generation=self.group.generation,
            protocol_type=self.group.protocol_type,
            protocol_name=self.group.protocol,
            leader=leader,
            members=self._roster.as_leader_sees(self.group.protocol) if member.member_id == leader else (),
            skip_assignment=skip_assignment,
        )

    # ---- The rebalance ---------------------------------------------------------------------------------------

    def _rebalance(self, now: Now) -> None:
        """Begin one, or see whether the one at hand is complete."""
        act = self._complete_if_all_joined if self.group.state is State.PREPARING else self._prepare
        act(now)

    def _prepare(self, now: Now) -> None:
        self._answer_syncs(ErrorCode.REBALANCE_IN_PROGRESS, now)
        self._roster.not_synced.clear()
        self._cancel_timer(SyncTimer())
        self._initial = self.group.state is State.EMPTY
        self._began_ms = now.ms
        self.group.move(State.PREPARING, wall_ms=now.wall_ms)
        slowest_ms = self._roster.rebalance_timeout_ms()
        if self._initial:
            delay_ms = self.group.limits.initial_rebalance_delay_ms
            self._joined_during_delay = False
            self._initial_remaining_ms = max(slowest_ms - delay_ms, 0)
            self._set_timer(JoinTimer(), now.ms + delay_ms)
        else:
            self._set_timer(JoinTimer(), now.ms + slowest_ms)
            self._complete_if_all_joined(now)

    def _complete_if_all_joined(self, now: Now) -> None:
        if self.group.state is State.PREPARING and not self._initial and self._roster.all_have_joined():
            self._complete_joins(now)

    def _join_time_is_up(self, now: Now) -> None:
        if self._initial and self._joined_during_delay and self._initial_remaining_ms > 0:
            delay_ms = min(self.group.limits.initial_rebalance_delay_ms, self._initial_remaining_ms)
            self._joined_during_delay = False
            self._initial_remaining_ms -= delay_ms
            self._set_timer(JoinTimer(), now.ms + delay_ms)
        else:
            self._complete_joins(now)

    def _complete_joins(self, now: Now) -> None:
        """Go on with those who came. Static members keep their place until their session runs out."""
        roster = self._roster
        for member_id in [name for name in roster.members if name not in roster.joining]:
            if roster.members[member_id].instance_id is None:
                self._remove(member_id)
        if roster.members and not roster.elect_joined_leader():
            self._set_timer(JoinTimer(), now.ms + max(roster.rebalance_timeout_ms(), LOOK_AGAIN_MS_MIN))
            return
        self._cancel_timer(JoinTimer())
        self._initial = False
        self.group.generation += 1
        self.group.protocol = roster.chosen_protocol() if roster.members else None
        self.group.topics = self.group.subscribed_topics()
        if not roster.members:
            self.group.move(State.EMPTY, wall_ms=now.wall_ms)
            self._store(DepartureInFlight(()))
            return
        self.group.move(State.COMPLETING, wall_ms=now.wall_ms)
        for member in roster.members.values():
            member.assignment, member.is_new = b"", False
            self._set_timer(SessionTimer(member.member_id), now.ms + member.session_timeout_ms)
            if member.member_id in roster.joining:
                self._reply(roster.joining.pop(member.member_id), self._joined(member))
        roster.not_synced = set(roster.members)
        self._set_timer(SyncTimer(), now.ms + roster.rebalance_timeout_ms())

    # ---- Sync ------------------------------------------------------------------------------------------------

    def _sync(self, sync: Sync, now: Now, ticket: int) -> None:
        if refusal := refusals.why_not_sync(self.group, sync):
            self._reply(ticket, SyncAnswer(error=refusal))
            return
        roster, member = self._roster, self._roster.members[sync.member_id]
        roster.not_synced.discard(member.member_id)
        if not roster.not_synced:
            self._cancel_timer(SyncTimer())
        if self.group.state is State.STABLE:
            self._set_timer(SessionTimer(member.member_id), now.ms + member.session_timeout_ms)
            self._reply(ticket, self._synced(member))
            return
        older = roster.syncing.pop(member.member_id, None)
        if older is not None:
            self._reply(older, SyncAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS))
        roster.syncing[member.member_id] = ticket
        # A leader that asks twice must not change an assignment that is being written.
        if member.member_id == roster.leader and not self.group.assignment_in_flight():
            given = {name: sync.assignments.get(name, b"") for name in roster.members}
            self._store(AssignmentInFlight(self.group.generation, given))

    def _synced(self, member: Member) -> SyncAnswer:
        return SyncAnswer(
            protocol_type=self.group.protocol_type, protocol_name=self.group.protocol, assignment=member.assignment
        )

    def _answer_syncs(self, error: ErrorCode, now: Now) -> None:
        """Everybody who waits for an assignment. Their sessions may have run out while they waited, so they restart."""
        waiting, self._roster.syncing = self._roster.syncing, {}
        for member_id, ticket in waiting.items():
            member = self._roster.members[member_id]
            self._set_timer(SessionTimer(member_id), now.ms + member.session_timeout_ms)
            self._reply(ticket, SyncAnswer(error=error) if error else self._synced(member))

    # ---- Heartbeat, commit, leave ----------------------------------------------------------------------------

    def _heartbeat(self, beat: Heartbeat, now: Now) -> ErrorCode:
        if refusal := refusals.why_not_alive(self.group, beat):
            return refusal
        self._keep_session(beat.member_id, now)
        return ErrorCode.REBALANCE_IN_PROGRESS if self.group.state is State.PREPARING else ErrorCode.NONE

    def _commit(self, commit: Commit, now: Now) -> ErrorCode:
        refusal = refusals.why_not_commit(self.group, commit)
        if refusal is ErrorCode.NONE and not refusals.commits_alone(self.group, commit):
            self._keep_session(commit.member_id, now)
        return refusal

    def _keep_session(self, member_id: str, now: Now) -> None:
        member = self._roster.members[member_id]
        if not member.is_new:
            self._set_timer(SessionTimer(member_id), now.ms + member.session_timeout_ms)

    def _leave(self, leave: Leave, now: Now, ticket: int) -> None:
        if self.group.state is State.DEAD:
            self._reply(ticket, LeaveAnswer(error=ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        stored_before = self._stores
        errors = tuple(self._leave_one(leaver) for leaver in leave.leavers)
        if ErrorCode.NONE in errors:
            self._after_removal(now)
        reply = Reply(ticket, LeaveAnswer(errors))
        if self._stores != stored_before:  # the last one left: answered when that is written
            self.group.in_flight[self._stores] = DepartureInFlight((reply,))
        else:
            self._out.append(reply)

    def _leave_one(self, leaver: Leaver) -> ErrorCode:
        member_id = leaver.member_id
        if self._take_back(member_id):
            return ErrorCode.NONE
        if member_id == NO_MEMBER:
            member_id = self._roster.by_instance.get(leaver.instance_id or "", NO_MEMBER)
        refusal = self.group.who_is(member_id, leaver.instance_id)
        if refusal is ErrorCode.NONE:
            self._remove(member_id)
        return refusal

    # ---- Those who go ----------------------------------------------------------------------------------------

    def _take_back(self, member_id: str) -> bool:
        """A member id that was given out and is not wanted. False if it was none."""
        if member_id not in self._roster.pending:
            return False
        self._roster.pending.remove(member_id)
        self._cancel_timer(SessionTimer(member_id))
        return True

    def _remove(self, member_id: str) -> None:
        self._dismiss(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        self._roster.remove(member_id)

    def _dismiss(self, member_id: str, error: ErrorCode) -> None:
        """Nobody answers to this name any more: whoever waits under it hears why."""
        self._cancel_timer(SessionTimer(member_id))
        joining, syncing = self._roster.joining.pop(member_id, None), self._roster.syncing.pop(member_id, None)
        if joining is not None:
            fenced = error is ErrorCode.FENCED_INSTANCE_ID
            self._reply(joining, JoinAnswer(error=error, member_id=member_id if fenced else NO_MEMBER))
        if syncing is not None:
            self._reply(syncing, SyncAnswer(error=error))

    def _after_removal(self, now: Now) -> None:
        if self.group.state is not State.EMPTY:  # of an empty group only a promised place was taken back
            self._rebalance(now)

    # ---- Timers ----------------------------------------------------------------------------------------------

    def _fired(self, timer: Timer, now: Now) -> None:
        if self.group.timers.get(timer, now.ms + 1) > now.ms:
            return  # it was moved or cancelled while it was on its way
        del self.group.timers[timer]
        match timer:
            case SessionTimer(member_id):
                self._session_ran_out(member_id, now)
            case JoinTimer():
                self._join_time_is_up(now)
            case SyncTimer():
                for member_id in [name for name in self._roster.members if name in self._roster.not_synced]:
                    self._remove(member_id)
                self._prepare(now)
            case _:
                assert_never(timer)

    def _session_ran_out(self, member_id: str, now: Now) -> None:
        roster = self._roster
        if self._take_back(member_id):
            self._complete_if_all_joined(now)
            return
        member = roster.members[member_id]
        if not member.is_new and (member_id in roster.joining or member_id in roster.syncing):
            return  # it waits for us, so it cannot send heartbeats; the answer starts a new session
        self._remove(member_id)
        self._after_removal(now)

    def _set_timer(self, timer: Timer, at_ms: int) -> None:
        self.group.timers[timer] = at_ms
        self._out.append(SetTimer(timer, at_ms))

    def _cancel_timer(self, timer: Timer) -> None:
        if self.group.timers.pop(timer, None) is not None:
            self._out.append(CancelTimer(timer))

    # ---- What is written -------------------------------------------------------------------------------------

    def _store(self, why: InFlight) -> None:
        self._stores += 1
        self.group.in_flight[self._stores] = why
        new = why.assignments if isinstance(why, AssignmentInFlight) else None
        self._out.append(Store(self._stores, self.group.snapshot(new)))

    def _stored(self, store: int, now: Now) -> None:
        match self.group.in_flight.pop(store):
            case AssignmentInFlight(generation, assignments):
                # While it was being written a member may have come or gone. Then this is history.
                if self.group.state is State.COMPLETING and generation == self.group.generation:
                    for member_id, assignment in assignments.items():
                        self._roster.members[member_id].assignment = assignment
                    self.group.move(State.STABLE, wall_ms=now.wall_ms)
                    self._answer_syncs(ErrorCode.NONE, now)
            case ReturnInFlight() as why if self._still_waits(why):
                self._end_static_return(why, why.answer, now)
            case DepartureInFlight(replies):
                self._out.extend(replies)

    def _not_stored(self, store: int, error: ErrorCode, now: Now) -> None:
        match self.group.in_flight.pop(store):
            case AssignmentInFlight(generation):
                if self.group.state is State.COMPLETING and generation == self.group.generation:
                    self._answer_syncs(error, now)
                    self._prepare(now)
            case ReturnInFlight() as why if self._still_waits(why):
                # Its new name stands in memory: the old one may not come back, and it will ask for another one.
                self._end_static_return(why, JoinAnswer(error=error, member_id=NO_MEMBER), now)
            case DepartureInFlight(replies):
                # Memory is right and the log is old: read back, it would show members who then fall silent.
                self._out.extend(Reply(reply.ticket, LeaveAnswer(error=error)) for reply in replies)

    def _still_waits(self, why: ReturnInFlight) -> bool:
        """False if a rebalance began meanwhile: it answers, or has answered."""
        same = self.group.state is State.STABLE and why.generation == self.group.generation
        return same and self._roster.joining.get(why.member_id) == why.ticket

    def _end_static_return(self, why: ReturnInFlight, answer: JoinAnswer, now: Now) -> None:
        member = self._roster.members[why.member_id]
        self._set_timer(SessionTimer(why.member_id), now.ms + member.session_timeout_ms)
        self._reply(self._roster.joining.pop(why.member_id), answer)

    def _loaded(self, now: Now) -> None:
        for member in self._roster.members.values():
            self._set_timer(SessionTimer(member.member_id), now.ms + member.session_timeout_ms)
        if len(self._roster) > self.group.limits.max_size:
            self._prepare(now)

    # ---- Always ----------------------------------------------------------------------------------------------

    def _reply(self, ticket: int, answer: Answer) -> None:
        self._out.append(Reply(ticket, answer))
