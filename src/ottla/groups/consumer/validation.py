"""Validates requests to a consumer group before the group is changed; the order of the checks is Kafka's."""

from __future__ import annotations

from typing import Final, NoReturn

from ottla.core.errors import ErrorCode
from ottla.groups.assignors.spec import Partitions
from ottla.groups.classic import events as classic
from ottla.groups.consumer.events import NO_TIMEOUT_MS, STATIC_LEAVE_EPOCH, CommitAnswer, MemberHeartbeat
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.consumer.member import ConsumerMember, MemberState
from ottla.groups.machine import NO_GENERATION, NO_MEMBER, Commit
from ottla.groups.modern.events import JOIN_EPOCH, LEAVE_EPOCH, RequestRefused

CLIENT_CHOOSES_MEMBER_ID_SINCE = 1
"""Version of ConsumerGroupHeartbeat from which on a member chooses its id before it joins (KIP-1082)."""

MEMBER_EPOCH_SINCE = 9
"""Version of OffsetCommit that members of the new protocol must use."""

_TRIMMED: Final = "".join(map(chr, range(ord(" ") + 1)))


def why_invalid(group_id: str, beat: MemberHeartbeat, api_version: int) -> str | None:
    """Explain why a heartbeat is malformed, whatever the state of the group; None if it is not."""
    may_have_no_id = api_version < CLIENT_CHOOSES_MEMBER_ID_SINCE and beat.member_epoch == JOIN_EPOCH
    if not may_have_no_id and is_blank(beat.member_id):
        return "MemberId can't be empty."
    if is_blank(group_id):
        return "GroupId can't be empty."
    if beat.instance_id is not None and is_blank(beat.instance_id):
        return "InstanceId can't be empty."
    if beat.rack_id is not None and is_blank(beat.rack_id):
        return "RackId can't be empty."
    if beat.member_epoch == JOIN_EPOCH:
        if beat.rebalance_timeout_ms == NO_TIMEOUT_MS:
            return "RebalanceTimeoutMs must be provided in first request."
        if beat.owned is None or beat.owned:
            return "TopicPartitions must be empty when (re-)joining."
        if beat.topics is None and beat.regex is None:
            return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
    elif beat.member_epoch == STATIC_LEAVE_EPOCH and beat.instance_id is None:
        return "InstanceId can't be null."
    elif beat.member_epoch < STATIC_LEAVE_EPOCH:
        return "MemberEpoch is invalid."
    return None


def is_blank(text: str) -> bool:
    """Return whether a text has only characters up to the space, which Java's `trim` removes."""
    return not text.strip(_TRIMMED)


# ---- Members


def existing_static_member(group: ConsumerGroup, member_id: str, instance_id: str) -> ConsumerMember:
    """Return the static member with this instance id, if it has this member id. Raises RequestRefused."""
    member = group.static_member(instance_id)
    if member is None:
        raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise RequestRefused(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}.",
        )
    return member


def validate_epoch(member: ConsumerMember, epoch: int, owned: Partitions | None) -> None:
    """Refuse an epoch that is not the member's. The previous one is accepted: the last response may be lost."""
    if epoch in {JOIN_EPOCH, member.epoch}:
        return
    lost_response = epoch == member.previous_epoch and owned is not None and _has_all(member, owned)
    if epoch > member.epoch:
        _fence(member, epoch, "greater")
    elif not lost_response:
        _fence(member, epoch, "smaller")


def _has_all(member: ConsumerMember, owned: Partitions) -> bool:
    return all(indexes <= member.assigned.get(topic_id, {}).keys() for topic_id, indexes in owned.items())


def _fence(member: ConsumerMember, epoch: int, than: str) -> NoReturn:
    raise RequestRefused(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {than} member epoch ({epoch}) than the one known by the group coordinator"
        f" ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def validate_released(group: ConsumerGroup, member_id: str, instance_id: str) -> None:
    """Refuse a static member that joins while another one with its instance id has not left."""
    member = group.static_member(instance_id)
    if member is not None and member.classic is None and member.epoch != STATIC_LEAVE_EPOCH:
        raise RequestRefused(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id is"
            f" owned by {member.member_id} member.",
        )


# ---- Offsets


def validate_commit(group: ConsumerGroup, commit: Commit) -> CommitAnswer:
    """Validate that a member may commit offsets. One with an older epoch may for what it has had since (KIP-1251)."""
    if commit.generation < 0 and not group.members:
        return CommitAnswer()
    anonymous = commit.member_id == NO_MEMBER and commit.instance_id is None
    if commit.is_transactional and commit.generation == NO_GENERATION and anonymous:
        return CommitAnswer()
    member = group.members.get(commit.member_id)
    if member is None:
        return CommitAnswer(ErrorCode.UNKNOWN_MEMBER_ID)
    if not commit.is_transactional and member.classic is None and commit.api_version < MEMBER_EPOCH_SINCE:
        return CommitAnswer(ErrorCode.UNSUPPORTED_VERSION)
    stale = stale_epoch_error(member)
    if commit.generation == member.epoch:
        return CommitAnswer()
    if commit.generation > member.epoch:
        return CommitAnswer(stale)
    accepted = frozenset(
        (topic_id, index)
        for partitions in (member.assigned, member.pending_revocation)
        for topic_id, indexes in partitions.items()
        for index, since in indexes.items()
        if since <= commit.generation
    )
    return CommitAnswer(accepted=accepted, refusal=stale)


def stale_epoch_error(member: ConsumerMember) -> ErrorCode:
    """Return the error for a request with an older epoch."""
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION


# ---- Members of the classic protocol


def existing_classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    """Return a member of the classic protocol. Raises RequestRefused."""
    if instance_id is None:
        member = group.existing_member(member_id)
    else:
        member = existing_static_member(group, member_id, instance_id)
    if member.classic is None:
        raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol.")
    return member


def validate_generation(member: ConsumerMember, generation: int) -> None:
    """Refuse a generation that is not the member's epoch."""
    if generation != member.epoch:
        raise RequestRefused(ErrorCode.ILLEGAL_GENERATION)


def validate_sync(member: ConsumerMember, sync: classic.Sync) -> None:
    """Refuse a SyncGroup of another generation or protocol than JoinGroup returned."""
    validate_generation(member, sync.generation)
    assert member.classic is not None
    name, _ = member.classic.protocols[0]
    if sync.protocol_type not in {None, "consumer"} or sync.protocol_name not in {None, name}:
        raise RequestRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def due_epoch(group: ConsumerGroup) -> int:
    """Return the epoch below which a member of the classic protocol must join again.

    It is that of the target: joining again before there is a new one changes nothing. A heartbeat of a member of the
    new protocol computes that; without such a member a join does.
    """
    if group.epoch > group.target_epoch and group.classic_members == len(group.members):
        return group.epoch
    return group.target_epoch


def must_join_again(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Return whether a member of the classic protocol must join again to release partitions or to get new ones."""
    if member.epoch < due_epoch(group) or member.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    return member.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_release(member)


def leaving_member(group: ConsumerGroup, leaver: classic.Leaver) -> ConsumerMember:
    """Return a member that leaves by LeaveGroup, which may be one of the new protocol.

    An administrator gives only the instance id of a static one. Raises RequestRefused.
    """
    if leaver.instance_id is None:
        return group.existing_member(leaver.member_id)
    if leaver.member_id != NO_MEMBER:
        return existing_static_member(group, leaver.member_id, leaver.instance_id)
    member = group.static_member(leaver.instance_id)
    if member is None:
        raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def is_leave(epoch: int) -> bool:
    """Return whether a heartbeat with this epoch leaves the group."""
    return epoch in {LEAVE_EPOCH, STATIC_LEAVE_EPOCH}
