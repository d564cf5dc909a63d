"""Finds the partitions that have no leader, or fewer replicas in sync than they should."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ottla.client import replica_admin
from ottla.client.cluster import Cluster
from ottla.client.errors import CannotConnect
from ottla.client.metadata import PartitionInfo, TopicInfo
from ottla.client.replica_admin import Reassignment
from ottla.core.errors import KafkaError
from ottla.core.ids import TopicPartition

_CONTROLLER_S = 5.0
WELL = "ok"


@dataclass(frozen=True, slots=True)
class UnhealthyPartition:
    """A partition with a problem. `replicas` is without those that a move adds, as brokers count them."""

    tp: TopicPartition
    is_offline: bool
    in_sync: int
    replicas: int
    required: int  # min.insync.replicas, as far as there are so many replicas

    @property
    def is_under_replicated(self) -> bool:
        """Return whether it has a leader, and replicas that are not in sync."""
        return not self.is_offline and self.in_sync < self.replicas

    @property
    def is_under_min_isr(self) -> bool:
        """Return whether it has a leader that refuses acks=all."""
        return not self.is_offline and self.in_sync < self.required


class HealthCounts(NamedTuple):
    """Counts partitions by problem; one may count twice."""

    offline: int
    under_replicated: int
    under_min_isr: int

    def __str__(self) -> str:
        """Return the problems that there are.

        >>> str(HealthCounts(1, 0, 2)), str(HealthCounts(0, 0, 0))
        ('1 offline, 2 under min isr', 'ok')
        """
        named = [f"{count} {name.replace('_', ' ')}" for name, count in self._asdict().items() if count]
        return ", ".join(named) or WELL


class Moves(NamedTuple):
    """The moves that are under way; `refusal` is the reason if the controller does not return them."""

    running: Sequence[Reassignment]
    refusal: str = ""


async def running_moves(cluster: Cluster) -> Moves:
    """Return the moves that are under way, if the controller answers soon."""
    try:
        async with asyncio.timeout(_CONTROLLER_S):
            return Moves(await replica_admin.list_reassignments(cluster, retry_s=0))
    except TimeoutError:
        return Moves((), f"no answer within {_CONTROLLER_S:g} s")
    except KafkaError as error:
        return Moves((), error.message)
    except CannotConnect as error:
        return Moves((), error.reason)


async def required_replicas(cluster: Cluster, topics: Sequence[TopicInfo]) -> dict[str, int]:
    """Return min.insync.replicas of the topics that have a partition without a leader or with replicas out of sync."""
    return await replica_admin.min_insync_replicas(
        cluster, [topic.name for topic in topics if any(map(_may_have_problem, topic.partitions))]
    )


async def unhealthy_partitions(cluster: Cluster, topics: Sequence[TopicInfo]) -> list[UnhealthyPartition]:
    """Return the partitions with a problem, in the order of the topics."""
    required = await required_replicas(cluster, topics)
    # asked last: a broker answers in order, and this only when its controller does
    moves = await running_moves(cluster) if required else Moves(())
    return judge_partitions(topics, required, moves.running)


def judge_partitions(
    topics: Sequence[TopicInfo], required: Mapping[str, int], moving: Iterable[Reassignment]
) -> list[UnhealthyPartition]:
    """Return the partitions with a problem, by the settings and the moves of now."""
    adding = {reassignment.tp: len(reassignment.adding) for reassignment in moving}
    checked = []
    for topic in topics:
        for p in filter(_may_have_problem, topic.partitions):
            tp = TopicPartition(topic.name, p.partition)
            replicas = len(p.replicas) - adding.get(tp, 0)
            needed = min(required.get(topic.name, 1), replicas)
            checked.append(UnhealthyPartition(tp, p.leader_id < 0, len(p.isr), replicas, needed))
    return [
        partition
        for partition in checked
        if partition.is_offline or partition.is_under_replicated or partition.is_under_min_isr
    ]


def _may_have_problem(partition: PartitionInfo) -> bool:
    return partition.leader_id < 0 or len(partition.isr) < len(partition.replicas)


def count_health(found: Iterable[UnhealthyPartition]) -> HealthCounts:
    """Count the problems."""
    listed = list(found)
    return HealthCounts(
        sum(partition.is_offline for partition in listed),
        sum(partition.is_under_replicated for partition in listed),
        sum(partition.is_under_min_isr for partition in listed),
    )
