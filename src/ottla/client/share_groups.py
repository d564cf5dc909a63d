"""Administers share groups (KIP-932): reads, alters and deletes their start offsets.

The start offset of a partition is the first one that the group has not finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ottla.client.admin import Outcome
from ottla.client.cluster import Cluster
from ottla.client.errors import raise_for
from ottla.client.groups import OffsetAndMetadata
from ottla.client.offsets import by_topic
from ottla.core.errors import error_for
from ottla.core.ids import TopicPartition
from ottla.core.runtime import new_uuid
from ottla.wire.apis import ApiKey

_JOIN_EPOCH, _LEAVE_EPOCH = 0, -1

if TYPE_CHECKING:
    from ottla.wire.generated.describe_share_group_offsets import DescribeShareGroupOffsetsResponse


async def start_offsets(cluster: Cluster, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """Fetch the start offsets of all partitions of a share group; partitions without one are left out."""
    from ottla.wire.generated.describe_share_group_offsets import (
        DescribeShareGroupOffsetsRequest,
        DescribeShareGroupOffsetsRequestGroup,
    )

    group = DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=None)
    ask = DescribeShareGroupOffsetsRequest(groups=[group])

    async def attempt() -> dict[TopicPartition, OffsetAndMetadata]:
        node_id = await cluster.coordinator(group_id)
        answer: DescribeShareGroupOffsetsResponse = await cluster.request(
            node_id, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, ask
        )
        found = answer.groups[0]
        raise_for(found.error_code, found.error_message, about=f"group {group_id}")
        offsets = {}
        for topic in found.topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.topic_name, p.partition_index)
                raise_for(p.error_code, p.error_message, about=f"{tp} in group {group_id}")
                if p.start_offset >= 0:
                    offsets[tp] = OffsetAndMetadata(p.start_offset, p.leader_epoch, "")
        return offsets

    return await cluster.retrying(attempt)


async def create_share_group(cluster: Cluster, group_id: str, topics: Sequence[str]) -> None:
    """Create a share group without members: a member joins, which subscribes these topics, and leaves.

    A broker alters start offsets only of a group that exists.
    """
    from ottla.wire.generated.share_group_heartbeat import ShareGroupHeartbeatRequest

    member_id = str(new_uuid())
    for member_epoch in (_JOIN_EPOCH, _LEAVE_EPOCH):

        async def attempt(member_epoch: int = member_epoch) -> None:
            ask = ShareGroupHeartbeatRequest(
                group_id=group_id,
                member_id=member_id,
                member_epoch=member_epoch,
                subscribed_topic_names=list(topics) if member_epoch == _JOIN_EPOCH else None,
            )
            node_id = await cluster.coordinator(group_id)
            answer = await cluster.request(node_id, ApiKey.SHARE_GROUP_HEARTBEAT, ask)
            raise_for(answer.error_code, answer.error_message, about=f"group {group_id}")

        await cluster.retrying(attempt)


async def alter_start_offsets(cluster: Cluster, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Set start offsets of a share group that has no members. Raises the first error."""
    from ottla.wire.generated.alter_share_group_offsets import (
        AlterShareGroupOffsetsRequest,
        AlterShareGroupOffsetsRequestPartition,
        AlterShareGroupOffsetsRequestTopic,
    )

    topics = [
        AlterShareGroupOffsetsRequestTopic(
            topic_name=topic,
            partitions=[
                AlterShareGroupOffsetsRequestPartition(partition_index=tp.partition, start_offset=offsets[tp])
                for tp in group
            ],
        )
        for topic, group in by_topic(offsets).items()
    ]

    async def attempt() -> None:
        node_id = await cluster.coordinator(group_id)
        ask = AlterShareGroupOffsetsRequest(group_id=group_id, topics=topics)
        answer = await cluster.request(node_id, ApiKey.ALTER_SHARE_GROUP_OFFSETS, ask)
        raise_for(answer.error_code, answer.error_message, about=f"group {group_id}")
        for topic in answer.responses:
            for p in topic.partitions:
                about = f"{topic.topic_name}-{p.partition_index} in group {group_id}"
                raise_for(p.error_code, p.error_message, about=about)

    await cluster.retrying(attempt)


async def delete_start_offsets(cluster: Cluster, group_id: str, topics: Iterable[str]) -> list[Outcome]:
    """Delete the start offsets of a share group in these topics, of all their partitions."""
    from ottla.wire.generated.delete_share_group_offsets import (
        DeleteShareGroupOffsetsRequest,
        DeleteShareGroupOffsetsRequestTopic,
    )

    named = [DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics]

    async def attempt() -> list[Outcome]:
        node_id = await cluster.coordinator(group_id)
        ask = DeleteShareGroupOffsetsRequest(group_id=group_id, topics=named)
        answer = await cluster.request(node_id, ApiKey.DELETE_SHARE_GROUP_OFFSETS, ask)
        raise_for(answer.error_code, answer.error_message, about=f"group {group_id}")
        return [
            Outcome(t.topic_name, error_for(t.error_code, t.error_message or "") if t.error_code else None)
            for t in answer.responses
        ]

    return await cluster.retrying(attempt)
