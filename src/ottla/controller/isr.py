"""Decides changes of the in-sync replicas that leaders propose (AlterPartition: KIP-497, 841 and 903).

The order of the checks and the errors are those of Kafka's ReplicationControlManager. One differs: a proposal that
is already in force succeeds whatever its partition epoch, so that a leader may repeat a request with a lost answer.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple

from ottla.controller.next_partition_state import PartitionTarget, changed
from ottla.controller.overlay import Overlay
from ottla.core.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    KafkaError,
    NewLeaderElected,
    NotController,
    StaleBrokerEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from ottla.core.ids import UNKNOWN_BROKER_EPOCH
from ottla.metadata_store.cluster_view import PartitionView


class ProposedIsr(NamedTuple):
    """Holds the ISR that a leader proposes for a partition."""

    topic_id: uuid.UUID
    partition: int
    leader_epoch: int
    partition_epoch: int
    new_isr: Sequence[tuple[int, int]]  # node id and broker epoch
    is_recovering: bool = False


class AlterPartition(NamedTuple):
    """Change the ISR of partitions as their leader proposes."""

    broker_id: int
    broker_epoch: int
    changes: Sequence[ProposedIsr]


class AlterPartitionResult(NamedTuple):
    """Holds the state of a partition after an accepted proposal."""

    topic_id: uuid.UUID
    partition: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    is_recovering: bool
    partition_epoch: int


def check_broker_epoch(overlay: Overlay, broker_id: int, broker_epoch: int) -> None:
    """Raise `StaleBrokerEpoch` unless the broker is registered with this epoch."""
    broker = overlay.base.brokers.get(broker_id)
    if broker is None:
        raise StaleBrokerEpoch(f"Broker {broker_id} is not registered.")
    if broker.epoch != broker_epoch:
        raise StaleBrokerEpoch(f"Expected broker epoch {broker.epoch} of broker {broker_id}, but got {broker_epoch}.")


def alter_partition(overlay: Overlay, leader: int, proposed: ProposedIsr) -> AlterPartitionResult:
    """Decide one proposal of the broker `leader`; the caller has checked its broker epoch. Raises the `KafkaError`.

    Raises `NewLeaderElected` if the proposal was accepted and completed a reassignment by which the leader leaves.
    """
    topic = overlay.topic_by_id(proposed.topic_id)
    if topic is None:
        raise UnknownTopicId
    partition = overlay.partition(topic, proposed.partition)
    if partition is None:
        raise UnknownTopicOrPartition
    if _check(overlay, topic, partition, leader, proposed):
        return _altered(proposed.topic_id, partition)
    wanted = {node for node, _ in proposed.new_isr}
    isr = tuple(replica for replica in partition.replicas if replica in wanted)
    target = PartitionTarget(isr=isr, is_recovering=proposed.is_recovering)
    new = changed(partition, overlay.election_rules(topic, partition.index), target)
    if new is None:
        return _altered(proposed.topic_id, partition)
    overlay.put_partition(topic, new)
    if new.leader != leader:
        raise NewLeaderElected
    return _altered(proposed.topic_id, new)


def _check(overlay: Overlay, topic: str, partition: PartitionView, leader: int, proposed: ProposedIsr) -> bool:
    """Check a proposal; returns whether it is in force already. Raises the `KafkaError`."""
    if proposed.leader_epoch > partition.leader_epoch or proposed.partition_epoch > partition.partition_epoch:
        raise NotController  # the leader knows a newer state: there is another controller
    if proposed.leader_epoch < partition.leader_epoch:
        raise FencedLeaderEpoch
    if leader != partition.leader:
        raise InvalidRequest(f"The leader of {topic}-{partition.index} is {partition.leader}.")
    new_isr = [node for node, _ in proposed.new_isr]
    is_in_force = set(new_isr) == set(partition.isr) and proposed.is_recovering == partition.is_recovering
    if is_in_force and len(new_isr) == len(partition.isr):
        return True
    if proposed.partition_epoch < partition.partition_epoch:
        raise InvalidUpdateVersion
    if not new_isr or len(set(new_isr)) < len(new_isr) or not set(new_isr).issubset(partition.replicas):
        raise InvalidRequest(f"{new_isr} is not a set of replicas of {topic}-{partition.index}.")
    if leader not in new_isr:
        raise InvalidRequest(f"The ISR {new_isr} of {topic}-{partition.index} does not include its leader.")
    if proposed.is_recovering and len(new_isr) > 1:
        raise InvalidRequest(f"The ISR of {topic}-{partition.index} cannot grow while its leader recovers.")
    if proposed.is_recovering and not partition.is_recovering:
        raise InvalidRequest(f"{topic}-{partition.index} has recovered and cannot be recovering again.")
    ineligible = _ineligible(overlay, topic, partition, proposed)
    if ineligible:
        raise IneligibleReplica(f"Replicas of {topic}-{partition.index} cannot be in sync: {', '.join(ineligible)}.")
    return False


def _ineligible(overlay: Overlay, topic: str, partition: PartitionView, proposed: ProposedIsr) -> list[str]:
    rules = overlay.election_rules(topic, partition.index)
    # the leader itself may be impaired, and hands over to the replica that joins
    kept = rules.without_impaired(tuple(node for node, _ in proposed.new_isr))
    impaired = {node for node, _ in proposed.new_isr if node not in kept} - {*partition.isr}
    found = []
    for node, epoch in proposed.new_isr:
        broker = rules.brokers.get(node)
        if broker is None:
            found.append(f"{node} (not registered)")
        elif broker.is_shutting_down:
            found.append(f"{node} (shutting down)")
        elif epoch not in {UNKNOWN_BROKER_EPOCH, broker.epoch}:
            found.append(f"{node} (broker epoch {epoch}, registered with {broker.epoch})")
        elif node in rules.offline:
            found.append(f"{node} (its log directory is offline)")
        elif node in rules.suspects:
            found.append(f"{node} (it reports lost records)")
        elif node in impaired:
            found.append(f"{node} (it reports corrupt records or a full disk)")
    return found


def _altered(topic_id: uuid.UUID, partition: PartitionView) -> AlterPartitionResult:
    return AlterPartitionResult(
        topic_id,
        partition.index,
        partition.leader,
        partition.leader_epoch,
        partition.isr,
        partition.is_recovering,
        partition.partition_epoch,
    )


def alter_partitions(overlay: Overlay, request: AlterPartition) -> list[AlterPartitionResult | KafkaError]:
    """Decide the proposals of a leader, each for itself. Raises `StaleBrokerEpoch`."""
    check_broker_epoch(overlay, request.broker_id, request.broker_epoch)
    outcomes: list[AlterPartitionResult | KafkaError] = []
    for proposed in request.changes:
        try:
            outcomes.append(alter_partition(overlay, request.broker_id, proposed))
        except KafkaError as error:
            outcomes.append(error)
    return outcomes
