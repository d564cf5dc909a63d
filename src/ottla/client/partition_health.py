"""Finds the partitions that have no leader, or fewer replicas in sync than they should."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ottla.client import replica_admin
from ottla.client.cluster import Cluster
from ottla.client.errors import CannotConnect
from ottla.client.metadata import TopicInfo
from ottla.client.replica_admin import Reassignment
from ottla.core.errors import KafkaError
from ottla.core.ids import TopicPartition


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
        return ", ".join(named) or "ok"


async def unhealthy_partitions(
    cluster: Cluster, topics: Sequence[TopicInfo], *, moving: Iterable[Reassignment] | None = None
) -> list[UnhealthyPartition]:
    """Return the partitions with a problem, in the order of the topics.

    `moving` are the moves that are under way; without it the controller is asked for them, if it can be.
    """
    found = [
        (TopicPartition(topic.name, p.partition), p)
        for topic in topics
        for p in topic.partitions
        if p.leader_id < 0 or len(p.isr) < len(p.replicas)
    ]
    if not found:
        return []
    if moving is None:
        moving = ()
        with contextlib.suppress(KafkaError, CannotConnect):
            moving = await replica_admin.list_reassignments(cluster, retry_s=0)
    adding = {each.tp: len(each.adding) for each in moving}
    required = await replica_admin.min_insync_replicas(cluster, sorted({tp.topic for tp, _ in found}))
    checked = []
    for tp, p in found:
        replicas = len(p.replicas) - adding.get(tp, 0)
        needed = min(required.get(tp.topic, 1), replicas)
        checked.append(UnhealthyPartition(tp, p.leader_id < 0, len(p.isr), replicas, needed))
    return [each for each in checked if each.is_offline or each.is_under_replicated or each.is_under_min_isr]


def count_health(found: Iterable[UnhealthyPartition]) -> HealthCounts:
    """Count the problems."""
    listed = list(found)
    return HealthCounts(
        sum(each.is_offline for each in listed),
        sum(each.is_under_replicated for each in listed),
        sum(each.is_under_min_isr for each in listed),
    )
