"""Says why a group rebalances, as events: a member joined, left, was not heard of, or did not join again in time."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ottla.core.events import EventKind, EventLog
from ottla.core.ids import TopicPartition
from ottla.groups.classic.events import Join, JoinTimer, Leave, State, SyncTimer
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.consumer.events import MemberHeartbeat, MemberJoinTimer, MemberSyncTimer, RebalanceTimer
from ottla.groups.group import Group
from ottla.groups.machine import GroupMachine, SessionTimer, TimerFired
from ottla.groups.modern.events import JOIN_EPOCH, TopicsChanged

_HOUR_MS = 3_600_000

CHANGING = frozenset({Join, Leave, MemberHeartbeat, TopicsChanged, TimerFired})
"""The events by which the members of a group or their partitions may change."""


def cause_of(group: Group, event: Any) -> str:
    """Describe what an event may change in a group, before it is handled; empty if there is no cause."""
    match event:
        case Join():
            return _cause_of_join(group, event)
        case Leave(leavers):
            named = ", ".join(_name(group, leaver.member_id) for leaver in leavers)
            reasons = sorted({leaver.reason for leaver in leavers if leaver.reason})
            return f"{named} left" + (f": {'; '.join(reasons)}" if reasons else "")
        case MemberHeartbeat() if event.member_epoch == JOIN_EPOCH:
            return f"{event.client_id or event.member_id} ({event.client_host.lstrip('/')}) joined"
        case MemberHeartbeat() if event.member_epoch < JOIN_EPOCH:
            return f"{_name(group, event.member_id)} left"
        case MemberHeartbeat() if event.topics is not None or event.regex is not None:
            return f"{_name(group, event.member_id)} changed its subscription"
        case TopicsChanged():
            return "a topic that it reads was created, deleted or has more partitions"
        case TimerFired(timer):
            return _cause_of_timer(group, timer)
    return ""


def _cause_of_join(group: Group, join: Join) -> str:
    who = f"{join.client_id or join.new_member_id} ({join.client_host.lstrip('/')})"
    if isinstance(group, ClassicGroup):
        if join.instance_id is not None and not join.member_id and join.instance_id in group.members.by_instance:
            return f"{who} took the place of the static member {join.instance_id}"
        if join.member_id and join.member_id in group.members.by_id:
            return f"{who} asked for a rebalance: its subscription or its partitions have changed"
    return f"{who} joined"


def _cause_of_timer(group: Group, timer: object) -> str:
    match timer:
        case SessionTimer(member_id):
            return f"{_name(group, member_id)} sent no heartbeat within its session.timeout.ms"
        case JoinTimer() if isinstance(group, ClassicGroup):
            late = [
                _name(group, member_id) for member_id in group.members.by_id if member_id not in group.members.joining
            ]
            if not late:
                return ""
            return f"{', '.join(late)} did not join again within max.poll.interval.ms"
        case SyncTimer() if isinstance(group, ClassicGroup):
            late = [
                _name(group, member_id) for member_id in group.members.by_id if member_id in group.members.not_synced
            ]
            return f"{', '.join(late)} did not take its assignment in time"
        case RebalanceTimer(member_id):
            return f"{_name(group, member_id)} did not give up its partitions within max.poll.interval.ms"
        case MemberJoinTimer(member_id) | MemberSyncTimer(member_id):
            return f"{_name(group, member_id)} did not join again within max.poll.interval.ms"
    return ""


def _name(group: Group, member_id: str) -> str:
    """Name a member by its client id and address, as people know it."""
    members: Any = group.members.by_id if isinstance(group, ClassicGroup) else getattr(group, "members", {})
    member = members.get(member_id)
    if member is None:
        return member_id or "a member"
    return f"{member.client_id or member_id} ({member.client_host.lstrip('/')})"


def record_change(events: EventLog, machine: GroupMachine, before: tuple[object, ...], event: Any, cause: str) -> None:
    """Record a rebalance that an event began, or a static member that lost its place to another."""
    group, after = machine.group, machine.outline
    client = getattr(event, "client_id", "")
    if isinstance(group, ClassicGroup):
        if isinstance(event, Join) and "took the place" in cause:
            events.record(EventKind.MEMBER_FENCED, cause, group=group.group_id, client=client)
        begins = after[0] is State.PREPARING or (after[0] is State.EMPTY and before[0] is not State.EMPTY)
        begins |= isinstance(event, TimerFired) and isinstance(event.timer, JoinTimer) and bool(cause)
        if not begins or (before[0] is State.PREPARING and not isinstance(event, TimerFired)):
            return
        numbers = {"generation": int(str(after[1])), "members": int(str(after[2]))}
    else:
        if after[0] == before[0]:
            return
        numbers = {"epoch": int(str(after[0])), "members": int(str(after[2]))}
    events.record(EventKind.REBALANCE, cause, group=group.group_id, client=client, numbers=numbers)


def record_expired(events: EventLog, group_id: str, partitions: Collection[TopicPartition], retention_ms: int) -> None:
    """Record that committed offsets of a group are deleted, because it was not used for so long."""
    topics = sorted({partition.topic for partition in partitions})
    events.record(
        EventKind.OFFSETS_EXPIRED,
        f"its offsets of {', '.join(topics[:5])} were not used for {retention_ms / _HOUR_MS:g} h "
        "(offsets.retention.minutes) and are deleted",
        group=group_id,
        topic=topics[0] if topics else "",
        numbers={"offsets": len(partitions)},
    )
