"""Decides what the controller writes, as a pure function of the cluster snapshot and an event.

`decide` never waits and never reads a clock or the store, so a test of a rule is one plain call. Random values come
with the event (a topic's id, the start of placement). Every write names the version it was decided on, and the
controller adds a check of its own epoch, so a decision made on an old snapshot, or by a controller that has been
replaced, changes nothing.

The rules and the errors are Kafka 4.3's (ReplicationControlManager, ConfigurationControlManager).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple, assert_never

from ottla.controller.config import ControllerConfig
from ottla.controller.placement import place
from ottla.coordination import layout
from ottla.coordination.store import NO_VERSION, Create, Delete, Op, Put
from ottla.coordination.view import NO_LEADER, ClusterView, PartitionView, TopicView, metric_name
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
from ottla.core.settings import Type
from ottla.storage.config import LogConfig, topic_config

BROKER_DEFAULT = -1
"""As a number of partitions or replicas: the number in the broker's settings."""

PARTITIONS_PER_REQUEST_MAX = 10_000
"""Kafka's own bound on what one request may create."""

# ---- Events


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


class ConfigOp(IntEnum):
    """Lists the operations on one setting (IncrementalAlterConfigs)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """Holds the change of one setting."""

    op: ConfigOp
    key: str
    value: str | None = None


class ConfigSpec(NamedTuple):
    """Holds the type and the default of a setting: a list can be appended to, starting at its default."""

    kind: Type
    default: str = ""


class AlterConfig(NamedTuple):
    """Change the settings of one entity. `known` are its list settings; `check` raises for invalid values."""

    kind: str  # the directory under /config: topics, brokers, groups, client-metrics
    name: str
    changes: Sequence[ConfigChange]
    known: Mapping[str, ConfigSpec]
    check: Callable[[Mapping[str, str]], object]
    replaces_all: bool = False  # AlterConfigs of old: what is not named goes


class BrokerStarted(NamedTuple):
    """A broker started: it leads its partitions in a new epoch, and partitions that waited for it get a leader."""

    node_id: int


class BrokersGone(NamedTuple):
    """Brokers are no longer alive (and no longer in the snapshot)."""

    node_ids: frozenset[int]


Event = CreateTopic | CreatePartitions | DeleteTopic | AlterConfig | BrokerStarted | BrokersGone


class Decision(NamedTuple):
    """Holds what to write in one commit, and the resulting snapshot, on which the next event is decided."""

    ops: list[Op]
    view: ClusterView


class Rules(NamedTuple):
    """Holds what decisions depend on besides the cluster."""

    config: ControllerConfig
    log_defaults: LogConfig  # a topic's overrides are checked together with these
    controller_epoch: int = 0


# ---- Dispatch


def decide(view: ClusterView, event: Event, rules: Rules) -> Decision:
    """Decide what to write for an event. Raises the `KafkaError` for the client; then nothing changes."""
    match event:
        case CreateTopic():
            return _create_topic(view, event, rules)
        case CreatePartitions():
            return _create_partitions(view, event, rules)
        case DeleteTopic(name):
            return _delete_topic(view, name, rules)
        case AlterConfig():
            return _alter_config(view, event)
        case BrokerStarted(node_id):
            return _elect(view, rules, lambda partition: _after_start(view, partition, node_id))
        case BrokersGone(node_ids):
            return _elect(view, rules, lambda partition: _after_loss(view, partition, node_ids))
        case _:
            assert_never(event)


# ---- Topics


def _create_topic(view: ClusterView, event: CreateTopic, rules: Rules) -> Decision:
    _check_name(view, event.name)
    config = _given_config(event.configs)
    topic_config(rules.log_defaults, config)
    replicas = _manual(view, event) if event.assignments else _placed(view, event, rules.config)
    partitions = [_first_state(view, index, brokers) for index, brokers in enumerate(replicas)]
    topic = TopicView(event.name, event.topic_id, tuple(partitions), config, 0, 0 if config else NO_VERSION)
    ops: list[Op] = [
        Create(layout.topic_path(event.name), _assignment(topic)),
        Create(f"{layout.topic_path(event.name)}/partitions"),
    ]
    if config:
        ops.append(Create(layout.topic_config_path(event.name), layout.encode_config(config)))
    ops += _new_states(event.name, partitions, rules)
    return Decision(ops, view.with_topics({event.name: topic}))


def _check_name(view: ClusterView, name: str) -> None:
    why = why_illegal_topic(name)
    if why is not None:
        raise InvalidTopic(why)
    if name in view.topics:
        raise TopicAlreadyExists(f"Topic '{name}' already exists.")
    twin = view.topic_by_metric_name.get(metric_name(name))
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
        view.brokers.values(),
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
        by_index[index] = _checked(view, brokers, replication_factor)
        replication_factor = len(brokers)
    if sorted(by_index) != list(range(len(by_index))):
        raise InvalidReplicaAssignment("partitions should be a consecutive 0-based integer sequence")
    _check_amount(len(by_index))
    return [by_index[index] for index in range(len(by_index))]


def _checked(view: ClusterView, brokers: Sequence[int], replication_factor: int | None) -> tuple[int, ...]:
    """Validate the manual assignment of one partition."""
    if not brokers:
        raise InvalidReplicaAssignment("The manual partition assignment includes an empty replica list.")
    seen: set[int] = set()
    for broker in sorted(brokers):
        if broker not in view.brokers:
            raise InvalidReplicaAssignment(
                f"The manual partition assignment includes broker {broker}, but no such broker is registered."
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
    """The answer to each topic of a request that would create too many partitions."""
    return PolicyViolation("Excessively large number of partitions per request.")


def _create_partitions(view: ClusterView, event: CreatePartitions, rules: Rules) -> Decision:
    topic = view.topics.get(event.name)
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
            view.brokers.values(),
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
        replicas = [_checked(view, brokers, topic.replication_factor) for brokers in event.assignments]
    new = [_first_state(view, have + index, brokers) for index, brokers in enumerate(replicas)]
    grown = topic._replace(partitions=(*topic.partitions, *new), version=topic.version + 1)
    ops: list[Op] = [Put(layout.topic_path(event.name), _assignment(grown), topic.version)]
    return Decision([*ops, *_new_states(event.name, new, rules)], view.with_topics({event.name: grown}))


def _delete_topic(view: ClusterView, name: str, rules: Rules) -> Decision:
    if not rules.config.delete_topics:
        raise TopicDeletionDisabled
    topic = view.topics.get(name)
    if topic is None:
        raise UnknownTopicOrPartition
    ops: list[Op] = []
    for partition in topic.partitions:
        if partition.partition_epoch != NO_VERSION:
            ops.append(Delete(layout.state_path(name, partition.index), partition.partition_epoch))
            ops.append(Delete(layout.partition_path(name, partition.index)))
    if topic.config_version != NO_VERSION:
        ops.append(Delete(layout.topic_config_path(name), topic.config_version))
    ops += [Delete(f"{layout.topic_path(name)}/partitions"), Delete(layout.topic_path(name), topic.version)]
    if topic.topic_id != NO_TOPIC_ID:  # a start completes the deletion if this one is killed
        ops.append(Create(layout.deleted_topic_path(topic.topic_id), layout.encode_deleted_topic(name)))
    return Decision(ops, view.with_topics({name: None}))


def _assignment(topic: TopicView) -> bytes:
    """Encode the assignment with the reassignments that are running."""
    return layout.encode_assignment(
        layout.Assignment(
            topic.topic_id,
            {partition.index: partition.replicas for partition in topic.partitions},
            {partition.index: partition.adding for partition in topic.partitions if partition.adding},
            {partition.index: partition.removing for partition in topic.partitions if partition.removing},
            topic.unknown_keys,
        )
    )


def _first_state(view: ClusterView, index: int, replicas: tuple[int, ...]) -> PartitionView:
    """Return the state of a new, empty partition: every live replica is in sync and the first of them leads."""
    alive = tuple(replica for replica in replicas if replica in view.brokers)
    return PartitionView(index, alive[0] if alive else NO_LEADER, 0, replicas, alive or replicas[:1], 0)


def _new_states(topic: str, partitions: Iterable[PartitionView], rules: Rules) -> list[Op]:
    ops: list[Op] = []
    for partition in partitions:
        ops.append(Create(layout.partition_path(topic, partition.index)))
        ops.append(Create(layout.state_path(topic, partition.index), _state(partition, rules)))
    return ops


def _state(partition: PartitionView, rules: Rules) -> bytes:
    return layout.encode_state(
        layout.PartitionState(
            partition.leader,
            partition.leader_epoch,
            partition.isr,
            rules.controller_epoch,
            partition.is_recovering,
            partition.elr,
            partition.last_known_elr,
            partition.last_unclean_epoch,
            partition.unknown_keys,
        )
    )


# ---- Settings


def _alter_config(view: ClusterView, event: AlterConfig) -> Decision:
    topic = view.topics.get(event.name) if event.kind == layout.TOPICS_KIND else None
    if event.kind == layout.TOPICS_KIND and topic is None:
        raise UnknownTopicOrPartition
    path = layout.config_path(event.kind, event.name)
    stored = view.configs.get(event.kind, {}).get(event.name)
    old: Mapping[str, str] = topic.config if topic else (stored.values if stored else {})
    version = topic.config_version if topic else (stored.version if stored else NO_VERSION)
    new = changed_config({} if event.replaces_all else old, event.changes, event.known)
    event.check(new)
    if new == dict(old):
        return Decision([], view)
    text = layout.encode_config(new)
    ops: list[Op] = [Create(path, text) if version == NO_VERSION else Put(path, text, version)]
    if topic is not None:
        return Decision(ops, view.with_topics({event.name: topic._replace(config=new, config_version=version + 1)}))
    return Decision(ops, view)


def changed_config(
    old: Mapping[str, str], changes: Iterable[ConfigChange], known: Mapping[str, ConfigSpec]
) -> dict[str, str]:
    """Apply changes to settings. Raises `InvalidConfig` for an append to a setting that is not a list.

    As in Kafka a list that was never set begins at the setting's built-in default.
    """
    new = dict(old)
    for op, key, value in changes:
        match op:
            case ConfigOp.SET:
                assert value is not None, "the handler refuses null values"
                new[key] = value
            case ConfigOp.DELETE:
                new.pop(key, None)
            case ConfigOp.APPEND | ConfigOp.SUBTRACT:
                spec = known.get(key)
                if spec is None or spec.kind is not Type.LIST:
                    raise InvalidConfig(f"Can't {op.name} to key {key} because its type is not LIST.")
                items = _items(new.get(key, spec.default))
                given = _items(value or "")
                if op is ConfigOp.APPEND:
                    items += [item for item in dict.fromkeys(given) if item not in items]
                else:
                    items = [item for item in items if item not in given]
                new[key] = ",".join(items)
            case _:
                assert_never(op)
    return new


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


# ---- Elections


def _elect(view: ClusterView, rules: Rules, rule: Callable[[PartitionView], PartitionView | None]) -> Decision:
    """Apply a rule to every partition; the rule returns None for no change."""
    ops: list[Op] = []
    changed: dict[str, TopicView | None] = {}
    for name, topic in view.topics.items():
        partitions = list(topic.partitions)
        for index, partition in enumerate(topic.partitions):
            new = rule(partition)
            if new is not None:
                assert new.leader_epoch > partition.leader_epoch, "an epoch has one leader"
                assert new.isr, "a replica in sync must remain"
                ops += _write_state(name, partition, new, rules)
                partitions[index] = new
        if partitions != list(topic.partitions):
            changed[name] = topic._replace(partitions=tuple(partitions))
    return Decision(ops, view.with_topics(changed) if changed else view)


def _write_state(topic: str, old: PartitionView, new: PartitionView, rules: Rules) -> list[Op]:
    path, text = layout.state_path(topic, old.index), _state(new, rules)
    if old.partition_epoch == NO_VERSION:
        return [Create(layout.partition_path(topic, old.index)), Create(path, text)]
    return [Put(path, text, old.partition_epoch)]


def _after_start(view: ClusterView, partition: PartitionView, node_id: int) -> PartitionView | None:
    if partition.leader == node_id:
        return _led(partition, node_id, partition.isr)  # its log may be shorter after a crash: a new epoch marks that
    leads_now = partition.leader != NO_LEADER and partition.leader in view.brokers
    if leads_now or node_id not in partition.replicas:
        return None
    if partition.partition_epoch == NO_VERSION:  # assigned, but no controller ever elected: it is empty
        return replace(_first_state(view, partition.index, partition.replicas), leader_epoch=partition.leader_epoch + 1)
    return _led(partition, node_id, partition.isr) if node_id in partition.isr else None


def _after_loss(view: ClusterView, partition: PartitionView, gone: frozenset[int]) -> PartitionView | None:
    if partition.leader not in gone and not gone.intersection(partition.isr):
        return None
    if partition.partition_epoch == NO_VERSION:
        return None
    isr = tuple(replica for replica in partition.isr if replica not in gone)
    if not isr:  # the last one in sync stays so: only it has every record
        if partition.leader == NO_LEADER:
            return None
        last = (partition.leader,) if partition.leader in partition.isr else partition.isr[-1:]
        return _led(partition, NO_LEADER, last)
    if partition.leader not in gone and partition.leader != NO_LEADER:
        return _led(partition, partition.leader, isr)
    candidates = (replica for replica in partition.replicas if replica in isr and replica in view.brokers)
    return _led(partition, next(candidates, NO_LEADER), isr)


def _led(partition: PartitionView, leader: int, isr: tuple[int, ...]) -> PartitionView:
    return replace(
        partition,
        leader=leader,
        leader_epoch=partition.leader_epoch + 1,
        isr=isr,
        partition_epoch=partition.partition_epoch + 1,
    )
