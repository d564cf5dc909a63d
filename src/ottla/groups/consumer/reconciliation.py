"""Moves a member from what it has to its part of the target: it releases first, and gets only what no member owns.

Pure. A member's epoch becomes that of the target as soon as it has released what it must; partitions that other members
still own follow within that epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from ottla.groups.assignors.spec import Partitions
from ottla.groups.consumer.member import AssignedPartitions, ConsumerMember, MemberState

IsOwned = Callable[[UUID, int], bool]
"""Returns whether a member of the group owns a partition or must release it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Holds what a member is to be reconciled with."""

    target: Partitions
    target_epoch: int
    subscribed: frozenset[UUID]  # topics of the target that it no longer subscribes to are not given to it
    subscription_changed: bool
    is_owned: IsOwned


def reconcile(member: ConsumerMember, goal: Goal, owned: Partitions | None) -> ConsumerMember:
    """Return the member after a report that it owns `owned` (None: unchanged); the same object if nothing changes."""
    match member.state:
        case MemberState.STABLE if member.epoch == goal.target_epoch:
            after = _release_unsubscribed(member, goal, owned) if goal.subscription_changed else member
        case MemberState.UNREVOKED_PARTITIONS if owns_any(owned, member.pending_revocation):
            after = _release_unsubscribed(member, goal, owned) if goal.subscription_changed else member
        case _:
            after = _next_assignment(member, goal, owned)
    return member if after == member else after


def owns_any(owned: Partitions | None, pending: AssignedPartitions) -> bool:
    """Return whether a member may still own a partition that it must release. It does until it reports otherwise."""
    if owned is None:
        return True
    return any(index in pending[topic_id] for topic_id in owned.keys() & pending.keys() for index in owned[topic_id])


def _release_unsubscribed(member: ConsumerMember, goal: Goal, owned: Partitions | None) -> ConsumerMember:
    """Return the member without partitions of topics that it no longer subscribes to, at the same epoch.

    The target may be older than the change of the subscription, and the next one is computed later.
    """
    gone = {topic_id: indexes for topic_id, indexes in member.assigned.items() if topic_id not in goal.subscribed}
    if not gone:
        return member
    kept = {topic_id: indexes for topic_id, indexes in member.assigned.items() if topic_id in goal.subscribed}
    pending = _merged(member.pending_revocation, gone)
    after = replace(member, previous_epoch=member.epoch, assigned=kept)
    if owns_any(owned, pending):
        after = replace(after, state=MemberState.UNREVOKED_PARTITIONS, pending_revocation=pending)
    return after


def _next_assignment(member: ConsumerMember, goal: Goal, owned: Partitions | None) -> ConsumerMember:
    target = {topic_id: wanted for topic_id, wanted in goal.target.items() if topic_id in goal.subscribed}
    kept: dict[UUID, dict[int, int]] = {}
    to_release: dict[UUID, dict[int, int]] = {}
    for topic_id, indexes in member.assigned.items():
        wanted = target.get(topic_id, frozenset())
        for index, epoch in indexes.items():
            (kept if index in wanted else to_release).setdefault(topic_id, {})[index] = epoch
    if to_release and owns_any(owned, to_release):
        # The epoch stays, so that the member can commit what it read from the partitions that it releases.
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            previous_epoch=member.epoch,
            assigned=kept,
            pending_revocation=to_release,
        )
    waits = False
    for topic_id, wanted in target.items():
        for index in wanted - kept.get(topic_id, {}).keys():
            # What the member itself has just released is free as soon as this change is applied, not before.
            if goal.is_owned(topic_id, index):
                waits = True
            else:
                kept.setdefault(topic_id, {})[index] = goal.target_epoch
    return replace(
        member,
        state=MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE,
        epoch=goal.target_epoch,
        previous_epoch=member.epoch,
        assigned=kept,
        pending_revocation={},
    )


def _merged(one: AssignedPartitions, other: AssignedPartitions) -> AssignedPartitions:
    merged: dict[UUID, Mapping[int, int]] = dict(one)
    for topic_id, indexes in other.items():
        merged[topic_id] = {**merged.get(topic_id, {}), **indexes}
    return merged
