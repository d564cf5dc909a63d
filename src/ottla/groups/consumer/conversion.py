"""Converts a classic group to a consumer group and back while it has members (KIP-848's online migration). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from ottla.client.consumer_protocol import (
    CONSUMER,
    MalformedConsumerProtocol,
    assignment_has_user_data,
    decode_subscription,
    read_assignment,
    write_assignment,
)
from ottla.core.errors import ErrorCode
from ottla.core.ids import TopicPartition
from ottla.groups.assignors.spec import Partitions
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.classic.machine import ClassicMachine
from ottla.groups.classic.members import Member
from ottla.groups.classic.records import group_key, group_value
from ottla.groups.classic.settings import ClassicSettings
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.consumer.member import ClassicProtocol, ConsumerMember, without_epochs
from ottla.groups.consumer.records import ConsumerRecordKey, ConsumerRecordType, ConsumerRecordValue, current_of, encode
from ottla.groups.consumer.settings import ConsumerSettings
from ottla.groups.modern.events import RequestRefused
from ottla.groups.modern.records import GroupMetadata, TargetMember, TargetMetadata
from ottla.groups.modern.topics import TopicsImage
from ottla.internal_topics.topic_log import KeyValue

# ---- Upgrade


def validate_upgrade(group: ClassicGroup, settings: ConsumerSettings) -> None:
    """Refuse to convert a group with members that may not or cannot become a consumer group."""
    reason = None
    if not settings.migration_policy.may_upgrade:
        reason = "online upgrade is disabled"
    elif group.protocol_type != CONSUMER:
        reason = "the group does not use the consumer embedded protocol"
    elif len(group.members) > settings.max_size:
        reason = "the group size exceeds the consumer group maximum size"
    if reason is not None:
        raise _cannot_upgrade(group, reason)


def _cannot_upgrade(group: ClassicGroup, reason: str) -> RequestRefused:
    message = f"Cannot upgrade classic group {group.group_id} to consumer group because {reason}."
    return RequestRefused(ErrorCode.GROUP_ID_NOT_FOUND, message)


class UpgradedGroup(NamedTuple):
    """Holds the consumer group that replaces a classic group, and the records that made it."""

    group: ConsumerGroup
    records: list[KeyValue]  # they replace the classic group in the log


def consumer_group(classic: ClassicGroup, topics: TopicsImage) -> UpgradedGroup:
    """Return the consumer group with the members of a classic one: their assignment is the target.

    Raises RequestRefused.
    """
    members, taken = [], set[tuple[UUID, int]]()
    for member in classic.members.by_id.values():
        after = _consumer_member(classic, member, topics, taken)
        taken.update((topic_id, index) for topic_id, indexes in after.assigned.items() for index in indexes)
        members.append(after)
    group_id, epoch, kinds = classic.group_id, classic.generation, ConsumerRecordType
    targets = [TargetMember(without_epochs(member.assigned)) for member in members]
    values: list[tuple[ConsumerRecordType, ConsumerRecordValue, str]] = [
        *((kinds.MEMBER_METADATA, member, member.member_id) for member in members),
        (kinds.GROUP_METADATA, GroupMetadata(epoch), ""),
        *(
            (kinds.TARGET_ASSIGNMENT_MEMBER, target, member.member_id)
            for member, target in zip(members, targets, strict=True)
        ),
        (kinds.TARGET_ASSIGNMENT_METADATA, TargetMetadata(epoch), ""),
        *((kinds.CURRENT_MEMBER_ASSIGNMENT, current_of(member), member.member_id) for member in members),
    ]
    upgraded = UpgradedGroup(ConsumerGroup(group_id), [(group_key(group_id), None)])
    for kind, value, name in values:
        record = ConsumerRecordKey(kind, group_id, name), value
        upgraded.group.apply(record)
        upgraded.records.append(encode(record))
    return upgraded


def _consumer_member(
    group: ClassicGroup, member: Member, topics: TopicsImage, taken: set[tuple[UUID, int]]
) -> ConsumerMember:
    """Return a member with its assignment, without what another member has. Raises RequestRefused."""
    try:
        metadata = member.metadata_for(group.protocol) or member.protocols[0][1]
        subscription = decode_subscription(metadata)
        assignment = read_assignment(member.assignment)
        has_user_data = assignment_has_user_data(member.assignment)
    except MalformedConsumerProtocol:
        raise _cannot_upgrade(group, "the embedded consumer protocol is malformed") from None
    if has_user_data:
        raise _cannot_upgrade(
            group,
            "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default"
            " assignor before re-attempting the upgrade",
        )
    assigned = {
        topic_id: dict.fromkeys(free, group.generation)
        for topic_id, indexes in _by_topic_id(assignment, topics).items()
        if (free := [index for index in sorted(indexes) if (topic_id, index) not in taken])
    }
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topics=frozenset(subscription.topics),
        classic=ClassicProtocol(member.session_timeout_ms, member.protocols),
        epoch=group.generation,
        previous_epoch=group.generation,
        assigned=assigned,
    )


def _by_topic_id(partitions: Iterable[TopicPartition], topics: TopicsImage) -> dict[UUID, set[int]]:
    found: dict[UUID, set[int]] = {}
    for name, index in partitions:
        topic = topics.get(name)
        if topic is not None:
            found.setdefault(topic.topic_id, set()).add(index)
    return found


# ---- Downgrade


class DowngradedGroup(NamedTuple):
    """Holds the classic group that replaces a consumer group, and its record."""

    machine: ClassicMachine
    record: KeyValue


def classic_machine(
    group: ConsumerGroup, topics: TopicsImage, settings: ClassicSettings, *, wall_ms: int
) -> DowngradedGroup:
    """Return the classic group with the members of a consumer group, which all use the classic protocol."""
    converted = ClassicGroup(
        group.group_id, settings, state_since_wall_ms=wall_ms, generation=group.epoch, protocol_type=CONSUMER
    )
    for member in group.members.values():
        assert member.classic is not None, f"{member.member_id} does not use the classic protocol"
        converted.members.add(
            Member(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.classic.session_timeout_ms,
                member.rebalance_timeout_ms,
                member.classic.protocols,
                member_assignment(member, group.target_of(member.member_id), topics),
            )
        )
    converted.become_stable()
    snapshot = converted.snapshot()
    converted.apply(snapshot)  # the consumer group writes it, or it is the first that the classic group writes
    return DowngradedGroup(ClassicMachine(converted), (group_key(group.group_id), group_value(snapshot)))


def member_assignment(member: ConsumerMember, partitions: Partitions, topics: TopicsImage) -> bytes:
    """Encode partitions for a member of the classic protocol, in the version that its subscription has."""
    assert member.classic is not None, f"{member.member_id} does not use the classic protocol"
    named = [
        TopicPartition(name, index)
        for topic_id, indexes in partitions.items()
        if (name := topics.name_of(topic_id)) is not None
        for index in indexes
    ]
    return write_assignment(named, decode_subscription(member.classic.protocols[0][1]).version)
