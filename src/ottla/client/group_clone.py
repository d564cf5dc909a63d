"""Copies the offsets of a group to a new one, which then reads on from where the first one is."""

from __future__ import annotations

from collections.abc import Collection

from ottla.client import groups, share_groups
from ottla.client.cluster import Cluster
from ottla.client.group_lag import offsets_of
from ottla.client.groups import OffsetAndMetadata
from ottla.core.errors import GroupIdNotFound
from ottla.core.ids import GroupType, TopicPartition


class CannotClone(Exception):
    """Reports that there is nothing to copy, or that the new group exists."""


async def clone_group(
    cluster: Cluster, source: str, target: str, *, topics: Collection[str] = (), dry_run: bool = False
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Create a group with the offsets of another one, of all topics or these; returns them.

    The first group may have members; the copy has what they had committed. Raises `CannotClone`, or `GroupIdNotFound`
    for the first group.
    """
    group = await groups.describe_group(cluster, source)
    offsets = {tp: at for tp, at in (await offsets_of(cluster, group)).items() if not topics or tp.topic in topics}
    if not offsets:
        raise CannotClone(f"group {source} has no offsets" + (f" in {', '.join(topics)}" if topics else ""))
    if await _exists(cluster, target):
        raise CannotClone(f"group {target} exists")
    positions = {tp: at.offset for tp, at in offsets.items()}
    if dry_run:
        return offsets
    if group.kind is GroupType.SHARE:
        await share_groups.create_share_group(cluster, target, sorted({tp.topic for tp in offsets}))
        await share_groups.alter_start_offsets(cluster, target, positions)
    else:
        metadata = {tp: at.metadata for tp, at in offsets.items()}
        await groups.commit_offsets(cluster, target, positions, metadata=metadata)
    return offsets


async def _exists(cluster: Cluster, name: str) -> bool:
    try:
        await groups.describe_group(cluster, name)
    except GroupIdNotFound:
        return False
    return True
