"""Commits offsets of a group that has no members, as an administrator does, and without a client."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.broker.internal_topic_creation import create_if_absent
from ottla.core.errors import ErrorCode, UnknownMemberId
from ottla.core.ids import OFFSETS_TOPIC, TopicPartition
from ottla.groups.machine import Commit
from ottla.groups.offsets import NEVER_MS, CommittedOffset
from ottla.internal_topics.partitioning import partition_of
from ottla.testing.cluster import TestCluster
from ottla.testing.kit.assertions.lookups import partitions_of, running, shards_of, topic_of

_NO_EPOCH = -1
_ADMINISTRATOR = Commit(member_id="", generation=-1, instance_id=None, api_version=9)


async def commit(cluster: TestCluster, group_id: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """Commit offsets by (topic, partition). Raises UnknownTopic, and ValueError for a group that has members."""
    now_ms = cluster.clock.wall_ms()
    committed: dict[TopicPartition, CommittedOffset] = {}
    for (name, partition), offset in offsets.items():
        topic = topic_of(cluster, name)
        (where,) = partitions_of(topic, partition)
        committed[where] = CommittedOffset(offset, _NO_EPOCH, "", now_ms, NEVER_MS, topic.topic_id)
    await create_if_absent(running(cluster)[0], OFFSETS_TOPIC)
    await cluster.known_everywhere(OFFSETS_TOPIC)
    shards = await shards_of(cluster, OFFSETS_TOPIC, lambda services: services.coordinators.groups.led)
    services, _ = shards[partition_of(group_id, len(shards))]
    committing = services.coordinators.groups.commit(group_id, _ADMINISTRATOR, committed)
    try:
        outcomes = await cluster.create_task(services.node_id, committing)
    except UnknownMemberId:
        raise ValueError(f"group {group_id!r} has members, which commit its offsets themselves") from None
    for where, error in outcomes.items():
        if error is not ErrorCode.NONE:
            raise ValueError(f"the offset of {where} cannot be committed: {error.name}")
