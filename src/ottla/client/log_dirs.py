"""Moves replicas between the log directories of their brokers, and shows where they are (KIP-113)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.client.admin import Outcome
from ottla.client.cluster import Cluster
from ottla.client.errors import raise_for
from ottla.client.offsets import by_topic
from ottla.core.errors import ErrorCode, error_for
from ottla.core.ids import TopicPartition
from ottla.wire.apis import ApiKey

if TYPE_CHECKING:
    from ottla.wire.generated.describe_log_dirs import DescribeLogDirsResponse


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica of a broker: where it is, and where it moves to."""

    node_id: int
    tp: TopicPartition
    path: str
    size_bytes: int
    target: str | None = None
    copied_bytes: int = 0
    offset_lag: int = 0  # offsets that are still to be copied


async def replicas(cluster: Cluster, node_ids: Collection[int]) -> list[Replica]:
    """List the replicas of these brokers, sorted by broker and partition. Raises KafkaError."""
    from ottla.wire.generated.describe_log_dirs import DescribeLogDirsPartition, DescribeLogDirsRequest

    ask, nodes = DescribeLogDirsRequest(topics=None), sorted(node_ids)
    answers: list[DescribeLogDirsResponse] = await asyncio.gather(
        *(cluster.request(node, ApiKey.DESCRIBE_LOG_DIRS, ask) for node in nodes)
    )
    current: dict[tuple[int, TopicPartition], tuple[str, int]] = {}
    future: dict[tuple[int, TopicPartition], tuple[str, DescribeLogDirsPartition]] = {}
    for node, answer in zip(nodes, answers, strict=True):
        raise_for(answer.error_code, about=f"log directories of broker {node}")
        for directory in answer.results:
            for topic in directory.topics:
                for found in topic.partitions:
                    key = node, TopicPartition(topic.name, found.partition_index)
                    if found.is_future_key:
                        future[key] = directory.log_dir, found
                    else:
                        current[key] = directory.log_dir, found.partition_size
    listed = []
    for (node, tp), (path, size_bytes) in sorted(current.items()):
        if (copy := future.get((node, tp))) is None:
            listed.append(Replica(node, tp, path, size_bytes))
        else:
            target, found = copy
            listed.append(Replica(node, tp, path, size_bytes, target, found.partition_size, found.offset_lag))
    return listed


async def alter_log_dirs(cluster: Cluster, wanted: Mapping[tuple[int, TopicPartition], str]) -> list[Outcome]:
    """Begin to move replicas to log directories of their brokers, given by broker and partition."""
    from ottla.wire.generated.alter_replica_log_dirs import (
        AlterReplicaLogDir,
        AlterReplicaLogDirsRequest,
        AlterReplicaLogDirTopic,
    )

    outcomes = []
    for node in sorted({node for node, _ in wanted}):
        paths: dict[str, list[TopicPartition]] = {}
        for (broker, tp), path in wanted.items():
            if broker == node:
                paths.setdefault(path, []).append(tp)
        dirs = [
            AlterReplicaLogDir(
                path=path,
                topics=[
                    AlterReplicaLogDirTopic(name=topic, partitions=[tp.partition for tp in group])
                    for topic, group in by_topic(partitions).items()
                ],
            )
            for path, partitions in paths.items()
        ]
        answer = await cluster.request(node, ApiKey.ALTER_REPLICA_LOG_DIRS, AlterReplicaLogDirsRequest(dirs=dirs))
        for topic in answer.results:
            for found in topic.partitions:
                name = f"{topic.topic_name}-{found.partition_index} on broker {node}"
                code = found.error_code
                outcomes.append(Outcome(name, None if code == ErrorCode.NONE else error_for(code)))
    return outcomes
