"""Runs one classic group as a pure state machine (`groups/machine.py`): events in, outputs out.

A whole rebalance is a few plain calls in a test, and a seed replays any schedule.

A rebalance:

    Empty --first join--> PreparingRebalance --all joined, or timeout--> CompletingRebalance
      ^                     ^          |                                              |
      |                     |          no member is left                              the leader's assignment is stored
      +---------------------|----------+                                              v
                            +--a member joins, leaves or times out---------------- Stable

The generation grows once per completed rebalance. Sources: Kafka's group protocol, KIP-62 (two timeouts), KIP-134
(initial delay), KIP-345 (static members), KIP-394 (member id first), KIP-814 (skip assignment).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from ottla.core.errors import ErrorCode
from ottla.groups.classic import validation
from ottla.groups.classic.events import (
    Event,
    GroupConverted,
    GroupDisbanded,
    GroupSnapshot,
    Heartbeat,
    Join,
    JoinAnswer,
    JoinTimer,
    Leave,
    LeaveAnswer,
    Leaver,
    State,
    Sync,
    SyncAnswer,
    SyncTimer,
    Timer,
)
from ottla.groups.classic.group import AssignmentInFlight, ClassicGroup, DepartureInFlight, InFlight, ReturnInFlight
from ottla.groups.classic.members import Member, member_from
from ottla.groups.classic.records import group_key, group_value, read_group
from ottla.groups.machine import (
    NO_MEMBER,
    AppendRecords,
    CancelTimer,
    Commit,
    GroupAnswer,
    Now,
    Output,
    PlainAnswer,
    SessionTimer,
    SetTimer,
    TimerFired,
)
from ottla.internal_topics.machine_events import NO_TICKET, Loaded, NotStored, Reply, Stored
from ottla.internal_topics.topic_log import KeyValue

NEW_MEMBER_TIMEOUT_MS = 5 * 60 * 1000
"""Session timeout of a new member, which cannot send heartbeats while its first join waits (KAFKA-7610)."""

EMPTY_REBALANCE_RETRY_MS_MIN = 1_000
"""Minimum delay before a rebalance that no member joined is tried again."""

CHECKED_ALWAYS_MAX = 32
"""Up to this size a group's invariants are checked after all steps but heartbeats and commits, which only move a timer.

Those of larger groups are checked when the state changes."""


class ClassicMachine:
    """Changes the state of one group, which is in `group`: `step`, `begin_deletion` and `cancel_deletion`."""

    __slots__ = (
        "_began_ms",
        "_initial",
        "_initial_remaining_ms",
        "_joined_during_delay",
        "_members",
        "_out",
        "_snapshots",
        "_writes",
        "group",
    )

    def __init__(self, group: ClassicGroup) -> None:
        self.group = group
        self._members = group.members
        self._writes = 0
        self._snapshots: dict[int, GroupSnapshot] = {}  # of pending writes
        self._out: list[Output] = []
        # The current rebalance:
        self._began_ms = 0
        self._initial = False  # from Empty: it waits for the whole delay
        self._joined_during_delay = False
        self._initial_remaining_ms = 0

    @property
    def outline(self) -> tuple[object, ...]:
        """Return the state, the generation and the number of members."""
        return self.group.state, self.group.generation, len(self._members.by_id)

    # ---- Events

    def step(self, event: Event, *, now: Now, ticket: int = NO_TICKET) -> list[Output]:
        """Handle an event and return the outputs in order. Each ticket is answered once, now or by a later step."""
        before = self.group.state
        self._out = []
        self._dispatch(event, now, ticket)
        may_change_members = len(self._members) <= CHECKED_ALWAYS_MAX and not isinstance(event, Heartbeat | Commit)
        self.group.check(thorough=may_change_members or self.group.state is not before)
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
                assert isinstance(timer, SessionTimer | JoinTimer | SyncTimer)
                self._fired(timer, now)
            case Stored(write):
                self._stored(write, now)
            case NotStored(write, error):
                self._not_stored(write, error, now)
            case Loaded():
                self.group.restore()
                self._start_sessions(now)
            case GroupConverted(rebalance):
                self._start_sessions(now)
                if rebalance and self.group.state is State.STABLE:
                    self._prepare(now)
            case GroupDisbanded():
                self._disband()
            case _:
                assert_never(event)

    def begin_deletion(self) -> ErrorCode:
        """Prevent joins while the deletion of the group is written. Returns an error unless the group is empty."""
        if self.group.state is not State.EMPTY:
            return ErrorCode.GROUP_ID_NOT_FOUND if self.group.state is State.DEAD else ErrorCode.NON_EMPTY_GROUP
        self.group.move(State.DEAD, wall_ms=self.group.state_since_wall_ms)
        return ErrorCode.NONE

    def cancel_deletion(self) -> None:
        """Return to Empty after the write of a deletion failed."""
        self.group.move(State.EMPTY, wall_ms=self.group.state_since_wall_ms)

    # ---- Join

    def _join(self, join: Join, now: Now, ticket: int) -> None:
        if refusal := validation.validate_join(self.group, join):
            self._reply(ticket, JoinAnswer(error=refusal, member_id=join.member_id))
        elif not validation.has_room_for(self.group, join):
            if join.member_id in self._members.by_id:
                self._remove(join.member_id)
                self._after_removal(now)
            self._remove_pending(join.member_id)
            self._reply(ticket, JoinAnswer(error=ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif join.member_id != NO_MEMBER:
            self._join_again(join, now, ticket)
        elif join.instance_id is not None and join.instance_id in self._members.by_instance:
            self._static_return(join, self._members.by_instance[join.instance_id], now, ticket)
        elif join.instance_id is None and join.requires_member_id:
            self._members.pending.add(join.new_member_id)
            self._set_timer(SessionTimer(join.new_member_id), now.ms + join.session_timeout_ms)
            self._reply(ticket, JoinAnswer(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=join.new_member_id))
        else:
            self._add(join, join.new_member_id, now, ticket)

    def _join_again(self, join: Join, now: Now, ticket: int) -> None:
        if join.member_id in self._members.pending:
            self._add(join, join.member_id, now, ticket)
            return
        member = self._members.by_id[join.member_id]
        unchanged = member.protocols == join.protocols
        if self.group.state is State.COMPLETING and unchanged:  # it did not receive the response
            self._reply(ticket, self._joined(member))
        elif self.group.state is State.STABLE and unchanged and self._members.leader != member.member_id:
            self._reply(ticket, self._joined(member))  # only the leader may ask for a rebalance without a reason
        else:
            self._members.update(member, join)
            self._wait_for_rebalance(member, now, ticket)
            self._rebalance(now)

    def _add(self, join: Join, member_id: str, now: Now, ticket: int) -> None:
        if not self._members.by_id:
            self.group.protocol_type = join.protocol_type
        if self.group.state is State.PREPARING and self._initial:
            self._joined_during_delay = True
        member = member_from(join, member_id, is_new=True)
        self._members.add(member)
        self._wait_for_rebalance(member, now, ticket)
        self._set_timer(SessionTimer(member_id), now.ms + NEW_MEMBER_TIMEOUT_MS)
        self._rebalance(now)

    def _wait_for_rebalance(self, member: Member, now: Now, ticket: int) -> None:
        older = self._members.joining.pop(member.member_id, None)
        if older is not None:  # it joined again over another connection
            self._reply(older, JoinAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id))
        self._members.joining[member.member_id] = ticket
        if self.group.state is State.PREPARING and not self._initial:
            latest_ms = self._began_ms + member.rebalance_timeout_ms
            if latest_ms > max(now.ms, self.group.timers.get(JoinTimer(), 0)):
                self._set_timer(JoinTimer(), latest_ms)

    def _static_return(self, join: Join, old_id: str, now: Now, ticket: int) -> None:
        """Fence requests with the old member id; rebalance only if the chosen protocol changes, as Kafka does."""
        old_leader = self._members.leader
        self._fail_waiting(old_id, ErrorCode.FENCED_INSTANCE_ID)
        member = self._members.rename(old_id, join.new_member_id)
        self._members.update(member, join)
        self._set_timer(SessionTimer(member.member_id), now.ms + member.session_timeout_ms)
        self._wait_for_rebalance(member, now, ticket)
        same_protocol = self._members.chosen_protocol() == self.group.protocol
        if self.group.state is not State.STABLE or not same_protocol:
            self._rebalance(now)
            return
        if join.may_skip_assignment:
            answer = self._joined(member, skip_assignment=self._members.leader == member.member_id)
        else:  # an older client must not think it leads: it would assign partitions within a generation
            answer = self._joined(member, leader=old_leader)
        self._store(ReturnInFlight(member.member_id, ticket, self.group.generation, answer))

    def _joined(self, member: Member, *, leader: str | None = None, skip_assignment: bool = False) -> JoinAnswer:
        leader = leader or self._members.leader or ""
        return JoinAnswer(
            member_id=member.member_id,
            generation=self.group.generation,
            protocol_type=self.group.protocol_type,
            protocol_name=self.group.protocol,
            leader=leader,
            members=self._members.for_leader(self.group.protocol) if member.member_id == leader else (),
            skip_assignment=skip_assignment,
        )

    # ---- The rebalance

    def _rebalance(self, now: Now) -> None:
        """Start a rebalance, or complete the current one if all members have joined."""
        act = self._complete_if_all_joined if self.group.state is State.PREPARING else self._prepare
        act(now)

    def _prepare(self, now: Now) -> None:
        self._answer_syncs(ErrorCode.REBALANCE_IN_PROGRESS, now)
        self._members.not_synced.clear()
        self._cancel_timer(SyncTimer())
        self._initial = self.group.state is State.EMPTY
        self._began_ms = now.ms
        self.group.move(State.PREPARING, wall_ms=now.wall_ms)
        slowest_ms = self._members.rebalance_timeout_ms()
        if self._initial:
            delay_ms = self.group.settings.initial_rebalance_delay_ms
            self._joined_during_delay = False
            self._initial_remaining_ms = max(slowest_ms - delay_ms, 0)
            self._set_timer(JoinTimer(), now.ms + delay_ms)
        else:
            self._set_timer(JoinTimer(), now.ms + slowest_ms)
            self._complete_if_all_joined(now)

    def _complete_if_all_joined(self, now: Now) -> None:
        if self.group.state is State.PREPARING and not self._initial and self._members.all_have_joined():
            self._complete_joins(now)

    def _join_timed_out(self, now: Now) -> None:
        if self._initial and self._joined_during_delay and self._initial_remaining_ms > 0:
            delay_ms = min(self.group.settings.initial_rebalance_delay_ms, self._initial_remaining_ms)
            self._joined_during_delay = False
            self._initial_remaining_ms -= delay_ms
            self._set_timer(JoinTimer(), now.ms + delay_ms)
        else:
            self._complete_joins(now)

    def _complete_joins(self, now: Now) -> None:
        """Complete the rebalance with the members that joined. Static members stay until their session times out."""
        members = self._members
        for member_id in [name for name in members.by_id if name not in members.joining]:
            if members.by_id[member_id].instance_id is None:
                self._remove(member_id)
        if members.by_id and not members.elect_joined_leader():
            self._set_timer(JoinTimer(), now.ms + max(members.rebalance_timeout_ms(), EMPTY_REBALANCE_RETRY_MS_MIN))
            return
        self._cancel_timer(JoinTimer())
        self._initial = False
        self.group.generation += 1
        self.group.protocol = members.chosen_protocol() if members.by_id else None
        self.group.topics = self.group.subscribed_topics()
        if not members.by_id:
            self.group.move(State.EMPTY, wall_ms=now.wall_ms)
            self._store(DepartureInFlight(()))
            return
        self.group.move(State.COMPLETING, wall_ms=now.wall_ms)
        for member in members.by_id.values():
            member.assignment, member.is_new = b"", False
            self._set_timer(SessionTimer(member.member_id), now.ms + member.session_timeout_ms)
            if member.member_id in members.joining:
                self._reply(members.joining.pop(member.member_id), self._joined(member))
        members.not_synced = set(members.by_id)
        self._set_timer(SyncTimer(), now.ms + members.rebalance_timeout_ms())

    # ---- Sync

    def _sync(self, sync: Sync, now: Now, ticket: int) -> None:
        if refusal := validation.validate_sync(self.group, sync):
            self._reply(ticket, SyncAnswer(error=refusal))
            return
        members, member = self._members, self._members.by_id[sync.member_id]
        members.not_synced.discard(member.member_id)
        if not members.not_synced:
            self._cancel_timer(SyncTimer())
        if self.group.state is State.STABLE:
            self._set_timer(SessionTimer(member.member_id), now.ms + member.session_timeout_ms)
            self._reply(ticket, self._synced(member))
            return
        older = members.syncing.pop(member.member_id, None)
        if older is not None:
            self._reply(older, SyncAnswer(error=ErrorCode.REBALANCE_IN_PROGRESS))
        members.syncing[member.member_id] = ticket
        # A leader that asks twice must not change an assignment that is being written.
        if member.member_id == members.leader and not self.group.assignment_in_flight():
            given = {name: sync.assignments.get(name, b"") for name in members.by_id}
            self._store(AssignmentInFlight(self.group.generation, given))

    def _synced(self, member: Member) -> SyncAnswer:
        return SyncAnswer(
            protocol_type=self.group.protocol_type, protocol_name=self.group.protocol, assignment=member.assignment
        )

    def _answer_syncs(self, error: ErrorCode, now: Now) -> None:
        """Answer all waiting syncs and restart the sessions, which may have expired in the meantime."""
        waiting, self._members.syncing = self._members.syncing, {}
        for member_id, ticket in waiting.items():
            member = self._members.by_id[member_id]
            self._set_timer(SessionTimer(member_id), now.ms + member.session_timeout_ms)
            self._reply(ticket, SyncAnswer(error=error) if error else self._synced(member))

    # ---- Heartbeat, commit, leave

    def _heartbeat(self, beat: Heartbeat, now: Now) -> ErrorCode:
        if refusal := validation.validate_heartbeat(self.group, beat):
            return refusal
        self._keep_session(beat.member_id, now)
        return ErrorCode.REBALANCE_IN_PROGRESS if self.group.state is State.PREPARING else ErrorCode.NONE

    def _commit(self, commit: Commit, now: Now) -> ErrorCode:
        refusal = validation.validate_commit(self.group, commit)
        keeps_session = self.group.state in {State.STABLE, State.PREPARING} and not commit.is_transactional
        if refusal is ErrorCode.NONE and keeps_session:
            self._keep_session(commit.member_id, now)
        return refusal

    def _keep_session(self, member_id: str, now: Now) -> None:
        member = self._members.by_id[member_id]
        if not member.is_new:
            self._set_timer(SessionTimer(member_id), now.ms + member.session_timeout_ms)

    def _leave(self, leave: Leave, now: Now, ticket: int) -> None:
        if self.group.state is State.DEAD:
            self._reply(ticket, LeaveAnswer(error=ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        written_before = self._writes
        errors = tuple(self._leave_one(leaver) for leaver in leave.leavers)
        if ErrorCode.NONE in errors:
            self._after_removal(now)
        reply = Reply(ticket, LeaveAnswer(errors))
        if self._writes != written_before:  # the last member left: answered once that is durable
            self.group.in_flight[self._writes] = DepartureInFlight((reply,))
        else:
            self._out.append(reply)

    def _leave_one(self, leaver: Leaver) -> ErrorCode:
        member_id = leaver.member_id
        if self._remove_pending(member_id):
            return ErrorCode.NONE
        if member_id == NO_MEMBER:
            member_id = self._members.by_instance.get(leaver.instance_id or "", NO_MEMBER)
        refusal = self.group.validate_member(member_id, leaver.instance_id)
        if refusal is ErrorCode.NONE:
            self._remove(member_id)
        return refusal

    # ---- Removal

    def _remove_pending(self, member_id: str) -> bool:
        """Remove an assigned member id that is not used. Returns False if there is none."""
        if member_id not in self._members.pending:
            return False
        self._members.pending.remove(member_id)
        self._cancel_timer(SessionTimer(member_id))
        return True

    def _remove(self, member_id: str) -> None:
        self._fail_waiting(member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        self._members.remove(member_id)

    def _fail_waiting(self, member_id: str, error: ErrorCode) -> None:
        """Fail the requests that wait for this member id."""
        self._cancel_timer(SessionTimer(member_id))
        joining, syncing = self._members.joining.pop(member_id, None), self._members.syncing.pop(member_id, None)
        if joining is not None:
            fenced = error is ErrorCode.FENCED_INSTANCE_ID
            self._reply(joining, JoinAnswer(error=error, member_id=member_id if fenced else NO_MEMBER))
        if syncing is not None:
            self._reply(syncing, SyncAnswer(error=error))

    def _after_removal(self, now: Now) -> None:
        if self.group.state is not State.EMPTY:  # in an empty group only an assigned id was removed
            self._rebalance(now)

    # ---- Timers

    def _fired(self, timer: Timer, now: Now) -> None:
        if self.group.timers.get(timer, now.ms + 1) > now.ms:
            return  # it was moved or cancelled in the meantime
        del self.group.timers[timer]
        match timer:
            case SessionTimer(member_id):
                self._session_timed_out(member_id, now)
            case JoinTimer():
                self._join_timed_out(now)
            case SyncTimer():
                for member_id in [name for name in self._members.by_id if name in self._members.not_synced]:
                    self._remove(member_id)
                self._prepare(now)
            case _:
                assert_never(timer)

    def _session_timed_out(self, member_id: str, now: Now) -> None:
        members = self._members
        if self._remove_pending(member_id):
            self._complete_if_all_joined(now)
            return
        member = members.by_id[member_id]
        if not member.is_new and (member_id in members.joining or member_id in members.syncing):
            return  # it waits for a response and cannot send heartbeats; the response restarts its session
        self._remove(member_id)
        self._after_removal(now)

    def _set_timer(self, timer: Timer, at_ms: int) -> None:
        self.group.timers[timer] = at_ms
        self._out.append(SetTimer(timer, at_ms))

    def _cancel_timer(self, timer: Timer) -> None:
        if self.group.timers.pop(timer, None) is not None:
            self._out.append(CancelTimer(timer))

    # ---- Writes

    def _store(self, why: InFlight) -> None:
        self._writes += 1
        self.group.in_flight[self._writes] = why
        new = why.assignments if isinstance(why, AssignmentInFlight) else None
        snapshot = self._snapshots[self._writes] = self.group.snapshot(new)
        self._out.append(AppendRecords(self._writes, ((group_key(self.group.group_id), group_value(snapshot)),)))

    def _stored(self, write: int, now: Now) -> None:
        snapshot = self._snapshots.pop(write)
        self.group.apply(snapshot)
        match self.group.in_flight.pop(write):
            case AssignmentInFlight(generation):
                # If a member joined or left during the write, the assignment is obsolete.
                if self.group.state is State.COMPLETING and generation == self.group.generation:
                    for member in snapshot.members:
                        self._members.by_id[member.member_id].assignment = member.assignment
                    self.group.move(State.STABLE, wall_ms=now.wall_ms)
                    self._answer_syncs(ErrorCode.NONE, now)
            case ReturnInFlight() as why if self._still_waits(why):
                self._end_static_return(why, why.answer, now)
            case DepartureInFlight(replies):
                self._out.extend(replies)

    def stored_late(self, records: Sequence[KeyValue]) -> None:
        """Note that the record of a write that was reported as `NotStored` is in the log all the same."""
        for key, value in records:
            if key == group_key(self.group.group_id):  # others are of the consumer group that it was
                self.group.apply(None if value is None else read_group(value))

    def _not_stored(self, write: int, error: ErrorCode, now: Now) -> None:
        del self._snapshots[write]
        match self.group.in_flight.pop(write):
            case AssignmentInFlight(generation):
                if self.group.state is State.COMPLETING and generation == self.group.generation:
                    self._answer_syncs(error, now)
                    self._prepare(now)
            case ReturnInFlight() as why if self._still_waits(why):
                # Memory keeps the new id: the old one is fenced, and the member will request another one.
                self._end_static_return(why, JoinAnswer(error=error, member_id=NO_MEMBER), now)
            case DepartureInFlight(replies):
                # Memory is correct and the log is old: after a reload its members time out.
                self._out.extend(Reply(reply.ticket, LeaveAnswer(error=error)) for reply in replies)

    def _still_waits(self, why: ReturnInFlight) -> bool:
        """Return False if a rebalance started in the meantime, which answers the join itself."""
        same = self.group.state is State.STABLE and why.generation == self.group.generation
        return same and self._members.joining.get(why.member_id) == why.ticket

    def _end_static_return(self, why: ReturnInFlight, answer: JoinAnswer, now: Now) -> None:
        member = self._members.by_id[why.member_id]
        self._set_timer(SessionTimer(why.member_id), now.ms + member.session_timeout_ms)
        self._reply(self._members.joining.pop(why.member_id), answer)

    def _start_sessions(self, now: Now) -> None:
        for member in self._members.by_id.values():
            self._set_timer(SessionTimer(member.member_id), now.ms + member.session_timeout_ms)
        if len(self._members) > self.group.settings.max_size:
            self._prepare(now)

    def _disband(self) -> None:
        members = self._members
        for member_id in list(members.by_id):
            self._fail_waiting(member_id, ErrorCode.REBALANCE_IN_PROGRESS)
            members.remove(member_id)
        for member_id in list(members.pending):
            self._remove_pending(member_id)
        self._cancel_timer(JoinTimer())
        self._cancel_timer(SyncTimer())
        self.group.state = State.DEAD

    # ---- Outputs

    def _reply(self, ticket: int, answer: GroupAnswer) -> None:
        self._out.append(Reply(ticket, answer))
