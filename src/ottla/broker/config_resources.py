"""Describes settings for DescribeConfigs: their values, sources and synonyms.

A value may be set, the strongest first, for a topic, for this broker while it runs, for all brokers while they run, in
the broker's file, environment or command line; else it is the default. `synonyms` is that chain for one setting.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from enum import IntEnum
from itertools import dropwhile
from typing import Any, NamedTuple

from ottla.broker.config import SECTIONS, declaration_of
from ottla.broker.entity_config import ClientMetricsConfig, OneGroupConfig
from ottla.broker.services import Services
from ottla.core.settings import Setting, Type, default_of, normal_text, settings_of, text_of
from ottla.metadata_store import znodes
from ottla.storage.config import LogConfig, topic_settings


class ConfigSource(IntEnum):
    """The origins of a value."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    STATIC = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class Synonym(NamedTuple):
    """One value in the chain of overrides of a setting."""

    name: str
    value: str | None  # None: not shown
    source: ConfigSource


Layers = list[tuple[ConfigSource, Mapping[str, str]]]
"""The settings of a broker by their sources, the strongest first."""


class DescribedConfig(NamedTuple):
    """One setting of one entity."""

    name: str
    value: str | None  # None: not set, or secret
    source: ConfigSource
    read_only: bool
    sensitive: bool
    kind: Type | None
    doc: str | None  # None: the setting is unknown
    synonyms: tuple[Synonym, ...]


HIDDEN = frozenset({"internal.segment.bytes"})
"""Settings for Kafka's own tests, which Kafka does not show either."""


def topic_entries(services: Services, overrides: Mapping[str, str]) -> list[DescribedConfig]:
    """Return every setting of a topic, sorted by name."""
    entries = []
    for key, setting in topic_settings().items():
        if key in HIDDEN:
            continue
        own = normal_text(setting.spec, overrides[key]) if key in overrides else None
        chain: list[Synonym] = [Synonym(key, own, ConfigSource.TOPIC)] if own is not None else []
        if setting.section is LogConfig:
            chain += _broker_chain(services, setting.spec, _default(setting.section, setting.field_name))
            inherited = text_of(getattr(services.config.log, setting.field_name))
        else:
            inherited = _default(setting.section, setting.field_name)
        source = chain[0].source if chain else ConfigSource.DEFAULT
        entries.append(_entry(key, inherited if own is None else own, source, setting.spec, chain, read_only=False))
    return entries


def broker_entries(services: Services) -> list[DescribedConfig]:
    """Return every setting of this broker under each of its names (`log.retention.hours`), sorted by name.

    As in Kafka a name shows what was set by this name, and below it the names with coarser units. The default belongs
    to the coarsest one, and a text that is not set is null.
    """
    entries, layers = [], _layers(services)
    provided = {key for key, given in services.config.given.items() if given.is_secret}
    for section, (_, cls) in SECTIONS.items():
        values = getattr(services.config, section)
        for field_name, spec in settings_of(cls).items():
            value, default = text_of(getattr(values, field_name)), _default(cls, field_name)
            names = (spec.key, *spec.synonyms)
            of_setting = [_broker_entry(layers, spec, name, value, default) for name in names]
            if provided.intersection(names) and _may_hold_secret(spec):
                of_setting = [entry._replace(value=None, sensitive=True, synonyms=()) for entry in of_setting]
            entries += of_setting
    known = {entry.name for entry in entries}
    others = {  # of one listener, or stored under a name that means nothing here
        name: _stored_entry(name, text, _spec_of(name), source)
        for source, values in reversed(layers)
        for name, text in values.items()
        if name not in known and (source is not ConfigSource.STATIC or _spec_of(name) is not None)
    }
    return sorted([*entries, *others.values()], key=lambda entry: entry.name)


def _spec_of(name: str) -> Setting | None:
    declaration = declaration_of(name)
    return None if declaration is None else declaration[2]


def _may_hold_secret(spec: Setting) -> bool:
    """Return whether any text is a value: what a config provider gave for it is not shown."""
    return spec.kind in (Type.STRING, Type.LIST, Type.CLASS) and not spec.choices


def _broker_entry(layers: Layers, spec: Setting, name: str, value: str, default: str) -> DescribedConfig:
    """Return one name of a setting, whose value in use and default are given."""
    kind, doc, shown = spec.kind, spec.doc, value or None
    if spec.topic_key and spec.synonyms:  # one period in several units
        chain = list(dropwhile(lambda each: each.name != name, _periods(layers, spec, default)))
        shown = chain[0].value if chain else None
        if name in spec.scale:
            kind = Type.INT
    else:
        chain = [Synonym(name, values[name], source) for source, values in layers if name in values]
        if name == spec.key and default:
            chain.append(Synonym(name, default, ConfigSource.DEFAULT))
        if chain and chain[0].source in (ConfigSource.BROKER, ConfigSource.ALL_BROKERS):
            shown = value  # an empty list that was set is one, a text that was not set is null
    source = chain[0].source if chain else ConfigSource.DEFAULT
    if name != spec.key:
        unit = f", in {name.rpartition('.')[2]}" if name in spec.scale else ""
        doc = f"Another name of {spec.key}{unit}. {doc}"
    if spec.secret:
        return DescribedConfig(name, None, source, not spec.live, True, kind, doc, ())
    read_only = not (spec.live and name == spec.key)  # the other names are read at the start only
    return DescribedConfig(name, shown, source, read_only, False, kind, doc, tuple(chain))


def all_brokers_entries(services: Services) -> list[DescribedConfig]:
    """Return the dynamic settings of all brokers; as in Kafka, without defaults."""
    stored = services.cluster.current.broker_configs.get(znodes.DEFAULT_ENTITY)
    return [
        _stored_entry(key, text, _spec_of(key), ConfigSource.ALL_BROKERS)
        for key, text in sorted((stored.values if stored else {}).items())
    ]


def _stored_entry(key: str, text: str, spec: Setting | None, source: ConfigSource) -> DescribedConfig:
    secret = spec is None or spec.secret  # an unknown setting may be a secret
    shown = None if secret else text
    kind, doc = (spec.kind, spec.doc) if spec else (None, None)
    read_only = spec is None or not spec.live
    return DescribedConfig(key, shown, source, read_only, secret, kind, doc, (Synonym(key, shown, source),))


def _entry(
    name: str, value: str, source: ConfigSource, spec: Setting, chain: list[Synonym], *, read_only: bool
) -> DescribedConfig:
    if spec.secret:
        return DescribedConfig(name, None, source, read_only, True, spec.kind, spec.doc, ())
    return DescribedConfig(name, value, source, read_only, False, spec.kind, spec.doc, tuple(chain))


def _layers(services: Services) -> Layers:
    """Return the layers of a broker's settings: its own dynamic ones, those of all brokers, those of its start."""
    stored = services.cluster.current.broker_configs
    this, every = stored.get(str(services.node_id)), stored.get(znodes.DEFAULT_ENTITY)
    return [
        (ConfigSource.BROKER, this.values if this else {}),
        (ConfigSource.ALL_BROKERS, every.values if every else {}),
        (ConfigSource.STATIC, {key: given.text for key, given in services.config.given.items()}),
    ]


def _broker_chain(services: Services, spec: Setting, default: str) -> list[Synonym]:
    chain = _periods(_layers(services), spec, default)
    # The default of a synonym comes after a value of the setting's own name only, as in Kafka.
    return chain if chain[0].name == spec.key else chain[:-1]


def _periods(layers: Layers, spec: Setting, default: str) -> list[Synonym]:
    """Return the values of all names of a setting, the strongest first; the last name has the default."""
    names = (spec.key, *spec.synonyms)
    chain = [Synonym(name, values[name], source) for source, values in layers for name in names if name in values]
    text = str(int(default) // spec.scale[names[-1]]) if names[-1] in spec.scale else default
    return [*chain, Synonym(names[-1], text, ConfigSource.DEFAULT)]


def _default(section: type[Any], field_name: str) -> str:
    return text_of(default_of(section, field_name))


# ---- Settings of groups and of client metrics


class GroupBounds(NamedTuple):
    """Holds the bounds of a setting of one group and its default, which are settings of the broker."""

    at_least: int
    at_most: int
    default: int


def group_bounds(services: Services) -> dict[str, GroupBounds]:
    """Return by name the bounds of those settings of groups that the broker's settings bound."""
    groups, share = services.config.groups, services.config.share
    return {
        "consumer.session.timeout.ms": GroupBounds(
            groups.consumer_min_session_timeout_ms,
            groups.consumer_max_session_timeout_ms,
            groups.consumer_session_timeout_ms,
        ),
        "consumer.heartbeat.interval.ms": GroupBounds(
            groups.consumer_min_heartbeat_interval_ms,
            groups.consumer_max_heartbeat_interval_ms,
            groups.consumer_heartbeat_interval_ms,
        ),
        "consumer.assignment.interval.ms": GroupBounds(
            groups.consumer_min_assignment_interval_ms,
            groups.consumer_max_assignment_interval_ms,
            groups.consumer_assignment_interval_ms,
        ),
        "share.session.timeout.ms": GroupBounds(
            groups.share_min_session_timeout_ms, groups.share_max_session_timeout_ms, groups.share_session_timeout_ms
        ),
        "share.heartbeat.interval.ms": GroupBounds(
            groups.share_min_heartbeat_interval_ms,
            groups.share_max_heartbeat_interval_ms,
            groups.share_heartbeat_interval_ms,
        ),
        "share.assignment.interval.ms": GroupBounds(
            groups.share_min_assignment_interval_ms,
            groups.share_max_assignment_interval_ms,
            groups.share_assignment_interval_ms,
        ),
        "share.record.lock.duration.ms": GroupBounds(
            share.min_record_lock_duration_ms, share.max_record_lock_duration_ms, share.record_lock_duration_ms
        ),
        "share.delivery.count.limit": GroupBounds(
            share.min_delivery_count_limit, share.max_delivery_count_limit, share.delivery_count_limit
        ),
        "share.partition.max.record.locks": GroupBounds(
            share.min_partition_max_record_locks, share.max_partition_max_record_locks, share.partition_max_record_locks
        ),
    }


def bound_key(key: str, end: str) -> str:
    """Return the name of the broker's setting that bounds a setting of a group.

    >>> bound_key("share.session.timeout.ms", "min")
    'group.share.min.session.timeout.ms'
    """
    kind, _, rest = key.partition(".")
    return f"group.{kind}.{end}.{rest}"


def entity_entries(services: Services, kind: str, name: str) -> list[DescribedConfig]:
    """Return all settings of a group or a subscription, also if it has none of its own."""
    stored = services.cluster.current.configs.get(kind, {}).get(name)
    values = stored.values if stored else {}
    section, source = {
        znodes.GROUPS_KIND: (OneGroupConfig, ConfigSource.GROUP),
        znodes.CLIENT_METRICS_KIND: (ClientMetricsConfig, ConfigSource.CLIENT_METRICS),
    }[kind]
    entries = []
    for field_name, spec in sorted(settings_of(section).items(), key=lambda item: item[1].key):
        chain: list[Synonym] = []
        if spec.key in values:
            chain.append(Synonym(spec.key, normal_text(spec, values[spec.key]), source))
        if kind == znodes.GROUPS_KIND:
            chain += _group_chain(services, spec, _default(section, field_name))
        shown = chain[0].value if chain else _default(section, field_name)
        of_entity = chain[0].source if chain else ConfigSource.DEFAULT
        entries.append(_entry(spec.key, shown or "", of_entity, spec, chain, read_only=False))
    return entries


def _group_chain(services: Services, spec: Setting, default: str) -> list[Synonym]:
    """Return what a setting of a group has without a value of the group's: that of the broker's setting, or its own."""
    kind, _, rest = spec.key.partition(".")
    name = f"group.{kind}.{rest}"
    if spec.key in group_bounds(services):
        declared_at = next(
            (cls, field_name)
            for _, cls in SECTIONS.values()
            for field_name, declared in settings_of(cls).items()
            if declared.key == name
        )
        chain = [Synonym(name, values[name], source) for source, values in _layers(services) if name in values]
        return [*chain, Synonym(name, _default(*declared_at), ConfigSource.DEFAULT)]
    return [Synonym(name if kind == "streams" else spec.key, default, ConfigSource.DEFAULT)]


# ---- Loggers

ROOT_LOGGER = "root"
_TRACE = 5
LEVELS = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": _TRACE,
}
"""Kafka's names of levels, with Python's numbers."""


def loggers() -> dict[str, logging.Logger]:
    """Return this broker's loggers by name."""

    def named() -> Iterator[tuple[str, logging.Logger]]:
        yield ROOT_LOGGER, logging.getLogger()
        for name, logger in sorted(logging.Logger.manager.loggerDict.items()):
            if isinstance(logger, logging.Logger) and name.partition(".")[0] == "ottla":
                yield name, logger

    return dict(named())


def logger_entries() -> list[DescribedConfig]:
    """Return each logger with its effective level."""
    return [
        DescribedConfig(
            name, _level_name(logger.getEffectiveLevel()), ConfigSource.BROKER_LOGGER, False, False, None, "", ()
        )
        for name, logger in loggers().items()
    ]


def _level_name(level: int) -> str:
    return next((name for name, number in LEVELS.items() if level >= number), "TRACE")
