"""Provides what several handlers share: timeouts, leaders and replicas of a partition, error fields."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ottla.coordination.view import ClusterView, PartitionView
from ottla.core.errors import ErrorCode, InvalidTopic, KafkaError, RequestTimedOut
from ottla.core.ids import TopicPartition, why_illegal_topic
from ottla.limits.loop_slices import LoopSlices

if TYPE_CHECKING:
    from ottla.broker.context import Services

T = TypeVar("T")

OPERATIONS_OMITTED = -2147483648
"""As a set of authorized operations: not requested by the client (KIP-430)."""

ALL_TOPIC_OPERATIONS = 0b1101_1111_1000
"""READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS: all, as there are no ACLs."""

ALL_CLUSTER_OPERATIONS = 0b1_1111_1010_0000
"""CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE."""

NO_AUTHORIZER = "No Authorizer is configured."
"""Kafka's own words, by which clients recognise a cluster without access control."""


async def with_timeout(timeout_ms: int, work: Coroutine[Any, Any, T]) -> T:
    """Return the result or raise `RequestTimedOut`; with a timeout of 0 the work is not started, as in Kafka."""
    if timeout_ms <= 0:
        work.close()
        raise RequestTimedOut
    try:
        return await asyncio.wait_for(work, timeout_ms / 1000)
    except TimeoutError:
        raise RequestTimedOut from None


class Replication(NamedTuple):
    """Holds the state of a partition's replicas as reported to clients."""

    isr: list[int]
    offline: list[int]  # replicas of dead brokers, and those in offline log directories
    eligible: list[int]  # eligible leader replicas (KIP-966); our own, if it was in sync when its directory was lost


def replication_of(services: Services, topic: str, partition: PartitionView) -> Replication:
    """Return the state as Kafka reports it: a replica on an offline directory is out of sync, but may lead again."""
    view = services.cluster.current
    isr, offline, eligible = list(partition.isr), list(view.offline_replicas(partition)), list(partition.elr)
    if view.replica_reports:
        where = TopicPartition(topic, partition.index)
        for node_id in partition.replicas:
            report = view.replica_reports.get(node_id)
            if report is not None and where in report.offline and node_id not in offline:
                offline.append(node_id)
    ours = services.node_id
    if not services.replicas.is_offline(topic, partition.index) or ours not in partition.replicas:
        return Replication(isr, offline, eligible)
    if ours in isr and ours not in eligible:
        eligible.append(ours)
    if ours not in offline:
        offline.append(ours)
    return Replication([node for node in isr if node != ours], offline, eligible)


def leader_of(
    view: ClusterView, partition: PartitionView, offline: Collection[int], listener: str
) -> tuple[ErrorCode, int]:
    """Return the leader that a client of this listener can reach, or the error."""
    broker = view.brokers.get(partition.leader)
    if broker is None or partition.leader in offline:
        return ErrorCode.LEADER_NOT_AVAILABLE, -1
    if listener not in broker.endpoints:
        return ErrorCode.LISTENER_NOT_FOUND, -1
    return ErrorCode.NONE, partition.leader


def check_topic_name(name: str) -> None:
    """Raise `InvalidTopic` for an illegal topic name."""
    why = why_illegal_topic(name)
    if why is not None:
        raise InvalidTopic(f"Topic name is invalid: {why}")


def error_fields(error: KafkaError | None) -> tuple[int, str | None]:
    """Return the error code and message of an outcome, as most responses have them."""
    return (ErrorCode.NONE, None) if error is None else (error.code, error.message)


async def duplicates(slices: LoopSlices, names: list[T]) -> set[T]:
    """Return the items that occur more than once."""
    seen: set[T] = set()
    twice: set[T] = set()
    async for name in slices.each(names):
        (twice if name in seen else seen).add(name)
    return twice


def naming_work(group_id: str) -> int:
    """Return the work, for a slice, of finding a group by its name: each character counts in its hash."""
    return len(group_id) // 16
