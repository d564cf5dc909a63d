"""Fetches the committed offsets of many groups at once: a request per coordinator and some hundred groups (KIP-709)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ottla.client import groups, share_groups
from ottla.client.cluster import Cluster
from ottla.client.errors import CannotConnect
from ottla.client.groups import GroupListing
from ottla.core.errors import KafkaError, UnsupportedVersion
from ottla.core.ids import GroupType, TopicPartition
from ottla.wire.apis import ApiKey

if TYPE_CHECKING:
    from ottla.wire.generated.describe_share_group_offsets import DescribeShareGroupOffsetsResponse
    from ottla.wire.generated.offset_fetch import OffsetFetchResponse

Offsets = dict[TopicPartition, int]
_SEVERAL_GROUPS_SINCE = 8  # OffsetFetch
_GROUPS_PER_REQUEST = 200


async def offsets_of_groups(cluster: Cluster, listings: Iterable[GroupListing]) -> dict[str, Offsets]:
    """Return the committed offsets, or start offsets of share groups; a group that cannot be read is left out."""
    by_request: dict[tuple[int, bool], list[str]] = {}
    for listing in listings:
        key = listing.coordinator_id, listing.kind == GroupType.SHARE
        by_request.setdefault(key, []).append(listing.group_id)
    asked = [
        _fetch(cluster, node_id, names[first : first + _GROUPS_PER_REQUEST], is_share=is_share)
        for (node_id, is_share), names in by_request.items()
        for first in range(0, len(names), _GROUPS_PER_REQUEST)
    ]
    offsets: dict[str, Offsets] = {}
    for part in await asyncio.gather(*asked):
        offsets |= part
    return offsets


async def _fetch(cluster: Cluster, node_id: int, names: Sequence[str], *, is_share: bool) -> dict[str, Offsets]:
    try:
        if is_share:
            return await _fetch_share(cluster, node_id, names)
        connection = await cluster.connection(node_id)
        if connection.versions.get(ApiKey.OFFSET_FETCH, (0, 0))[1] < _SEVERAL_GROUPS_SINCE:
            return await _one_by_one(cluster, names, is_share=False)
        return await _fetch_classic(cluster, node_id, names)
    except UnsupportedVersion:
        return await _one_by_one(cluster, names, is_share=is_share)
    except (KafkaError, CannotConnect):
        return {}


async def _fetch_classic(cluster: Cluster, node_id: int, names: Sequence[str]) -> dict[str, Offsets]:
    from ottla.wire.generated.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

    ask = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=None) for name in names])
    answer: OffsetFetchResponse = await cluster.request(node_id, ApiKey.OFFSET_FETCH, ask, at_most=groups.NAMES_UNTIL)
    return {
        group.group_id: {
            TopicPartition(topic.name, p.partition_index): p.committed_offset
            for topic in group.topics
            for p in topic.partitions
            if not p.error_code and p.committed_offset >= 0
        }
        for group in answer.groups
        if not group.error_code
    }


async def _fetch_share(cluster: Cluster, node_id: int, names: Sequence[str]) -> dict[str, Offsets]:
    from ottla.wire.generated.describe_share_group_offsets import (
        DescribeShareGroupOffsetsRequest,
        DescribeShareGroupOffsetsRequestGroup,
    )

    asked = [DescribeShareGroupOffsetsRequestGroup(group_id=name, topics=None) for name in names]
    answer: DescribeShareGroupOffsetsResponse = await cluster.request(
        node_id, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, DescribeShareGroupOffsetsRequest(groups=asked)
    )
    return {
        group.group_id: {
            TopicPartition(topic.topic_name, p.partition_index): p.start_offset
            for topic in group.topics
            for p in topic.partitions
            if not p.error_code and p.start_offset >= 0
        }
        for group in answer.groups
        if not group.error_code
    }


async def _one_by_one(cluster: Cluster, names: Sequence[str], *, is_share: bool) -> dict[str, Offsets]:
    offsets = {}
    read = share_groups.start_offsets if is_share else groups.committed_offsets
    for name in names:
        try:
            offsets[name] = {tp: committed.offset for tp, committed in (await read(cluster, name)).items()}
        except (KafkaError, CannotConnect):
            continue
    return offsets
