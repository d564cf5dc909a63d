"""Why a request to a group is refused, if it is: the checks before the change. Nothing here changes anything.

Each answers `ErrorCode.NONE` or the error for the wire; the order of the checks is Kafka's, because clients act on the
first one.
"""

from __future__ import annotations

from ottla.core.errors import ErrorCode
from ottla.groups.events import NO_MEMBER, Commit, Heartbeat, Join, State, Sync
from ottla.groups.group import Group

PENDING_MAX = 10_000
"""Member ids given out and not used yet. More would be an attack or a broken client: ids cost memory (KIP-394)."""


def why_not_join(group: Group, join: Join) -> ErrorCode:
    """Whether this member can be in the group at all. Whether there is room is `has_room_for`."""
    if group.state is State.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    names = {name for name, _ in join.protocols}
    if not join.protocol_type or not names:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.roster.members and (join.protocol_type != group.protocol_type or not group.roster.speaks(names)):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if join.member_id == NO_MEMBER or (join.instance_id is None and join.member_id in group.roster.pending):
        return ErrorCode.NONE
    return group.who_is(join.member_id, join.instance_id)


def has_room_for(group: Group, join: Join) -> bool:
    """group.max.size. Whoever is in may stay, until the limit has been lowered and a rebalance begins."""
    roster = group.roster
    known = join.member_id or roster.by_instance.get(join.instance_id or "", NO_MEMBER)
    if join.member_id == NO_MEMBER and len(roster.pending) >= PENDING_MAX:
        return False
    match group.state:
        case State.EMPTY | State.DEAD:
            return True
        case State.PREPARING:
            # Those who wait count, not those who once were here: the last to join again are the ones to go.
            return known in roster.joining or len(roster.joining) < group.limits.max_size
        case _:
            return known in roster.members or len(roster) < group.limits.max_size


def why_not_sync(group: Group, sync: Sync) -> ErrorCode:
    """Only a member of this very generation may ask for its assignment, and only after the joins."""
    if group.state is State.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    refusal = group.who_is(sync.member_id, sync.instance_id)
    if refusal is not ErrorCode.NONE:
        return refusal
    if sync.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if sync.protocol_type not in {None, group.protocol_type} or sync.protocol_name not in {None, group.protocol}:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is State.PREPARING else ErrorCode.NONE


def why_not_alive(group: Group, beat: Heartbeat | Commit) -> ErrorCode:
    """Whether this is a member of this generation. A zombie of an older one must not act."""
    if group.state is State.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    refusal = group.who_is(beat.member_id, beat.instance_id)
    if refusal is not ErrorCode.NONE:
        return refusal
    return ErrorCode.NONE if beat.generation == group.generation else ErrorCode.ILLEGAL_GENERATION


def commits_alone(group: Group, commit: Commit) -> bool:
    """An administrator, or a consumer that assigns partitions to itself: it commits while nobody is in the group."""
    return commit.generation < 0 and group.state is State.EMPTY


def why_not_commit(group: Group, commit: Commit) -> ErrorCode:
    """Whether offsets may be committed now."""
    if commits_alone(group, commit):
        return ErrorCode.NONE
    refusal = why_not_alive(group, commit)
    if refusal is ErrorCode.NONE and group.state is State.COMPLETING:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return refusal
