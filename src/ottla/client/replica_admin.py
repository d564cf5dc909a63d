"""Moves replicas and elects leaders, as Kafka's Admin client does (KIP-455, KIP-460)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from ottla.client.admin import Outcome
from ottla.client.cluster import ANY_BROKER, Cluster
from ottla.client.errors import CannotConnect, raise_for
from ottla.client.offsets import by_topic
from ottla.core.errors import ErrorCode, NetworkException, RequestTimedOut, error_for
from ottla.core.ids import TopicPartition
from ottla.core.settings import ConfigResourceType
from ottla.wire.apis import ApiKey

if TYPE_CHECKING:
    from ottla.wire.generated.alter_partition_reassignments import AlterPartitionReassignmentsResponse
    from ottla.wire.generated.describe_log_dirs import DescribeLogDirsResponse
    from ottla.wire.generated.elect_leaders import ElectLeadersResponse
    from ottla.wire.generated.list_partition_reassignments import ListPartitionReassignmentsResponse

_MIN_ISR = "min.insync.replicas"


class ElectionType(IntEnum):
    """The kind of a leader election."""

    PREFERRED = 0  # the first replica, if it is in sync
    UNCLEAN = 1  # any live replica: records may be lost


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A move of a partition that is under way. `replicas` has those that are added and removed, too."""

    tp: TopicPartition
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


async def list_reassignments(cluster: Cluster, *, retry_s: float | None = None) -> list[Reassignment]:
    """List the moves that are under way, sorted. Raises KafkaError."""
    from ottla.wire.generated.list_partition_reassignments import ListPartitionReassignmentsRequest

    ask = ListPartitionReassignmentsRequest(timeout_ms=_timeout_ms(cluster), topics=None)
    answer: ListPartitionReassignmentsResponse = await cluster.retrying(
        lambda: cluster.request_controller(ApiKey.LIST_PARTITION_REASSIGNMENTS, ask), retry_s=retry_s
    )
    raise_for(answer.error_code, answer.error_message)
    reassignments = [
        Reassignment(
            TopicPartition(topic.name, p.partition_index),
            tuple(p.replicas),
            tuple(p.adding_replicas),
            tuple(p.removing_replicas),
        )
        for topic in answer.topics
        for p in topic.partitions
    ]
    return sorted(reassignments, key=lambda each: each.tp)


async def alter_reassignments(cluster: Cluster, wanted: Mapping[TopicPartition, Sequence[int] | None]) -> list[Outcome]:
    """Begin to move replicas to these brokers, the preferred leader first; None cancels a move."""
    from ottla.wire.generated.alter_partition_reassignments import (
        AlterPartitionReassignmentsRequest,
        ReassignablePartition,
        ReassignableTopic,
    )

    topics = [
        ReassignableTopic(
            name=topic,
            partitions=[
                ReassignablePartition(
                    partition_index=tp.partition, replicas=None if (replicas := wanted[tp]) is None else list(replicas)
                )
                for tp in group
            ],
        )
        for topic, group in by_topic(wanted).items()
    ]
    ask = AlterPartitionReassignmentsRequest(timeout_ms=_timeout_ms(cluster), topics=topics)
    answer: AlterPartitionReassignmentsResponse = await cluster.retrying(
        lambda: cluster.request_controller(ApiKey.ALTER_PARTITION_REASSIGNMENTS, ask)
    )
    raise_for(answer.error_code, answer.error_message)
    return [
        _outcome(TopicPartition(topic.name, p.partition_index), p.error_code, p.error_message)
        for topic in answer.responses
        for p in topic.partitions
    ]


async def elect_leaders(
    cluster: Cluster, kind: ElectionType, partitions: Collection[TopicPartition] | None
) -> list[Outcome]:
    """Elect leaders of these partitions, or of all. ELECTION_NOT_NEEDED counts as success."""
    from ottla.wire.generated.elect_leaders import ElectLeadersRequest, TopicPartitions

    topics = None
    if partitions is not None:
        topics = [
            TopicPartitions(topic=topic, partitions=[tp.partition for tp in group])
            for topic, group in by_topic(partitions).items()
        ]
    ask = ElectLeadersRequest(election_type=kind, topic_partitions=topics, timeout_ms=_timeout_ms(cluster))
    answer: ElectLeadersResponse = await cluster.retrying(lambda: cluster.request_controller(ApiKey.ELECT_LEADERS, ask))
    raise_for(answer.error_code)
    return [
        _outcome(TopicPartition(topic.topic, p.partition_id), p.error_code, p.error_message)
        for topic in answer.replica_election_results
        for p in topic.partition_result
        if p.error_code != ErrorCode.ELECTION_NOT_NEEDED
    ]


async def min_insync_replicas(cluster: Cluster, topics: Sequence[str]) -> dict[str, int]:
    """Return the setting of each topic, in one request; topics that were deleted meanwhile are left out."""
    from ottla.wire.generated.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

    if not topics:
        return {}
    resources = [
        DescribeConfigsResource(
            resource_type=ConfigResourceType.TOPIC, resource_name=name, configuration_keys=[_MIN_ISR]
        )
        for name in topics
    ]
    ask = DescribeConfigsRequest(resources=resources)
    answer = await cluster.request(ANY_BROKER, ApiKey.DESCRIBE_CONFIGS, ask)
    return {
        result.resource_name: int(config.value)
        for result in answer.results
        for config in result.configs
        if config.value is not None
    }


async def replica_sizes(cluster: Cluster, node_ids: Collection[int]) -> dict[int, dict[TopicPartition, int]]:
    """Return the size in bytes of each replica, by broker and partition, without brokers that cannot be reached."""
    from ottla.wire.generated.describe_log_dirs import DescribeLogDirsRequest

    ask = DescribeLogDirsRequest(topics=None)
    nodes = list(node_ids)

    async def sizes(node: int) -> dict[TopicPartition, int] | None:
        try:
            answer: DescribeLogDirsResponse = await cluster.request(node, ApiKey.DESCRIBE_LOG_DIRS, ask)
        except (CannotConnect, NetworkException, RequestTimedOut):
            return None
        return {
            TopicPartition(topic.name, p.partition_index): p.partition_size
            for directory in answer.results
            for topic in directory.topics
            for p in topic.partitions
            if not p.is_future_key
        }

    found = zip(nodes, await asyncio.gather(*map(sizes, nodes)), strict=True)
    return {node: by_partition for node, by_partition in found if by_partition is not None}


def _outcome(tp: TopicPartition, error_code: int, message: str | None) -> Outcome:
    if error_code == ErrorCode.NONE:
        return Outcome(str(tp))
    return Outcome(str(tp), error_for(error_code, message or error_for(error_code).message))


def _timeout_ms(cluster: Cluster) -> int:
    return int(cluster.options.request_timeout_s * 1000)
