"""Runs one consumer group (KIP-848) as a pure state machine (`groups/machine.py`): events in, outputs out.

A heartbeat does three things:

    1. It adds or changes a member. If a subscription or the metadata of a topic changed, the group's epoch grows.
    2. If the group's epoch is newer than that of the target assignment, the assignor computes a new target.
    3. It moves the member towards its part of the target: what it must release first, then what it gets. A partition
       is given to a member only when no other member has it, so no partition ever has two owners.

When changes are written and requests answered: `modern/machine.py`.

Members of the classic protocol may be in the group (KIP-848's online migration): they join, sync and send heartbeats as
in a classic group, with the member's epoch as generation. When the last member of the new protocol leaves, the group
becomes a classic one again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import replace
from typing import assert_never
from uuid import UUID

from ottla.client.consumer_protocol import CONSUMER, MalformedConsumerProtocol, decode_subscription
from ottla.core.errors import ErrorCode
from ottla.core.ids import TopicPartition
from ottla.core.regexes import invalid_regex_message, matching_topics, why_invalid
from ottla.groups.assignors.spec import Partitions
from ottla.groups.classic.events import (
    GroupConverted,
    Heartbeat,
    Join,
    JoinAnswer,
    Leave,
    LeaveAnswer,
    Sync,
    SyncAnswer,
)
from ottla.groups.classic.machine import ClassicMachine
from ottla.groups.consumer import records, validation
from ottla.groups.consumer.conversion import classic_machine, member_assignment
from ottla.groups.consumer.events import (
    NO_TIMEOUT_MS,
    STATIC_LEAVE_EPOCH,
    Event,
    MemberHeartbeat,
    MemberJoinTimer,
    MemberSyncTimer,
    RebalanceTimer,
    RegexesResolved,
)
from ottla.groups.consumer.group import CHECKED_ALWAYS_MAX, ConsumerGroup
from ottla.groups.consumer.member import ClassicProtocol, ConsumerMember, MemberState, without_epochs
from ottla.groups.consumer.reconciliation import Goal, reconcile
from ottla.groups.consumer.records import (
    ConsumerRecord,
    ConsumerRecordKey,
    ConsumerRecordType,
    ConsumerRecordValue,
    ResolvedRegex,
    current_of,
)
from ottla.groups.consumer.settings import ASSIGNORS, ConsumerSettings, MigrationPolicy
from ottla.groups.machine import (
    NO_MEMBER,
    Commit,
    Compute,
    GroupAnswer,
    Now,
    Output,
    PlainAnswer,
    Replace,
    SessionTimer,
    TimerFired,
)
from ottla.groups.modern.events import JOIN_EPOCH, HeartbeatAnswer, RequestRefused, TopicsChanged
from ottla.groups.modern.machine import ModernMachine
from ottla.groups.modern.records import GroupMetadata, TargetMember, TargetMetadata
from ottla.groups.modern.target_assignment import MemberSubscription, compute_target
from ottla.groups.modern.topics import TopicsImage
from ottla.internal_topics.machine_events import NO_TICKET, Loaded, NotStored, Reply, Stored
from ottla.internal_topics.topic_log import KeyValue

REGEX_REFRESH_MS_MIN = 10_000
"""Minimum interval between two resolutions of the regular expressions: new members and topics are collected."""

_NEVER_WALL_MS = -(2**62)

_UNKNOWN_STATE = (
    "The consumer group member is in a unknown state. The member must abandon all its partitions and rejoin."
)


class ConsumerMachine(ModernMachine[ConsumerGroup]):
    """Changes the state of one group, which is in `group`. `settings` and `topics` may be replaced between events."""

    __slots__ = ("_replacement", "_resolved_with", "_resolving", "settings")

    def __init__(
        self,
        group: ConsumerGroup,
        settings: ConsumerSettings,
        topics: TopicsImage,
        first_records: Iterable[KeyValue] = (),
    ) -> None:
        super().__init__(group, topics, first_records)
        self.settings = settings
        self._replacement: tuple[ClassicMachine, GroupConverted] | None = None  # the group became a classic one
        self._resolving = False  # regular expressions are being resolved
        self._resolved_with: dict[str, int] = {}  # the version of the topics' image, by regular expression

    # ---- Records

    def _apply(self, record: ConsumerRecord) -> None:
        """Change the group by a record."""
        self.group.apply(record)
        self._records.append(records.encode(record))

    def _change(self, kind: ConsumerRecordType, value: ConsumerRecordValue = None, name: str = "") -> None:
        """Change the group by a record; None deletes."""
        self._apply((ConsumerRecordKey(kind, self.group.group_id, name), value))

    def _change_epoch(self, metadata: GroupMetadata) -> None:
        if self.group.has_partition_metadata:
            self._change(ConsumerRecordType.PARTITION_METADATA)
        self._change(ConsumerRecordType.GROUP_METADATA, metadata)

    def _change_target_epoch(self, metadata: TargetMetadata) -> None:
        self._change(ConsumerRecordType.TARGET_ASSIGNMENT_METADATA, metadata)

    def _change_target(self, member_id: str, target: TargetMember) -> None:
        self._change(ConsumerRecordType.TARGET_ASSIGNMENT_MEMBER, target, member_id)

    def _change_subscription(self, member: ConsumerMember) -> None:
        self._change(ConsumerRecordType.MEMBER_METADATA, member, member.member_id)

    def _change_current(self, member: ConsumerMember) -> None:
        self._change(ConsumerRecordType.CURRENT_MEMBER_ASSIGNMENT, current_of(member), member.member_id)

    # ---- Events

    def step(self, event: Event, *, now: Now, ticket: int = NO_TICKET) -> list[Output]:
        """Handle an event and return the outputs in order. Each ticket is answered once, now or by a later step."""
        group = self.group
        target_epoch = group.target_epoch
        self._out = []
        try:
            self._dispatch(event, now, ticket)
        except RequestRefused as refusal:
            self._out.append(Reply(ticket, _refusal(event, refusal)))
        if self._replacement is not None:
            self._store()  # it deletes all records of the group, so it need not wait for a pending write
            self._out.append(Replace(*self._replacement, self._writes))
            self._replacement = None
        self._write(event)
        may_change_members = len(group.members) <= CHECKED_ALWAYS_MAX and not isinstance(event, Commit)
        group.check(thorough=may_change_members or group.target_epoch != target_epoch)
        outputs, self._out = self._out, []
        return outputs

    def _dispatch(self, event: Event, now: Now, ticket: int) -> None:
        match event:
            case MemberHeartbeat():
                handle = self._leave if validation.is_leave(event.member_epoch) else self._heartbeat
                handle(event, now, ticket)
            case Commit():
                self._out.append(Reply(ticket, validation.validate_commit(self.group, event)))
            case Join():
                self._classic_join(event, now, ticket)
            case Sync():
                self._classic_sync(event, now, ticket)
            case Heartbeat():
                self._classic_heartbeat(event, now, ticket)
            case Leave():
                self._classic_leave(event, now, ticket)
            case TimerFired(timer):
                self._fired(timer, now)
            case TopicsChanged(topics):
                self._refresh_requested |= not topics.isdisjoint(self.group.topics())
            case RegexesResolved():
                self._regexes_resolved(event, now)
            case Stored(write):
                self._stored(write)
            case NotStored(write, error):
                self._not_stored(write, error)
            case Loaded():
                self._loaded(now)
            case _:
                assert_never(event)

    # ---- Heartbeats of the new protocol

    def _heartbeat(self, beat: MemberHeartbeat, now: Now, ticket: int) -> None:
        joins = beat.member_epoch == JOIN_EPOCH
        member_id = beat.member_id or beat.new_member_id
        self._validate_alive_and_size(beat.member_id)
        before = self._member_for(beat, member_id)
        if before.state is MemberState.UNKNOWN and (beat.owned is None or beat.owned):
            raise RequestRefused(ErrorCode.FENCED_MEMBER_EPOCH, _UNKNOWN_STATE)
        after = _with_request(before, beat)
        self._validate_regex(before, after)
        known = self.group.members.get(member_id)
        if beat.instance_id is not None:
            self._replace_static_member(before, beat.instance_id)
        member = self._change_member(before, after)
        self._resolve_regexes(now, beat.may_describe)
        self._update_target(now)
        member = self._reconcile(member, beat.owned, now, subscription_changed=_subscription_changed(before, after))
        if known is not None:
            self._follow_protocol(known, member, now)
        self._set_timer(SessionTimer(member_id), now.ms + self.settings.session_timeout_ms)
        assignment = without_epochs(member.assigned)
        shows_assignment = joins or beat.is_full or assignment != without_epochs(before.assigned)
        self._reply(
            ticket,
            HeartbeatAnswer(
                member_id=member_id,
                member_epoch=member.epoch,
                heartbeat_interval_ms=self.settings.heartbeat_interval_ms,
                assignment=assignment if shows_assignment else None,
            ),
        )

    def _validate_alive_and_size(self, member_id: str) -> None:
        group = self.group
        if group.is_dead:
            raise RequestRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if len(group.members) >= self.settings.max_size and member_id not in group.members:
            raise RequestRefused(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {self.settings.max_size} members.",
            )

    def _member_for(self, beat: MemberHeartbeat, member_id: str) -> ConsumerMember:
        """Return the member that the request comes from, or that it creates. Raises RequestRefused."""
        group, joins = self.group, beat.member_epoch == JOIN_EPOCH
        if beat.instance_id is None:
            member = group.members.get(member_id) if joins else group.existing_member(member_id)
        elif joins:
            validation.validate_released(group, member_id, beat.instance_id)
            return self._static_member_for(member_id, beat.instance_id)
        else:
            member = validation.existing_static_member(group, member_id, beat.instance_id)
        if member is None:
            return ConsumerMember(member_id=member_id)
        validation.validate_epoch(member, beat.member_epoch, beat.owned)
        return member

    def _static_member_for(self, member_id: str, instance_id: str) -> ConsumerMember:
        """Return a joining static member; one that replaces another has the partitions of that one."""
        existing = self.group.static_member(instance_id)
        if existing is None:
            return self.group.members.get(member_id) or ConsumerMember(member_id=member_id)
        return replace(existing, member_id=member_id, epoch=0, previous_epoch=0)

    def _replace_static_member(self, member: ConsumerMember, instance_id: str) -> None:
        """Give the partitions of the static member that left to the one that joins with its instance id.

        That one may be in the group already, without an instance id or with another one. It has joined again, so that
        what it had is free.
        """
        group, member_id = self.group, member.member_id
        older, known = group.static_member(instance_id), group.members.get(member_id)
        if older is None or older.member_id == member_id:
            return
        target = group.target_of(older.member_id)
        self._remove(older)
        self._change_subscription(member)
        self._change_target(member_id, TargetMember(target))
        self._change_current(member)
        if known is not None and known.regex and not group.subscribers(known.regex):
            self._forget_regex(known.regex)

    def _follow_protocol(self, before: ConsumerMember, member: ConsumerMember, now: Now) -> None:
        """Cancel the timers of the protocol that a member of the group used until now, and set those of the other."""
        if (before.classic is None) == (member.classic is None):
            return
        rebalance = RebalanceTimer(member.member_id)
        if member.classic is not None:
            self._cancel_timer(rebalance)
            return
        self._cancel_timer(MemberJoinTimer(member.member_id))
        self._cancel_timer(MemberSyncTimer(member.member_id))
        if member.state is MemberState.UNREVOKED_PARTITIONS and rebalance not in self.group.timers:
            self._set_timer(rebalance, now.ms + member.rebalance_timeout_ms)

    def _validate_regex(self, before: ConsumerMember, after: ConsumerMember) -> None:
        """Refuse an invalid regular expression. One that the group has already is valid."""
        if not after.regex or after.regex == before.regex or self.group.subscribers(after.regex):
            return
        reason = why_invalid(after.regex)
        if reason is not None:
            raise RequestRefused(ErrorCode.INVALID_REGULAR_EXPRESSION, invalid_regex_message(after.regex, reason))

    def _change_member(self, before: ConsumerMember, after: ConsumerMember) -> ConsumerMember:
        """Put the member into the group, and increase the group's epoch if subscriptions or topics changed."""
        group = self.group
        if after is not before or before.member_id not in group.members:
            self._change_subscription(after)
        increase = group.target_epoch == 0 or after.topics != before.topics
        if after.regex != before.regex:
            if before.regex and not group.subscribers(before.regex):
                self._forget_regex(before.regex)
            # A new expression is resolved first; then the epoch grows.
            increase |= after.regex in group.regexes or (bool(before.regex) and not after.regex)
        if increase or self._refresh_requested:
            self._update_epoch(increase=increase)
        return after

    def _leave(self, beat: MemberHeartbeat, now: Now, ticket: int) -> None:
        group = self.group
        if beat.instance_id is None:
            member = group.existing_member(beat.member_id)
        else:
            member = validation.existing_static_member(group, beat.member_id, beat.instance_id)
        if beat.instance_id is not None and beat.member_epoch == STATIC_LEAVE_EPOCH:
            self._change_current(replace(member, epoch=STATIC_LEAVE_EPOCH, pending_revocation={}))
            self._cancel_timer(RebalanceTimer(member.member_id))
        else:
            self._fence([member], now)
        self._reply(ticket, HeartbeatAnswer(member_id=beat.member_id, member_epoch=beat.member_epoch))

    # ---- Target and reconciliation

    def _update_target(self, now: Now) -> None:
        """Compute the target assignment of a newer epoch, unless the last one was computed just before."""
        group, settings = self.group, self.settings
        if group.target_epoch >= group.epoch:
            return
        is_first = group.target_wall_ms == 0 or settings.assignment_interval_ms == 0
        if not is_first and now.wall_ms < group.target_wall_ms + settings.assignment_interval_ms:
            return
        name = group.preferred_assignor()
        assignor = ASSIGNORS[name if name in settings.assignors else settings.assignors[0]]
        subscriptions = {
            member_id: MemberSubscription(group.topics_of(member), member.instance_id, member.rack_id)
            for member_id, member in group.members.items()
        }
        self._set_target(compute_target(assignor, subscriptions, group.target, self.topics), now)

    def _reconcile(
        self, member: ConsumerMember, owned: Partitions | None, now: Now, *, subscription_changed: bool
    ) -> ConsumerMember:
        group = self.group
        if not subscription_changed and member.is_reconciled_to(group.target_epoch):
            return member
        goal = Goal(
            target=group.target_of(member.member_id),
            target_epoch=group.target_epoch,
            subscribed=self._topic_ids(group.topics_of(member)),
            subscription_changed=subscription_changed,
            is_owned=group.is_owned,
        )
        after = reconcile(member, goal, owned)
        if after is member:
            return member
        self._change_current(after)
        if after.classic is None and after.state is MemberState.UNREVOKED_PARTITIONS:
            self._set_timer(RebalanceTimer(after.member_id), now.ms + after.rebalance_timeout_ms)
        else:
            self._cancel_timer(RebalanceTimer(after.member_id))
        return after

    def _topic_ids(self, names: Iterable[str]) -> frozenset[UUID]:
        return frozenset(topic.topic_id for name in names if (topic := self.topics.get(name)) is not None)

    # ---- Removal

    def _fence(self, members: Collection[ConsumerMember], now: Now) -> None:
        """Remove members. Their partitions are free at once."""
        if self._may_downgrade(members):
            for member in members:
                self._remove(member)
            self._downgrade(now, rebalance=True)
            return
        for member in members:
            self._remove(member)
        for regex in sorted({member.regex for member in members if member.regex}):
            if not self.group.subscribers(regex):
                self._forget_regex(regex)
        self._update_epoch(increase=True)
        self._complete_if_empty()

    def _remove(self, member: ConsumerMember) -> None:
        member_id = member.member_id
        for timer in (
            SessionTimer(member_id),
            RebalanceTimer(member_id),
            MemberJoinTimer(member_id),
            MemberSyncTimer(member_id),
        ):
            self._cancel_timer(timer)
        for kind in (
            ConsumerRecordType.CURRENT_MEMBER_ASSIGNMENT,
            ConsumerRecordType.TARGET_ASSIGNMENT_MEMBER,
            ConsumerRecordType.MEMBER_METADATA,
        ):
            self._change(kind, name=member_id)

    def _may_downgrade(self, leaving: Collection[ConsumerMember]) -> bool:
        """Return whether only members of the classic protocol remain, in a group that may become a classic one."""
        remaining = len(self.group.members) - len(leaving)
        classic = self.group.classic_members - sum(member.classic is not None for member in leaving)
        may_downgrade = self.settings.migration_policy.may_downgrade and remaining <= self.settings.classic.max_size
        return may_downgrade and 0 < remaining == classic

    def _downgrade(self, now: Now, *, rebalance: bool) -> None:
        """Continue as a classic group. `rebalance`: its members must join again."""
        after = classic_machine(self.group, self.topics, self.settings.classic, wall_ms=now.wall_ms)
        for record in self.group.deletion():
            self._apply(record)
        self._records.append(after.record)
        self.group.timers.clear()
        self.group.is_dead = True
        self._replacement = after.machine, GroupConverted(rebalance)

    # ---- Regular expressions

    def _forget_regex(self, regex: str) -> None:
        self._resolved_with.pop(regex, None)
        if regex in self.group.regexes:
            self._change(ConsumerRecordType.REGULAR_EXPRESSION, name=regex)

    def _resolve_regexes(self, now: Now, may_describe: Callable[[str], bool] | None) -> None:
        """Resolve the regular expressions if one is new, topics are new or the last resolution is old.

        As in Kafka a topic that the client of this heartbeat may not describe matches none of them.
        """
        group = self.group
        regexes = group.subscribed_regexes()
        if not regexes or self._resolving:
            return
        oldest = min(group.regexes.values(), key=lambda resolved: resolved.wall_ms, default=None)
        resolved_wall_ms = _NEVER_WALL_MS if oldest is None else oldest.wall_ms
        if now.wall_ms <= resolved_wall_ms + REGEX_REFRESH_MS_MIN:
            return
        is_old = now.wall_ms > resolved_wall_ms + self.settings.regex_refresh_interval_ms
        has_new_topics = any(self._resolved_with.get(regex, 0) < self.topics.version for regex in group.regexes)
        if is_old or has_new_topics or regexes != group.regexes.keys():
            self._resolving = True
            names, version = self.topics.names, self.topics.version
            self._out.append(Compute(lambda: RegexesResolved(matching_topics(regexes, names), version, may_describe)))

    def _regexes_resolved(self, event: RegexesResolved, now: Now) -> None:
        self._resolving = False
        group = self.group
        increase = False
        subscribed = group.subscribed_regexes()
        for regex, matching in event.topics.items():
            if regex not in subscribed:
                continue
            topics = matching if event.may_describe is None else frozenset(filter(event.may_describe, matching))
            older = group.regexes.get(regex)
            increase |= topics != (frozenset() if older is None else older.topics)
            self._resolved_with[regex] = event.version
            resolved = ResolvedRegex(topics, event.version, now.wall_ms)
            self._change(ConsumerRecordType.REGULAR_EXPRESSION, resolved, regex)
        if group.members:
            self._update_epoch(increase=increase)

    # ---- Members of the classic protocol

    def _classic_join(self, join: Join, now: Now, ticket: int) -> None:
        group = self.group
        if self.settings.migration_policy is MigrationPolicy.DISABLED:
            raise RequestRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        self._validate_alive_and_size(join.member_id)
        names = {name for name, _ in join.protocols}
        if join.protocol_type != CONSUMER or not group.supports_classic_protocols(names):
            raise RequestRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if join.member_id == NO_MEMBER and join.instance_id is None and join.requires_member_id:
            answer = JoinAnswer(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=join.new_member_id)
            self._out.append(Reply(ticket, answer))
            return
        try:
            subscription = decode_subscription(join.protocols[0][1])
        except MalformedConsumerProtocol:
            raise RequestRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None
        before = self._classic_member_for(join)
        older = None if join.instance_id is None else group.static_member(join.instance_id)
        downgrade = older is not None and older.classic is None and self._may_downgrade_when_replaced(older)
        after = replace(
            before,
            instance_id=before.instance_id if join.instance_id is None else join.instance_id,
            rack_id=subscription.rack_id or before.rack_id,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            topics=frozenset(subscription.topics),
            regex="",
            client_id=join.client_id,
            client_host=join.client_host,
            classic=ClassicProtocol(join.session_timeout_ms, join.protocols),
        )
        known = group.members.get(before.member_id)
        if join.instance_id is not None:
            self._replace_static_member(before, join.instance_id)
        member = self._change_member(before, before if after == before else after)
        if not downgrade:
            self._update_target(now)
        owned = self._by_topic_id(subscription.owned)
        stale = group.epoch > group.target_epoch
        if not (downgrade and stale):
            changed = _subscription_changed(before, after)
            member = self._reconcile(member, owned, now, subscription_changed=changed)
        if known is not None:
            self._follow_protocol(known, member, now)
        answer = JoinAnswer(
            member_id=member.member_id,
            generation=member.epoch,
            protocol_type=CONSUMER,
            protocol_name=join.protocols[0][0],
        )
        if downgrade:
            self._downgrade(now, rebalance=stale)
        else:
            self._cancel_timer(MemberJoinTimer(member.member_id))
            self._set_timer(SessionTimer(member.member_id), now.ms + join.session_timeout_ms)
            self._set_timer(MemberSyncTimer(member.member_id), now.ms + join.rebalance_timeout_ms)
        self._reply(ticket, answer)

    def _classic_member_for(self, join: Join) -> ConsumerMember:
        member_id = join.member_id or join.new_member_id
        if join.instance_id is None:
            return self.group.members.get(member_id) or ConsumerMember(member_id=member_id)
        if join.member_id == NO_MEMBER:
            return self._static_member_for(member_id, join.instance_id)
        return validation.existing_static_member(self.group, member_id, join.instance_id)

    def _may_downgrade_when_replaced(self, older: ConsumerMember) -> bool:
        others = len(self.group.members) - 1
        policy = self.settings.migration_policy.may_downgrade
        return (
            policy
            and older.classic is None
            and self.group.classic_members == others
            and others < self.settings.classic.max_size
        )

    def _by_topic_id(self, partitions: Iterable[TopicPartition]) -> Partitions:
        found: dict[UUID, set[int]] = {}
        for name, index in partitions:
            topic = self.topics.get(name)
            if topic is not None:
                found.setdefault(topic.topic_id, set()).add(index)
        return {topic_id: frozenset(indexes) for topic_id, indexes in found.items()}

    def _classic_sync(self, sync: Sync, now: Now, ticket: int) -> None:
        member = validation.existing_classic_member(self.group, sync.member_id, sync.instance_id)
        validation.validate_sync(member, sync)
        if validation.due_epoch(self.group) > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._request_join(member, now)
            raise RequestRefused(ErrorCode.REBALANCE_IN_PROGRESS)
        self._cancel_timer(MemberSyncTimer(member.member_id))
        self._renew_classic_session(member, now)
        answer = SyncAnswer(
            protocol_type=sync.protocol_type,
            protocol_name=sync.protocol_name,
            assignment=member_assignment(member, without_epochs(member.assigned), self.topics),
        )
        self._reply(ticket, answer)

    def _classic_heartbeat(self, beat: Heartbeat, now: Now, ticket: int) -> None:
        member = validation.existing_classic_member(self.group, beat.member_id, beat.instance_id)
        validation.validate_generation(member, beat.generation)
        self._renew_classic_session(member, now)
        error = ErrorCode.NONE
        if validation.must_join_again(self.group, member):
            self._request_join(member, now)
            error = ErrorCode.REBALANCE_IN_PROGRESS
        self._reply(ticket, PlainAnswer(error))

    def _classic_leave(self, leave: Leave, now: Now, ticket: int) -> None:
        leaving: dict[str, ConsumerMember] = {}
        errors = []
        for leaver in leave.leavers:
            try:
                member = validation.leaving_member(self.group, leaver)
            except RequestRefused as refusal:
                errors.append(refusal.error)
            else:
                leaving[member.member_id] = member
                errors.append(ErrorCode.NONE)
        if leaving:
            self._fence(list(leaving.values()), now)
        self._reply(ticket, LeaveAnswer(tuple(errors)))

    def _renew_classic_session(self, member: ConsumerMember, now: Now) -> None:
        assert member.classic is not None
        self._set_timer(SessionTimer(member.member_id), now.ms + member.classic.session_timeout_ms)

    def _request_join(self, member: ConsumerMember, now: Now) -> None:
        timer = MemberJoinTimer(member.member_id)
        if timer not in self.group.timers:
            self._set_timer(timer, now.ms + member.rebalance_timeout_ms)

    # ---- Timers

    def _fired(self, timer: Hashable, now: Now) -> None:
        assert isinstance(timer, SessionTimer | RebalanceTimer | MemberJoinTimer | MemberSyncTimer), (
            f"{timer} is unknown"
        )
        if self.group.timers.get(timer, now.ms + 1) > now.ms:
            return  # it was moved or cancelled in the meantime
        del self.group.timers[timer]
        self._fence([self.group.members[timer.member_id]], now)

    def _loaded(self, now: Now) -> None:
        """Start the sessions again, and the time in which members must release partitions."""
        self.group.early.clear()
        for record in self.group.repair():
            self._apply(record)
        self.group.settle_owners()
        for member in self.group.members.values():
            if member.classic is not None:
                self._renew_classic_session(member, now)
                continue
            self._set_timer(SessionTimer(member.member_id), now.ms + self.settings.session_timeout_ms)
            if member.state is MemberState.UNREVOKED_PARTITIONS and member.epoch != STATIC_LEAVE_EPOCH:
                self._set_timer(RebalanceTimer(member.member_id), now.ms + member.rebalance_timeout_ms)


def _with_request(member: ConsumerMember, beat: MemberHeartbeat) -> ConsumerMember:
    """Return the member with what the request changes; the same object if it changes nothing."""
    after = ConsumerMember(
        member_id=member.member_id,
        instance_id=member.instance_id if beat.instance_id is None else beat.instance_id,
        rack_id=member.rack_id if beat.rack_id is None else beat.rack_id,
        client_id=beat.client_id,
        client_host=beat.client_host,
        rebalance_timeout_ms=(
            member.rebalance_timeout_ms if beat.rebalance_timeout_ms == NO_TIMEOUT_MS else beat.rebalance_timeout_ms
        ),
        topics=member.topics if beat.topics is None else beat.topics,
        regex=member.regex if beat.regex is None else beat.regex,
        assignor=member.assignor if beat.assignor is None else beat.assignor,
        epoch=member.epoch,
        previous_epoch=member.previous_epoch,
        state=member.state,
        assigned=member.assigned,
        pending_revocation=member.pending_revocation,
    )
    return member if after == member else after


def _subscription_changed(before: ConsumerMember, after: ConsumerMember) -> bool:
    return after.topics != before.topics or after.regex != before.regex


def _refusal(event: Event, refusal: RequestRefused) -> GroupAnswer:
    """Return the answer to a request that is refused."""
    match event:
        case MemberHeartbeat():
            return HeartbeatAnswer(refusal.error, refusal.message or None)
        case Join():
            return JoinAnswer(error=refusal.error)
        case Sync():
            return SyncAnswer(error=refusal.error)
        case _:
            return PlainAnswer(refusal.error)
