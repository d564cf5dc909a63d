"""Determines which leader and replicas of a partition are reported to clients."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from ottla.core.errors import ErrorCode
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import ClusterView, PartitionView

if TYPE_CHECKING:
    from ottla.broker.services import Services


class ReplicaStates(NamedTuple):
    """Holds the node ids of a partition's replicas by their state."""

    isr: list[int]
    offline: list[int]  # replicas of dead brokers, and those in offline log directories
    eligible: list[int]  # eligible leader replicas (KIP-966); our own, if it was in sync when its directory was lost


def replica_states(services: Services, view: ClusterView, topic: str, partition: PartitionView) -> ReplicaStates:
    """Return the states as Kafka reports them: a replica on an offline directory is out of sync, but may lead again."""
    isr, offline, eligible = list(partition.isr), list(view.offline_replicas(partition)), list(partition.elr)
    if view.replica_reports:
        where = TopicPartition(topic, partition.index)
        for node_id in partition.replicas:
            report = view.replica_reports.get(node_id)
            if report is not None and where in report.offline and node_id not in offline:
                offline.append(node_id)
    ours = services.node_id
    if not services.replicas.is_offline(topic, partition.index) or ours not in partition.replicas:
        return ReplicaStates(isr, offline, eligible)
    if ours in isr and ours not in eligible:
        eligible.append(ours)
    if ours not in offline:
        offline.append(ours)
    return ReplicaStates([node for node in isr if node != ours], offline, eligible)


def reachable_leader(
    view: ClusterView, partition: PartitionView, offline: Collection[int], listener: str
) -> tuple[ErrorCode, int]:
    """Return the leader that a client of this listener can reach, or the error."""
    broker = view.brokers.get(partition.leader)
    if broker is None or partition.leader in offline:
        return ErrorCode.LEADER_NOT_AVAILABLE, -1
    if listener not in broker.endpoints:
        return ErrorCode.LISTENER_NOT_FOUND, -1
    return ErrorCode.NONE, partition.leader
