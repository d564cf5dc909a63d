"""Administers consumer groups: lists and describes them, reads, commits and deletes their offsets, deletes them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.client.admin import Outcome
from ottla.client.cluster import Cluster
from ottla.client.consumer_protocol import read_assignment
from ottla.client.errors import raise_for
from ottla.client.offsets import by_topic
from ottla.core.errors import ErrorCode, GroupIdNotFound, UnsupportedVersion, error_for
from ottla.core.ids import GroupType, TopicPartition
from ottla.wire.apis import ApiKey

if TYPE_CHECKING:
    from ottla.wire.generated.consumer_group_describe import ConsumerGroupDescribeResponse
    from ottla.wire.generated.offset_fetch import OffsetFetchResponse
    from ottla.wire.generated.share_group_describe import ShareGroupDescribeResponse

NAMES_UNTIL = 9  # OffsetCommit and OffsetFetch have topic names up to this version, topic ids in later ones


@dataclass(frozen=True, slots=True)
class GroupListing:
    """An item of ListGroups; state and kind are empty if the broker is too old to report them."""

    group_id: str
    protocol_type: str
    state: str
    kind: str
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group and its assignment."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group with its members."""

    group_id: str
    state: str
    kind: GroupType
    protocol: str
    coordinator_id: int
    members: tuple[MemberDescription, ...]


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset of a group: the next one that it will read."""

    offset: int
    leader_epoch: int
    metadata: str


async def list_groups(cluster: Cluster) -> list[GroupListing]:
    """List the groups of all brokers, sorted by id."""
    from ottla.wire.generated.list_groups import ListGroupsRequest

    info = await cluster.refresh([])
    nodes = list(info.nodes)
    asked = (cluster.request(node, ApiKey.LIST_GROUPS, ListGroupsRequest()) for node in nodes)
    found = []
    for node_id, answer in zip(nodes, await asyncio.gather(*asked), strict=True):
        raise_for(answer.error_code, about=f"groups of broker {node_id}")
        found += [
            GroupListing(g.group_id, g.protocol_type, g.group_state, g.group_type.lower(), node_id)
            for g in answer.groups
        ]
    return sorted(found, key=lambda group: group.group_id)


async def describe_group(cluster: Cluster, group_id: str) -> GroupDescription:
    """Describe a group and its members. Raises `GroupIdNotFound`, or the coordinator's `KafkaError`."""

    async def attempt() -> GroupDescription:
        node_id = await cluster.coordinator(group_id)
        try:
            return await _describe_classic(cluster, node_id, group_id)
        except GroupIdNotFound:
            pass
        try:
            return await _describe_modern(cluster, node_id, group_id, GroupType.CONSUMER)
        except GroupIdNotFound:
            return await _describe_modern(cluster, node_id, group_id, GroupType.SHARE)

    return await cluster.retrying(attempt)


async def _describe_classic(cluster: Cluster, node_id: int, group_id: str) -> GroupDescription:
    from ottla.wire.generated.describe_groups import DescribeGroupsRequest

    answer = await cluster.request(node_id, ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups=[group_id]))
    found = answer.groups[0]
    raise_for(found.error_code, found.error_message, about=f"group {group_id}")
    if found.group_state == "Dead":  # the response of versions before 6 if there is no such group
        raise GroupIdNotFound(f"there is no group {group_id}")
    is_consumer = found.protocol_type in {"consumer", ""}
    members = tuple(
        MemberDescription(
            member_id=m.member_id,
            instance_id=m.group_instance_id,
            client_id=m.client_id,
            client_host=m.client_host,
            partitions=tuple(read_assignment(m.member_assignment)) if is_consumer else (),
        )
        for m in found.members
    )
    return GroupDescription(group_id, found.group_state, GroupType.CLASSIC, found.protocol_data, node_id, members)


async def _describe_modern(cluster: Cluster, node_id: int, group_id: str, kind: GroupType) -> GroupDescription:
    """Describe a group of a protocol with server-side assignment (KIP-848, KIP-932): DescribeGroups does not."""
    from ottla.wire.generated.consumer_group_describe import ConsumerGroupDescribeRequest
    from ottla.wire.generated.share_group_describe import ShareGroupDescribeRequest

    request = ShareGroupDescribeRequest if kind is GroupType.SHARE else ConsumerGroupDescribeRequest
    key = ApiKey.SHARE_GROUP_DESCRIBE if kind is GroupType.SHARE else ApiKey.CONSUMER_GROUP_DESCRIBE
    try:
        answer: ConsumerGroupDescribeResponse | ShareGroupDescribeResponse
        answer = await cluster.request(node_id, key, request(group_ids=[group_id]))
    except UnsupportedVersion:
        raise GroupIdNotFound(f"there is no group {group_id}") from None
    found = answer.groups[0]
    if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise GroupIdNotFound(f"there is no group {group_id}")
    raise_for(found.error_code, found.error_message, about=f"group {group_id}")
    members = tuple(
        MemberDescription(
            member_id=m.member_id,
            instance_id=getattr(m, "instance_id", None),  # members of share groups have none
            client_id=m.client_id,
            client_host=m.client_host,
            partitions=tuple(
                TopicPartition(t.topic_name, number) for t in m.assignment.topic_partitions for number in t.partitions
            ),
        )
        for m in found.members
    )
    return GroupDescription(group_id, found.group_state, kind, found.assignor_name, node_id, members)


async def committed_offsets(
    cluster: Cluster, group_id: str, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Fetch the committed offsets of a group, of these partitions or all; partitions without one are left out."""
    wanted = None if partitions is None else by_topic(partitions)
    ask = _offset_fetch(group_id, wanted)

    async def attempt() -> dict[TopicPartition, OffsetAndMetadata]:
        node_id = await cluster.coordinator(group_id)
        answer: OffsetFetchResponse = await cluster.request(node_id, ApiKey.OFFSET_FETCH, ask, at_most=NAMES_UNTIL)
        found = answer.groups[0] if answer.groups else answer
        raise_for(found.error_code, about=f"group {group_id}")
        committed = {}
        for topic in found.topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.name, p.partition_index)
                raise_for(p.error_code, about=f"{tp} in group {group_id}")
                if p.committed_offset >= 0:
                    committed[tp] = OffsetAndMetadata(p.committed_offset, p.committed_leader_epoch, p.metadata or "")
        return committed

    return await cluster.retrying(attempt)


def _offset_fetch(group_id: str, wanted: Mapping[str, Sequence[TopicPartition]] | None) -> Any:
    """Build an OffsetFetch with the fields of every version: one group before version 8, several since."""
    from ottla.wire.generated.offset_fetch import (
        OffsetFetchRequest,
        OffsetFetchRequestGroup,
        OffsetFetchRequestTopic,
        OffsetFetchRequestTopics,
    )

    old = new = None
    if wanted is not None:
        indexes = {topic: [tp.partition for tp in group] for topic, group in wanted.items()}
        old = [OffsetFetchRequestTopic(name=topic, partition_indexes=numbers) for topic, numbers in indexes.items()]
        new = [OffsetFetchRequestTopics(name=topic, partition_indexes=numbers) for topic, numbers in indexes.items()]
    group = OffsetFetchRequestGroup(group_id=group_id, topics=new)
    return OffsetFetchRequest(groups=[group], group_id=group_id, topics=old)


async def commit_offsets(
    cluster: Cluster,
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    *,
    generation_id: int = -1,
    member_id: str = "",
    metadata: Mapping[TopicPartition, str] | None = None,
) -> None:
    """Commit offsets of a group: as a member, or (without generation) of a group that has no members.

    `metadata` is what clients keep beside an offset. Raises the first partition's error, such as `UnknownMemberId` for
    a group that has members.
    """
    from ottla.wire.generated.offset_commit import (
        OffsetCommitRequest,
        OffsetCommitRequestPartition,
        OffsetCommitRequestTopic,
    )

    topics = [
        OffsetCommitRequestTopic(
            name=topic,
            partitions=[
                OffsetCommitRequestPartition(
                    partition_index=tp.partition,
                    committed_offset=offsets[tp],
                    committed_metadata=(metadata or {}).get(tp, ""),
                )
                for tp in group
            ],
        )
        for topic, group in by_topic(offsets).items()
    ]
    ask = OffsetCommitRequest(
        group_id=group_id, generation_id_or_member_epoch=generation_id, member_id=member_id, topics=topics
    )

    async def attempt() -> None:
        node_id = await cluster.coordinator(group_id)
        answer = await cluster.request(node_id, ApiKey.OFFSET_COMMIT, ask, at_most=NAMES_UNTIL)
        for topic in answer.topics:
            for p in topic.partitions:
                raise_for(p.error_code, about=f"{topic.name}-{p.partition_index} in group {group_id}")

    await cluster.retrying(attempt)


async def remove_members(cluster: Cluster, group_id: str, names: Sequence[str], *, static: bool) -> list[Outcome]:
    """Remove members of a group: static members by their instance ids, others by their member ids (KIP-345)."""
    from ottla.wire.generated.leave_group import LeaveGroupRequest, MemberIdentity

    members = [
        MemberIdentity(group_instance_id=name, reason="removed by an administrator")
        if static
        else MemberIdentity(member_id=name, reason="removed by an administrator")
        for name in names
    ]

    async def attempt() -> list[Outcome]:
        node_id = await cluster.coordinator(group_id)
        answer = await cluster.request(
            node_id, ApiKey.LEAVE_GROUP, LeaveGroupRequest(group_id=group_id, members=members)
        )
        raise_for(answer.error_code, about=f"group {group_id}")
        return [
            Outcome(name, error_for(member.error_code) if member.error_code else None)
            for name, member in zip(names, answer.members, strict=True)
        ]

    return await cluster.retrying(attempt)


async def delete_groups(cluster: Cluster, group_ids: Sequence[str]) -> list[Outcome]:
    """Delete groups that have no members, with their committed offsets."""
    from ottla.wire.generated.delete_groups import DeleteGroupsRequest

    outcomes = []
    for group_id in group_ids:

        async def attempt(group_id: str = group_id) -> int:
            node_id = await cluster.coordinator(group_id)
            ask = DeleteGroupsRequest(groups_names=[group_id])
            answer = await cluster.request(node_id, ApiKey.DELETE_GROUPS, ask)
            code = int(answer.results[0].error_code)
            if code and error_for(code).retriable:
                raise_for(code, about=f"group {group_id}")
            return code

        code = await cluster.retrying(attempt)
        outcomes.append(Outcome(group_id, error_for(code, error_for(code).message) if code else None))
    return outcomes


async def delete_offsets(cluster: Cluster, group_id: str, partitions: Iterable[TopicPartition]) -> list[Outcome]:
    """Delete the committed offsets of a group for these partitions."""
    from ottla.wire.generated.offset_delete import (
        OffsetDeleteRequest,
        OffsetDeleteRequestPartition,
        OffsetDeleteRequestTopic,
    )

    topics = [
        OffsetDeleteRequestTopic(
            name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=tp.partition) for tp in group]
        )
        for topic, group in by_topic(partitions).items()
    ]

    async def attempt() -> list[Outcome]:
        node_id = await cluster.coordinator(group_id)
        ask = OffsetDeleteRequest(group_id=group_id, topics=topics)
        answer = await cluster.request(node_id, ApiKey.OFFSET_DELETE, ask)
        raise_for(answer.error_code, about=f"group {group_id}")
        return [
            Outcome(f"{t.name}-{p.partition_index}", error_for(p.error_code) if p.error_code else None)
            for t in answer.topics
            for p in t.partitions
        ]

    return await cluster.retrying(attempt)
