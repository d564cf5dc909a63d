"""Decides changes of settings. The rules and the errors are Kafka 4.4's (ConfigurationControlManager)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, assert_never

from ottla.controller.overlay import MIN_ISR, Overlay
from ottla.core.errors import InvalidConfig, UnknownTopicOrPartition
from ottla.core.settings import AlterConfigOpType, Type
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import ClusterView, EntityConfig, TopicView
from ottla.metadata_store.store import NO_VERSION, Create, Op, Put


class ConfigChange(NamedTuple):
    """Holds the change of one setting."""

    op: AlterConfigOpType
    key: str
    value: str | None = None


class ConfigSpec(NamedTuple):
    """Holds the type and the default of a setting: a list can be appended to, starting at its default."""

    kind: Type
    default: str = ""


class AlterConfig(NamedTuple):
    """Change the settings of one entity. `known` are its list settings; `check` raises for invalid values."""

    kind: str  # the directory under /config: topics, brokers, groups, client-metrics, users, clients, ips
    name: str
    changes: Sequence[ConfigChange]
    known: Mapping[str, ConfigSpec]
    check: Callable[[Mapping[str, str]], object]
    replaces_all: bool = False  # AlterConfigs of old: what is not named goes


def alter_config(overlay: Overlay, event: AlterConfig) -> None:
    """Decide the change of the settings of one entity. Raises the `KafkaError`."""
    topic = overlay.topic(event.name) if event.kind == znodes.TOPICS_KIND else None
    if event.kind == znodes.TOPICS_KIND and topic is None:
        raise UnknownTopicOrPartition
    path = znodes.config_path(event.kind, event.name)
    stored = overlay.entity_config(event.kind, event.name) if topic is None else None
    old: Mapping[str, str] = topic.config if topic else (stored.values if stored else {})
    version = topic.config_version if topic else (stored.version if stored else NO_VERSION)
    new = changed_config({} if event.replaces_all else old, event.changes, event.known)
    event.check(new)
    if new == dict(old):
        return
    text = znodes.encode_config(new)
    ops: list[Op] = [Create(path, text) if version == NO_VERSION else Put(path, text, version)]
    if topic is not None:
        _clear_elr(overlay, [topic], old, new)
        topic = overlay.topic(topic.name)
        assert topic is not None, "a change of its partitions removes no topic"
        overlay.put_topic(event.name, topic._replace(config=new, config_version=version + 1), ops)
        return
    if event.kind == znodes.BROKERS_KIND:
        _clear_elr(overlay, overlay.base.topics.values(), old, new)
    parents = [
        each
        for each in znodes.config_parents(event.kind, event.name)
        if overlay.entity_config(event.kind, each) is None
    ]
    for parent in parents:
        overlay.put_entity_config(event.kind, parent, EntityConfig({}, 0))
    overlay.put_entity_config(event.kind, event.name, EntityConfig(new, version + 1))
    overlay.put_nodes([*[Create(znodes.config_path(event.kind, each)) for each in parents], *ops])


def _clear_elr(overlay: Overlay, topics: Iterable[TopicView], old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Clear the ELR of topics before `min.insync.replicas` changes for them.

    With a lower value the high watermark moves again, past what an eligible replica has.
    """
    if old.get(MIN_ISR) == new.get(MIN_ISR):
        return
    for topic in topics:
        for at in topic.partitions:
            partition = overlay.partition(topic.name, at.index)
            if partition is not None and partition.elr and partition.partition_epoch != NO_VERSION:
                cleared = replace(partition, elr=(), partition_epoch=partition.partition_epoch + 1)
                overlay.put_partition(topic.name, cleared)


def publish_min_isr(view: ClusterView, of_controller: int) -> list[AlterConfig]:
    """Make the controller's own `min.insync.replicas` that of all brokers, unless the cluster has one or it is 1.

    A leader with a lower value in its file would let the high watermark pass what an eligible replica has.
    """
    every = view.broker_configs.get(znodes.DEFAULT_ENTITY)
    if of_controller == 1 or (every is not None and MIN_ISR in every.values):
        return []
    change = ConfigChange(AlterConfigOpType.SET, MIN_ISR, str(of_controller))
    return [AlterConfig(znodes.BROKERS_KIND, znodes.DEFAULT_ENTITY, [change], {}, lambda _values: None)]


def changed_config(
    old: Mapping[str, str], changes: Iterable[ConfigChange], known: Mapping[str, ConfigSpec]
) -> dict[str, str]:
    """Apply changes to settings. Raises `InvalidConfig` for an append to a setting that is not a list.

    As in Kafka a list that was never set begins at the setting's built-in default.
    """
    new = dict(old)
    for op, key, value in changes:
        match op:
            case AlterConfigOpType.SET:
                assert value is not None, "the handler refuses null values"
                new[key] = value
            case AlterConfigOpType.DELETE:
                new.pop(key, None)
            case AlterConfigOpType.APPEND | AlterConfigOpType.SUBTRACT:
                spec = known.get(key)
                if spec is None or spec.kind is not Type.LIST:
                    raise InvalidConfig(f"Can't {op.name} to key {key} because its type is not LIST.")
                items = _items(new.get(key, spec.default))
                given = _items(value or "")
                if op is AlterConfigOpType.APPEND:
                    items += [item for item in dict.fromkeys(given) if item not in items]
                else:
                    items = [item for item in items if item not in given]
                new[key] = ",".join(items)
            case _:
                assert_never(op)
    return new


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
