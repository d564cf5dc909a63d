"""Finds out whether a cluster is well: its brokers, their disks, its controller and its partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ottla.client import admin
from ottla.client.admin import ClusterDescription, LogDir
from ottla.client.cluster import Cluster
from ottla.client.errors import CannotConnect
from ottla.client.metadata import TopicInfo
from ottla.client.partition_health import Moves, UnhealthyPartition, judge_partitions, required_replicas, running_moves
from ottla.core.errors import KafkaError
from ottla.core.ids import TopicPartition

_ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """The state of a cluster at one time."""

    described: ClusterDescription
    topics: Sequence[TopicInfo]
    missing: Sequence[int]  # brokers that replicas name, and that are not registered
    unreachable: dict[int, str]  # registered brokers that do not answer, and why
    log_dirs: Sequence[LogDir]  # of those that do
    store_troubles: Sequence[str]  # of brokers without a connection to their metadata store
    moves: Moves  # of replicas, as the controller reports them
    partitions: Sequence[UnhealthyPartition]

    @property
    def has_controller(self) -> bool:
        """Whether a broker that answers is the controller."""
        return self.described.controller_id >= 0 and self.described.controller_id not in self.unreachable


async def check_cluster(cluster: Cluster) -> ClusterHealth:
    """Ask the brokers for their state. Raises CannotConnect if no broker answers."""
    described = await admin.describe_cluster(cluster)
    topics = await admin.list_topics(cluster)
    unreachable, log_dirs = await _ask_brokers(cluster, described)
    required = await required_replicas(cluster, topics)
    is_answering = described.controller_id >= 0 and described.controller_id not in unreachable
    moves = await running_moves(cluster) if is_answering else Moves((), "")
    return ClusterHealth(
        described,
        topics,
        missing_brokers(described, topics, moves),
        unreachable,
        log_dirs,
        await admin.store_troubles(cluster, within_s=_ANSWER_S),
        moves,
        judge_partitions(topics, required, moves.running),
    )


def missing_brokers(described: ClusterDescription, topics: Sequence[TopicInfo], moves: Moves) -> list[int]:
    """Return the brokers that have replicas and are not registered; a replica that a move adds does not count."""
    adding = {reassignment.tp: reassignment.adding for reassignment in moves.running}
    named: set[int] = set()
    if not adding:
        named.update(*{p.replicas for topic in topics for p in topic.partitions})
    for topic in topics if adding else ():
        for p in topic.partitions:
            named.update(set(p.replicas).difference(adding.get(TopicPartition(topic.name, p.partition), ())))
    return sorted(named.difference(node.node_id for node in described.nodes))


async def _ask_brokers(cluster: Cluster, described: ClusterDescription) -> tuple[dict[int, str], list[LogDir]]:
    """Return the brokers that do not answer, and why; and the log directories of the others."""

    async def ask(node_id: int) -> str | list[LogDir]:
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await admin.log_dirs(cluster, [node_id])
        except TimeoutError:
            return f"no answer within {_ANSWER_S:g} s"
        except CannotConnect as error:
            return error.reason
        except KafkaError as error:
            return error.message

    nodes = [node.node_id for node in described.nodes]
    answers = dict(zip(nodes, await asyncio.gather(*map(ask, nodes)), strict=True))
    unreachable = {node: answer for node, answer in answers.items() if isinstance(answer, str)}
    return unreachable, [log_dir for answer in answers.values() if isinstance(answer, list) for log_dir in answer]
