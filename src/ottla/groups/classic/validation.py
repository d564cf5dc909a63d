"""Validates requests to a group before the group is changed.

Each function returns `ErrorCode.NONE` or the error for the response; the order of the checks is Kafka's, because
clients act on the first error.
"""

from __future__ import annotations

from ottla.core.errors import ErrorCode
from ottla.groups.classic.events import Heartbeat, Join, State, Sync
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.machine import NO_MEMBER, Commit

PENDING_MAX = 10_000
"""Bound on member ids that are assigned and not used yet: each costs memory (KIP-394)."""


def validate_join(group: ClassicGroup, join: Join) -> ErrorCode:
    """Validate that this member can be in the group; `has_room_for` checks the size of the group."""
    if group.state is State.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    names = {name for name, _ in join.protocols}
    if not join.protocol_type or not names:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.members.by_id and (join.protocol_type != group.protocol_type or not group.members.supports_any(names)):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if join.member_id == NO_MEMBER or (join.instance_id is None and join.member_id in group.members.pending):
        return ErrorCode.NONE
    return group.validate_member(join.member_id, join.instance_id)


def has_room_for(group: ClassicGroup, join: Join) -> bool:
    """Return whether group.max.size admits the member; a lowered limit applies from the next rebalance on."""
    members = group.members
    known = join.member_id or members.by_instance.get(join.instance_id or "", NO_MEMBER)
    if join.member_id == NO_MEMBER and len(members.pending) >= PENDING_MAX:
        return False
    match group.state:
        case State.EMPTY | State.DEAD:
            return True
        case State.PREPARING:
            # Only members that have joined this rebalance count: the last ones to join again are refused.
            return known in members.joining or len(members.joining) < group.settings.max_size
        case _:
            return known in members.by_id or len(members) < group.settings.max_size


def validate_sync(group: ClassicGroup, sync: Sync) -> ErrorCode:
    """Validate that a member of this generation requests its assignment, after the joins are complete."""
    if group.state is State.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    refusal = group.validate_member(sync.member_id, sync.instance_id)
    if refusal is not ErrorCode.NONE:
        return refusal
    if sync.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if sync.protocol_type not in {None, group.protocol_type} or sync.protocol_name not in {None, group.protocol}:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is State.PREPARING else ErrorCode.NONE


def validate_heartbeat(group: ClassicGroup, beat: Heartbeat | Commit) -> ErrorCode:
    """Validate that the request is from a member of this generation: a member of an older one is fenced."""
    if group.state is State.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    refusal = group.validate_member(beat.member_id, beat.instance_id)
    if refusal is not ErrorCode.NONE:
        return refusal
    return ErrorCode.NONE if beat.generation == group.generation else ErrorCode.ILLEGAL_GENERATION


def is_simple_commit(group: ClassicGroup, commit: Commit) -> bool:
    """Return whether an administrator or a consumer without a group commits while the group is empty."""
    return commit.generation < 0 and group.state is State.EMPTY


def validate_commit(group: ClassicGroup, commit: Commit) -> ErrorCode:
    """Validate that offsets may be committed now.

    Producers of older versions (TxnOffsetCommit before v3) name no member: they are not checked (KIP-447). In a
    transaction the state of the group is not checked either: the transaction fences the producer.
    """
    if group.state is State.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if is_simple_commit(group, commit):
        return ErrorCode.NONE
    names_member = commit.generation >= 0 or commit.member_id or commit.instance_id is not None
    if commit.is_transactional and not names_member:
        return ErrorCode.NONE
    refusal = validate_heartbeat(group, commit)
    if refusal is ErrorCode.NONE and group.state is State.COMPLETING and not commit.is_transactional:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return refusal
