"""Describes settings for DescribeConfigs: their values, sources and synonyms.

A value may be set, the strongest first, for a topic, for this broker while it runs, for all brokers while they run, in
the broker's file, environment or command line; else it is the default. `synonyms` is that chain for one setting.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from ottla.broker.config import SECTIONS
from ottla.broker.context import Services
from ottla.coordination import layout
from ottla.core.settings import Setting, Type, default_of, setting, settings_of, text_of
from ottla.storage.config import LogConfig, topic_settings


class Resource(IntEnum):
    """What settings may belong to (ConfigResource.Type)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Source(IntEnum):
    """Where a value comes from (ConfigSource)."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    STATIC = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class Synonym(NamedTuple):
    """One place that has, or would have, a say in a value."""

    name: str
    value: str
    source: Source


class Entry(NamedTuple):
    """One setting of one entity."""

    name: str
    value: str | None  # None: secret
    source: Source
    read_only: bool
    sensitive: bool
    kind: Type | None
    doc: str
    synonyms: tuple[Synonym, ...]


HIDDEN = frozenset({"internal.segment.bytes"})
"""Kafka's own tests use it; Kafka does not show it either."""


def topic_entries(services: Services, overrides: Mapping[str, str]) -> list[Entry]:
    """Every setting of a topic, sorted by name."""
    entries = []
    for key, found in topic_settings().items():
        if key in HIDDEN:
            continue
        chain: list[Synonym] = [Synonym(key, overrides[key], Source.TOPIC)] if key in overrides else []
        if found.section is LogConfig:
            chain += _broker_chain(services, found.spec, _default(found.section, found.field_name))
            inherited = text_of(getattr(services.config.log, found.field_name))
        else:
            inherited = _default(found.section, found.field_name)
        source = chain[0].source if chain else Source.DEFAULT
        entries.append(_entry(key, overrides.get(key, inherited), source, found.spec, chain, read_only=False))
    return entries


def broker_entries(services: Services) -> list[Entry]:
    """Every setting of this broker, sorted by name."""
    entries = []
    for section, (_, cls) in SECTIONS.items():
        values = getattr(services.config, section)
        for field_name, spec in settings_of(cls).items():
            chain = _broker_chain(services, spec, _default(cls, field_name))
            source = chain[0].source if chain else Source.DEFAULT
            value = text_of(getattr(values, field_name))
            entries.append(_entry(spec.key, value, source, spec, chain, read_only=not spec.live))
    return sorted(entries)


def all_brokers_entries(services: Services) -> list[Entry]:
    """What is set for all brokers while they run: nothing else is shown of them, as in Kafka."""
    stored = services.cluster.current.broker_configs.get(layout.DEFAULT_ENTITY)
    known = {spec.key: spec for _, cls in SECTIONS.values() for spec in settings_of(cls).values()}
    return [
        _stored_entry(key, text, known.get(key), Source.ALL_BROKERS)
        for key, text in sorted((stored.values if stored else {}).items())
    ]


def _stored_entry(key: str, text: str, spec: Setting | None, source: Source) -> Entry:
    secret = spec is None or spec.secret  # what is not known might be a secret
    shown = None if secret else text
    chain = () if secret else (Synonym(key, text, source),)
    return Entry(key, shown, source, False, secret, spec.kind if spec else None, spec.doc if spec else "", chain)


def _entry(name: str, value: str, source: Source, spec: Setting, chain: list[Synonym], *, read_only: bool) -> Entry:
    if spec.secret:
        return Entry(name, None, source, read_only, True, spec.kind, spec.doc, ())
    return Entry(name, value, source, read_only, False, spec.kind, spec.doc, tuple(chain))


def _broker_chain(services: Services, spec: Setting, default: str) -> list[Synonym]:
    stored = services.cluster.current.broker_configs
    this, every = stored.get(str(services.node_id)), stored.get(layout.DEFAULT_ENTITY)
    layers: list[tuple[Source, Mapping[str, str]]] = [
        (Source.BROKER, this.values if this else {}),
        (Source.ALL_BROKERS, every.values if every else {}),
        (Source.STATIC, {key: given.text for key, given in services.config.given.items()}),
    ]
    keys = (spec.key, *spec.synonyms)
    chain = [Synonym(key, values[key], source) for source, values in layers for key in keys if key in values]
    if not spec.synonyms:  # else the default is that of one of the other names, in another unit: Kafka shows none
        chain.append(Synonym(spec.key, default, Source.DEFAULT))
    return chain


def _default(section: type[Any], field_name: str) -> str:
    return text_of(default_of(section, field_name))


# ---- Settings of groups and of client metrics ------------------------------------------------------------------------


INTERVAL_MS_MIN, INTERVAL_MS_MAX = 100, 3_600_000


def _ms(key: str, default: int, at_least: int, at_most: int, doc: str) -> Any:
    return setting(
        key, default=default, kind=Type.INT, unit="ms", at_least=at_least, at_most=at_most, live=True, doc=doc
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OneGroupConfig:
    """What may be set for one group of the newer kinds (KIP-848, KIP-932, KIP-1071): kept and shown."""

    consumer_session: int = _ms(
        "consumer.session.timeout.ms", 45_000, 45_000, 60_000, "A member not heard of for this long is out."
    )
    consumer_heartbeat: int = _ms(
        "consumer.heartbeat.interval.ms", 5_000, 5_000, 15_000, "How often a member must give a sign of life."
    )
    share_session: int = _ms(
        "share.session.timeout.ms", 45_000, 45_000, 60_000, "A member of a share group not heard of for this is out."
    )
    share_heartbeat: int = _ms(
        "share.heartbeat.interval.ms", 5_000, 5_000, 15_000, "How often a member of a share group must give one."
    )
    share_record_lock: int = _ms(
        "share.record.lock.duration.ms", 30_000, 15_000, 60_000, "How long a record is one member's own."
    )
    share_offset_reset: str = setting(
        "share.auto.offset.reset", default="latest", kind=Type.STRING, live=True,
        doc="Where a share group begins: latest, earliest or by_duration:<ISO 8601 duration>.",
    )  # fmt: skip
    share_isolation: str = setting(
        "share.isolation.level", default="read_uncommitted", kind=Type.STRING, live=True,
        choices=("read_committed", "read_uncommitted"), doc="Whether a share group sees undecided transactions.",
    )  # fmt: skip
    streams_session: int = _ms(
        "streams.session.timeout.ms",
        45_000,
        45_000,
        60_000,
        "A member of a Streams group not heard of for this is out.",
    )
    streams_heartbeat: int = _ms(
        "streams.heartbeat.interval.ms", 5_000, 5_000, 15_000, "How often a member of a Streams group must give one."
    )
    streams_standbys: int = setting(
        "streams.num.standby.replicas", default=0, kind=Type.INT, at_least=0, at_most=2, live=True,
        doc="Copies of each state store beside the active one.",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetricsConfig:
    """A subscription to clients' metrics (KIP-714): kept and shown."""

    interval: int = _ms(
        "interval.ms", 300_000, INTERVAL_MS_MIN, INTERVAL_MS_MAX, "How often matching clients shall push."
    )
    match: tuple[str, ...] = setting(
        "match",
        default=(),
        kind=Type.LIST,
        live=True,
        doc="Which clients: name=pattern, all of which must match.",
    )
    metrics: tuple[str, ...] = setting(
        "metrics", default=(), kind=Type.LIST, live=True, doc="Prefixes of the metrics wanted."
    )


def entity_entries(services: Services, kind: str, name: str) -> list[Entry]:
    """The settings of a group or a subscription, whether anything was set for it or not."""
    stored = services.cluster.current.configs.get(kind, {}).get(name)
    values = stored.values if stored else {}
    section, source = {
        layout.GROUPS_KIND: (OneGroupConfig, Source.GROUP),
        layout.CLIENT_METRICS_KIND: (ClientMetricsConfig, Source.CLIENT_METRICS),
    }[kind]
    entries = []
    for field_name, spec in sorted(settings_of(section).items(), key=lambda item: item[1].key):
        default = _default(section, field_name)
        chain = [Synonym(spec.key, values[spec.key], source)] if spec.key in values else []
        if kind == layout.GROUPS_KIND and not chain:
            chain = [Synonym(spec.key, default, Source.DEFAULT)]
        entries.append(
            _entry(
                spec.key,
                values.get(spec.key, default),
                source if spec.key in values else Source.DEFAULT,
                spec,
                chain,
                read_only=False,
            )
        )
    return entries


# ---- Loggers ---------------------------------------------------------------------------------------------------------

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
"""Kafka's names of levels, in Python's numbers."""


def loggers() -> dict[str, logging.Logger]:
    """This broker's loggers by name."""

    def named() -> Iterator[tuple[str, logging.Logger]]:
        yield ROOT_LOGGER, logging.getLogger()
        for name, logger in sorted(logging.Logger.manager.loggerDict.items()):
            if isinstance(logger, logging.Logger) and name.partition(".")[0] == "ottla":
                yield name, logger

    return dict(named())


def logger_entries() -> list[Entry]:
    """Each logger and its level in effect."""
    return [
        Entry(name, _level_name(logger.getEffectiveLevel()), Source.BROKER_LOGGER, False, False, None, "", ())
        for name, logger in loggers().items()
    ]


def _level_name(level: int) -> str:
    return next((name for name, number in LEVELS.items() if level >= number), "TRACE")
