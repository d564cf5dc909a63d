"""Decides the creation, growth and deletion of topics. The rules and the errors are Kafka 4.4's."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ottla.controller.config import ControllerConfig
from ottla.controller.election_events import first_state
from ottla.controller.overlay import OPS_PER_COMMIT, Overlay, encoded_assignment, encoded_state
from ottla.controller.placement import place
from ottla.core.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    PolicyViolation,
    TopicAlreadyExists,
    TopicDeletionDisabled,
    UnknownTopicOrPartition,
)
from ottla.core.ids import NO_TOPIC_ID, why_illegal_topic
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import NO_LEADER, BrokerInfo, ClusterView, PartitionView, TopicView, metric_name
from ottla.metadata_store.store import NO_VERSION, Check, Create, Delete, Node, Op, Put
from ottla.storage.config import topic_config

log = logging.getLogger(__name__)

BROKER_DEFAULT = -1
"""As a number of partitions or replicas: the number in the broker's settings."""

PARTITIONS_PER_REQUEST_MAX = 10_000
"""Kafka's own bound on what one request may create."""


class CreateTopic(NamedTuple):
    """Create a topic. With `assignments` (partition -> brokers) the two numbers must be `BROKER_DEFAULT`."""

    name: str
    partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Mapping[str, str | None] = MappingProxyType({})
    topic_id: uuid.UUID = NO_TOPIC_ID  # drawn by the controller
    start: int = 0  # where placement starts on the ring of brokers: drawn too


class CreatePartitions(NamedTuple):
    """Grow a topic to `total` partitions; `assignments` are the brokers of each new one."""

    name: str
    total: int
    assignments: Sequence[Sequence[int]] | None = None
    start: int = 0


class DeleteTopic(NamedTuple):
    """Delete a topic with its records and settings."""

    name: str


def create_topic(overlay: Overlay, event: CreateTopic) -> TopicView:
    """Decide the creation of a topic; returns it. Raises the `KafkaError`."""
    _check_name(overlay, event.name)
    config = _given_config(event.configs)
    topic_config(overlay.rules.log_defaults, config)
    view = overlay.base
    replicas = _manual(view, event) if event.assignments else _placed(view, event, overlay.rules.config)
    partitions = [new_partition(view, index, brokers) for index, brokers in enumerate(replicas)]
    topic = TopicView(event.name, event.topic_id, tuple(partitions), config, 0, 0 if config else NO_VERSION)
    ops: list[Op] = [
        Create(znodes.topic_path(event.name), encoded_assignment(topic)),
        Create(f"{znodes.topic_path(event.name)}/partitions"),
    ]
    if config:
        ops.append(Create(znodes.topic_config_path(event.name), znodes.encode_config(config)))
    overlay.put_topic(event.name, topic, [*ops, *_new_states(event.name, partitions, overlay)])
    return topic


def _check_name(overlay: Overlay, name: str) -> None:
    why = why_illegal_topic(name)
    if why is not None:
        raise InvalidTopic(why)
    if overlay.topic(name) is not None:
        raise TopicAlreadyExists(f"Topic '{name}' already exists.")
    twin = overlay.topic_of_metric_name(metric_name(name))
    if twin is not None:
        raise InvalidTopic(f"Topic '{name}' collides with existing topic: {twin}")


def _given_config(configs: Mapping[str, str | None]) -> dict[str, str]:
    given = {key: value for key, value in configs.items() if value is not None}
    if len(given) < len(configs):
        without = ",".join(sorted(configs.keys() - given.keys()))
        raise InvalidConfig(f"Null value not supported for topic configs: {without}")
    return given


def _placed(view: ClusterView, event: CreateTopic, config: ControllerConfig) -> list[tuple[int, ...]]:
    if event.replication_factor < BROKER_DEFAULT or event.replication_factor == 0:
        raise InvalidReplicationFactor("Replication factor must be larger than 0, or -1 to use the default value.")
    if event.partitions < BROKER_DEFAULT or event.partitions == 0:
        raise InvalidPartitions("Number of partitions was set to an invalid non-positive value.")
    partitions = config.num_partitions if event.partitions == BROKER_DEFAULT else event.partitions
    replication_factor = (
        config.default_replication_factor if event.replication_factor == BROKER_DEFAULT else event.replication_factor
    )
    _check_amount(partitions)
    return place(
        _usable(view, replication_factor),
        first_partition=0,
        partitions=partitions,
        replication_factor=replication_factor,
        start=event.start,
    )


def _manual(view: ClusterView, event: CreateTopic) -> list[tuple[int, ...]]:
    if event.replication_factor != BROKER_DEFAULT:
        raise InvalidRequest("A manual partition assignment was specified, but replication factor was not set to -1.")
    if event.partitions != BROKER_DEFAULT:
        raise InvalidRequest("A manual partition assignment was specified, but numPartitions was not set to -1.")
    by_index: dict[int, tuple[int, ...]] = {}
    replication_factor: int | None = None
    for index, brokers in event.assignments:
        if index in by_index:
            raise InvalidReplicaAssignment(f"Found multiple manual partition assignments for partition {index}")
        by_index[index] = checked_assignment(view, brokers, replication_factor)
        replication_factor = len(brokers)
    if sorted(by_index) != list(range(len(by_index))):
        raise InvalidReplicaAssignment("partitions should be a consecutive 0-based integer sequence")
    _check_amount(len(by_index))
    return [by_index[index] for index in range(len(by_index))]


def checked_assignment(view: ClusterView, brokers: Sequence[int], replication_factor: int | None) -> tuple[int, ...]:
    """Validate the manual assignment of one partition. Brokers that are down may be named: they are registered."""
    if not brokers:
        raise InvalidReplicaAssignment("The manual partition assignment includes an empty replica list.")
    seen: set[int] = set()
    for broker in sorted(brokers):
        if broker not in view.brokers and broker not in view.replica_reports:
            raise InvalidReplicaAssignment(
                f"The manual partition assignment includes broker {broker}, but no such broker is registered."
            )
        if broker in view.brokers and view.brokers[broker].is_cordoned:
            raise InvalidReplicaAssignment(
                f"The manual partition assignment includes broker {broker}, but all its log directories are cordoned."
            )
        if broker in seen:
            raise InvalidReplicaAssignment(
                f"The manual partition assignment includes the broker {broker} more than once."
            )
        seen.add(broker)
    if replication_factor not in {None, len(brokers)}:
        raise InvalidReplicaAssignment(
            f"The manual partition assignment includes a partition with {len(brokers)} replica(s), but this is not "
            f"consistent with previous partitions, which have {replication_factor} replica(s)."
        )
    return tuple(brokers)


def _check_amount(partitions: int) -> None:
    if partitions > PARTITIONS_PER_REQUEST_MAX:
        raise too_many_partitions()


def too_many_partitions() -> PolicyViolation:
    """Return the error for each topic of a request that would create too many partitions."""
    return PolicyViolation("Excessively large number of partitions per request.")


def create_partitions(overlay: Overlay, event: CreatePartitions) -> TopicView:
    """Decide the growth of a topic; returns it. Raises the `KafkaError`."""
    view, topic = overlay.base, overlay.topic(event.name)
    if topic is None:
        raise UnknownTopicOrPartition
    have = len(topic.partitions)
    if event.total == have:
        raise InvalidPartitions(f"Topic already has {have} partition(s).")
    if event.total < have:
        raise InvalidPartitions(
            f"The topic {event.name} currently has {have} partition(s); {event.total} would not be an increase."
        )
    more = event.total - have
    if event.assignments is None:
        _check_amount(more)
        replicas = place(
            _usable_for(view, topic),
            first_partition=have,
            partitions=more,
            replication_factor=topic.replication_factor,
            start=event.start,
        )
    else:
        if len(event.assignments) != more:
            raise InvalidReplicaAssignment(
                f"Attempted to add {more} additional partition(s), but only {len(event.assignments)} "
                "assignment(s) were specified."
            )
        _check_amount(more)
        replicas = [checked_assignment(view, brokers, topic.replication_factor) for brokers in event.assignments]
    new = [new_partition(view, have + index, brokers) for index, brokers in enumerate(replicas)]
    grown = topic._replace(partitions=(*topic.partitions, *new), version=topic.version + 1)
    ops: list[Op] = [Put(znodes.topic_path(event.name), encoded_assignment(grown), topic.version)]
    overlay.put_topic(event.name, grown, [*ops, *_new_states(event.name, new, overlay)])
    return grown


def delete_topic(overlay: Overlay, event: DeleteTopic) -> None:
    """Decide the deletion of a topic. Raises the `KafkaError`."""
    name = event.name
    if not overlay.rules.config.delete_topics:
        raise TopicDeletionDisabled
    topic = overlay.topic(name)
    if topic is None:
        raise UnknownTopicOrPartition
    noted = _noted(topic.topic_id, name, {each for partition in topic.partitions for each in partition.replicas})
    if 2 * len(topic.partitions) + 4 > OPS_PER_COMMIT:
        begin = [Check(znodes.topic_path(name), topic.version), Create(znodes.topic_deletion_path(name)), *noted]
        overlay.put_topic(name, None, begin)
        return
    ops: list[Op] = []
    for partition in topic.partitions:
        if partition.partition_epoch != NO_VERSION:
            ops.append(Delete(znodes.state_path(name, partition.index), partition.partition_epoch))
            ops.append(Delete(znodes.partition_path(name, partition.index)))
    if topic.config_version != NO_VERSION:
        ops.append(Delete(znodes.topic_config_path(name), topic.config_version))
    ops += [Delete(f"{znodes.topic_path(name)}/partitions"), Delete(znodes.topic_path(name), topic.version)]
    overlay.put_topic(name, None, [*ops, *noted])


def _noted(topic_id: uuid.UUID, name: str, brokers: Iterable[int]) -> list[Op]:
    """Note the brokers that have logs of a deleted topic: one that is down now deletes them at its start."""
    if topic_id == NO_TOPIC_ID:
        return []
    text = znodes.encode_deleted_topic(znodes.DeletedTopic(name, tuple(sorted(brokers))))
    return [Create(znodes.deleted_topic_path(topic_id), text)]


class FinishDeletion(NamedTuple):
    """Remove what is left of a topic whose deletion has begun; `nodes` are all its nodes, parents first.

    The deletion was begun by this controller, an earlier one, or one of Kafka's tools.
    """

    name: str
    nodes: Mapping[str, Node]
    noted: Collection[str]  # the paths of the notes of deleted topics


def finish_deletion(overlay: Overlay, event: FinishDeletion) -> None:
    """Decide the rest of a deletion; the topic's node goes last."""
    topic = event.nodes.get(znodes.topic_path(event.name))
    ops: list[Op] = []
    if topic is not None:
        ops += _note_of(event, topic)
    ops += [Delete(path, node.version) for path, node in reversed(list(event.nodes.items()))]
    overlay.put_nodes([*ops, Delete(znodes.topic_deletion_path(event.name))])


def _note_of(event: FinishDeletion, topic: Node) -> list[Op]:
    try:
        assignment = znodes.decode_assignment(event.name, topic.value)
    except znodes.MalformedNode as error:
        log.error(  # noqa: TRY400 - the message says all
            "topic %s is deleted, but brokers keep its logs: its id is not known, because %s", event.name, error
        )
        return []
    if znodes.deleted_topic_path(assignment.topic_id) in event.noted:
        return []
    brokers = {replica for replicas in assignment.replicas.values() for replica in replicas}
    return _noted(assignment.topic_id, event.name, brokers)


def _usable(view: ClusterView, replication_factor: int) -> list[BrokerInfo]:
    """List the brokers for new replicas: without those that shut down, if there are enough others."""
    taking = [broker for broker in view.brokers.values() if not broker.is_cordoned]
    staying = [broker for broker in taking if not broker.is_shutting_down]
    return staying if len(staying) >= replication_factor else taking


def _usable_for(view: ClusterView, topic: TopicView) -> list[BrokerInfo]:
    """List the brokers for more partitions of a topic: where too few are alive, others of the topic that are down."""
    usable = _usable(view, topic.replication_factor)
    missing = topic.replication_factor - len(usable)
    hosts = {replica for partition in topic.partitions for replica in partition.replicas}
    down = sorted(hosts - view.brokers.keys())[: max(missing, 0)]
    return [*usable, *(BrokerInfo(node, {}, None, -1, {}) for node in down)]


def new_partition(view: ClusterView, index: int, replicas: tuple[int, ...]) -> PartitionView:
    """Return the state of a new, empty partition. Raises `InvalidReplicaAssignment` if no broker of it is alive."""
    partition = first_state(view, PartitionView(index, NO_LEADER, 0, replicas, (), NO_VERSION))
    if partition.leader == NO_LEADER:
        raise InvalidReplicaAssignment(
            f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
            "controlled shutdown."
        )
    return partition


def _new_states(topic: str, partitions: Iterable[PartitionView], overlay: Overlay) -> list[Op]:
    ops: list[Op] = []
    for partition in partitions:
        state = encoded_state(partition, overlay.rules.controller_epoch)
        ops.append(Create(znodes.partition_path(topic, partition.index)))
        ops.append(Create(znodes.state_path(topic, partition.index), state))
    return ops
