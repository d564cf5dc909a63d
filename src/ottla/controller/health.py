"""Counts the partitions that need an operator's attention, from the snapshot of the cluster."""

from __future__ import annotations

from typing import NamedTuple

from ottla.controller.overlay import Overlay, Rules
from ottla.coordination.view import ClusterView, PartitionView
from ottla.core.ids import TopicPartition


class ClusterHealth(NamedTuple):
    """Lists partitions by what is wrong with them. The terms are those of Kafka's tools."""

    offline: list[TopicPartition]  # without a live leader
    under_replicated: list[TopicPartition]  # a replica is not in sync
    under_min_isr: list[TopicPartition]  # fewer in sync than min.insync.replicas: acks=all is refused
    at_min_isr: list[TopicPartition]  # exactly so many: one loss more and acks=all is refused
    without_preferred_leader: list[TopicPartition]
    reassigning: list[TopicPartition]


def cluster_health(view: ClusterView, rules: Rules) -> ClusterHealth:
    """Examine all partitions; replicas that a reassignment adds are not missed."""
    found = ClusterHealth([], [], [], [], [], [])
    overlay = Overlay(view, rules)
    for topic in view.topics.values():
        min_isr = overlay.min_isr(topic.name)
        for partition in topic.partitions:
            _examine(view, TopicPartition(topic.name, partition.index), partition, min_isr, found)
    return found


def _examine(
    view: ClusterView, name: TopicPartition, partition: PartitionView, min_isr: int, found: ClusterHealth
) -> None:
    in_sync = sum(replica in view.brokers for replica in partition.isr)
    wanted = len(partition.replicas) - len(partition.adding)
    required = min(min_isr, wanted)
    is_online = partition.leader in view.brokers
    if not is_online:
        found.offline.append(name)
    elif partition.leader != partition.replicas[0]:
        found.without_preferred_leader.append(name)
    if in_sync < wanted or not is_online:
        found.under_replicated.append(name)
    if in_sync < required or not is_online:
        found.under_min_isr.append(name)
    elif in_sync == required and required < wanted:
        found.at_min_isr.append(name)
    if partition.adding or partition.removing:
        found.reassigning.append(name)
