"""Runs one share group (KIP-932) as a pure state machine (`groups/machine.py`): events in, outputs out.

A heartbeat does three things:

    1. It adds or changes a member. If a subscription or the metadata of a topic changed, the group's epoch grows.
    2. If the group's epoch is newer than that of the target assignment, the assignor computes a new target. A
       partition may have several members.
    3. It gives the member its part of the target at once: no other member has to release anything first.

Only partitions with a share state are given to members; `uninitialized` lists the others, for which the coordinator
creates one and reports it with `StatesInitialized`.

When changes are written and requests answered: `modern/machine.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import assert_never
from uuid import UUID

from ottla.core.errors import ErrorCode
from ottla.groups.assignors import simple
from ottla.groups.assignors.spec import Partitions
from ottla.groups.classic.events import Heartbeat, Join, JoinAnswer, Leave, LeaveAnswer, Sync, SyncAnswer
from ottla.groups.machine import Commit, GroupAnswer, Now, Output, PlainAnswer, SessionTimer, TimerFired
from ottla.groups.modern.events import JOIN_EPOCH, LEAVE_EPOCH, HeartbeatAnswer, RequestRefused, TopicsChanged
from ottla.groups.modern.machine import ModernMachine
from ottla.groups.modern.records import GroupMetadata, TargetMember, TargetMetadata
from ottla.groups.modern.target_assignment import MemberSubscription, compute_target
from ottla.groups.modern.topics import TopicsImage
from ottla.groups.share import records
from ottla.groups.share.events import Event, OffsetsAltered, ShareHeartbeat, StatesDeleted, StatesInitialized
from ottla.groups.share.group import ShareGroup
from ottla.groups.share.records import (
    ShareMember,
    ShareRecord,
    ShareRecordKey,
    ShareRecordType,
    ShareRecordValue,
    StatePartitions,
    current_of,
)
from ottla.groups.share.settings import ShareSettings
from ottla.internal_topics.machine_events import NO_TICKET, Loaded, NotStored, Reply, Stored


class ShareMachine(ModernMachine[ShareGroup]):
    """Changes the state of one group, which is in `group`. `settings` and `topics` may be replaced between events."""

    __slots__ = ("settings",)

    def __init__(self, group: ShareGroup, settings: ShareSettings, topics: TopicsImage) -> None:
        super().__init__(group, topics)
        self.settings = settings

    # ---- Records

    def _apply(self, record: ShareRecord) -> None:
        """Change the group by a record."""
        self.group.apply(record)
        self._records.append(records.encode(record))

    def _change(self, kind: ShareRecordType, value: ShareRecordValue = None, member_id: str = "") -> None:
        """Change the group by a record; None deletes."""
        self._apply((ShareRecordKey(kind, self.group.group_id, member_id), value))

    def _change_epoch(self, metadata: GroupMetadata) -> None:
        self._change(ShareRecordType.GROUP_METADATA, metadata)

    def _change_target_epoch(self, metadata: TargetMetadata) -> None:
        self._change(ShareRecordType.TARGET_ASSIGNMENT_METADATA, metadata)

    def _change_target(self, member_id: str, target: TargetMember) -> None:
        self._change(ShareRecordType.TARGET_ASSIGNMENT_MEMBER, target, member_id)

    def _change_states(self, initialized: Partitions, names: Mapping[UUID, str]) -> None:
        states = {topic_id: (names[topic_id], indexes) for topic_id, indexes in initialized.items()}
        self._change(ShareRecordType.STATE_PARTITION_METADATA, StatePartitions(states))

    def uninitialized(self, topics: Iterable[str]) -> Partitions:
        """Return the partitions of these topics that have no share state."""
        missing = {}
        for name in topics:
            topic = self.topics.get(name)
            if topic is not None:
                indexes = frozenset(range(topic.partitions)) - self.group.initialized.get(topic.topic_id, frozenset())
                if indexes:
                    missing[topic.topic_id] = indexes
        return missing

    # ---- Events

    def step(self, event: Event, *, now: Now, ticket: int = NO_TICKET) -> list[Output]:
        """Handle an event and return the outputs in order. Each ticket is answered once, now or by a later step."""
        self._out = []
        try:
            self._dispatch(event, now, ticket)
        except RequestRefused as refusal:
            self._out.append(Reply(ticket, HeartbeatAnswer(refusal.error, refusal.message or None)))
        self._write(event)
        self.group.check()
        outputs, self._out = self._out, []
        return outputs

    def _dispatch(self, event: Event, now: Now, ticket: int) -> None:
        match event:
            case ShareHeartbeat():
                handle = self._leave if event.member_epoch == LEAVE_EPOCH else self._heartbeat
                handle(event, now, ticket)
            case StatesInitialized(partitions):
                self._initialized(partitions)
            case StatesDeleted(topics):
                self._forget_states(topics)
                self._reply(ticket, PlainAnswer())
            case OffsetsAltered():
                if self.group.is_in_log:
                    self._update_epoch(increase=True)
                else:  # it never had a member
                    self._change_epoch(GroupMetadata(self.group.epoch, self.group.metadata_hash))
                self._reply(ticket, PlainAnswer())
            case TopicsChanged(topics):
                self._refresh_requested |= not topics.isdisjoint(self.group.topics())
                self._forget_deleted_topics()
            case TimerFired(timer):
                self._fired(timer, now)
            case Stored(write):
                self._stored(write)
            case NotStored(write, error):
                self._not_stored(write, error)
            case Loaded():
                self.group.early.clear()
                for record in self.group.repair():
                    self._apply(record)
                for member_id in self.group.members:
                    self._set_timer(SessionTimer(member_id), now.ms + self.settings.session_timeout_ms)
            case Join() | Sync() | Heartbeat() | Leave() | Commit():
                self._out.append(Reply(ticket, _refusal(event)))
            case _:
                assert_never(event)

    # ---- Heartbeats

    def _heartbeat(self, beat: ShareHeartbeat, now: Now, ticket: int) -> None:
        before = self._member_for(beat)
        member = replace(
            before,
            rack_id=before.rack_id if beat.rack_id is None else beat.rack_id,
            client_id=beat.client_id,
            client_host=beat.client_host,
            topics=before.topics if beat.topics is None else beat.topics,
        )
        if member != before or before.member_id not in self.group.members:
            self._change(ShareRecordType.MEMBER_METADATA, member, member.member_id)
        increase = member.topics != before.topics
        if increase or self._refresh_requested:
            self._update_epoch(increase=increase)
        self._update_target(now)
        member = self._reconcile(member)
        self._set_timer(SessionTimer(member.member_id), now.ms + self.settings.session_timeout_ms)
        is_full = beat.member_epoch == JOIN_EPOCH or beat.topics is not None
        shows_assignment = is_full or member.assigned != before.assigned
        self._reply(
            ticket,
            HeartbeatAnswer(
                member_id=member.member_id,
                member_epoch=member.epoch,
                heartbeat_interval_ms=self.settings.heartbeat_interval_ms,
                assignment=member.assigned if shows_assignment else None,
            ),
        )

    def _member_for(self, beat: ShareHeartbeat) -> ShareMember:
        """Return the member that the request comes from, or that it creates. Raises RequestRefused."""
        group = self.group
        if group.is_dead:
            raise RequestRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if beat.member_id not in group.members and beat.member_epoch == JOIN_EPOCH:
            if len(group.members) >= self.settings.max_size:
                message = f"The share group has reached its maximum capacity of {self.settings.max_size} members."
                raise RequestRefused(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
            return ShareMember(member_id=beat.member_id)
        member = group.existing_member(beat.member_id)
        if beat.member_epoch not in (JOIN_EPOCH, member.epoch, member.previous_epoch):
            than = "greater" if beat.member_epoch > member.epoch else "smaller"
            message = (
                f"The share group member has a {than} member epoch ({beat.member_epoch}) than the one known by the"
                f" group coordinator ({member.epoch}). The member must abandon all its partitions and rejoin."
            )
            raise RequestRefused(ErrorCode.FENCED_MEMBER_EPOCH, message)
        return member

    def _leave(self, beat: ShareHeartbeat, now: Now, ticket: int) -> None:  # noqa: ARG002  # as `_heartbeat`
        self._remove(self.group.existing_member(beat.member_id).member_id)
        self._reply(ticket, HeartbeatAnswer(member_id=beat.member_id, member_epoch=beat.member_epoch))

    def _update_target(self, now: Now) -> None:
        """Compute the target assignment of a newer epoch, unless the last one was computed just before."""
        group, interval_ms = self.group, self.settings.assignment_interval_ms
        if group.target_epoch >= group.epoch or now.wall_ms < group.target_wall_ms + interval_ms:
            return
        subscriptions = {
            member_id: MemberSubscription(member.topics, None, member.rack_id)
            for member_id, member in group.members.items()
        }
        self._set_target(compute_target(simple.assign, subscriptions, group.target, self.topics), now)

    def _reconcile(self, member: ShareMember) -> ShareMember:
        """Give a member its part of the target: of the topics that it subscribes to, also if the target is older."""
        subscribed = {topic.topic_id for name in member.topics if (topic := self.topics.get(name)) is not None}
        target = self.group.target_of(member.member_id)
        assigned = {topic_id: indexes for topic_id, indexes in target.items() if topic_id in subscribed}
        if member.epoch == self.group.target_epoch and member.assigned == assigned:
            return member
        after = replace(member, epoch=self.group.target_epoch, previous_epoch=member.epoch, assigned=assigned)
        self._change(ShareRecordType.CURRENT_MEMBER_ASSIGNMENT, current_of(after), member.member_id)
        return after

    # ---- Share states and topics

    def _initialized(self, partitions: Partitions) -> None:
        initialized, names = dict(self.group.initialized), dict(self.group.names)
        for topic_id, indexes in partitions.items():
            name = self.topics.name_of(topic_id)
            if name is not None:
                initialized[topic_id] = initialized.get(topic_id, frozenset()) | indexes
                names[topic_id] = name
        self._change_states(initialized, names)

    def _forget_states(self, topics: Collection[UUID]) -> None:
        kept = {topic_id: indexes for topic_id, indexes in self.group.initialized.items() if topic_id not in topics}
        self._change_states(kept, self.group.names)

    def _forget_deleted_topics(self) -> None:
        """Forget the partitions of deleted topics: they have no share state any more."""
        gone = {topic_id for topic_id in self.group.initialized if self.topics.name_of(topic_id) is None}
        if gone:
            self._forget_states(gone)

    # ---- Removal and timers

    def _remove(self, member_id: str) -> None:
        self._cancel_timer(SessionTimer(member_id))
        for kind in (
            ShareRecordType.CURRENT_MEMBER_ASSIGNMENT,
            ShareRecordType.TARGET_ASSIGNMENT_MEMBER,
            ShareRecordType.MEMBER_METADATA,
        ):
            self._change(kind, member_id=member_id)
        self._update_epoch(increase=True)
        self._complete_if_empty()

    def _fired(self, timer: Hashable, now: Now) -> None:
        assert isinstance(timer, SessionTimer), f"{timer} is unknown"
        if self.group.timers.get(timer, now.ms + 1) > now.ms:
            return  # it was moved or cancelled in the meantime
        del self.group.timers[timer]
        self._remove(timer.member_id)


def _refusal(event: Join | Sync | Heartbeat | Leave | Commit) -> GroupAnswer:
    """Return the answer to a request for a group of another type."""
    match event:
        case Join():
            return JoinAnswer(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        case Sync():
            return SyncAnswer(error=ErrorCode.UNKNOWN_MEMBER_ID)
        case Leave():
            return LeaveAnswer((ErrorCode.UNKNOWN_MEMBER_ID,) * len(event.leavers))
        case Heartbeat():
            return PlainAnswer(ErrorCode.UNKNOWN_MEMBER_ID)
        case Commit():
            return PlainAnswer(ErrorCode.GROUP_ID_NOT_FOUND)
