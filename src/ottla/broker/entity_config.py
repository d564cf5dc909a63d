"""Declares the settings of groups, and of subscriptions to clients' metrics, which the metadata store keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ottla.core.settings import INT_MAX, Content, Type, setting

INTERVAL_MS_MIN, INTERVAL_MS_MAX = 100, 3_600_000


def _ms(key: str, default: int, at_least: int, at_most: int, doc: str) -> Any:
    return setting(
        key, default=default, kind=Type.INT, unit="ms", at_least=at_least, at_most=at_most, live=True, doc=doc
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OneGroupConfig:
    """Settings of one group of the newer kinds (KIP-848, KIP-932); those of Streams groups (KIP-1071) have no effect.

    Bounds and defaults of the numbers of consumer and share groups are settings of the broker (`group_bounds`).
    """

    consumer_session: int = _ms(
        "consumer.session.timeout.ms", 45_000, 1, INT_MAX, "Without a heartbeat for this long a member is removed."
    )
    consumer_heartbeat: int = _ms(
        "consumer.heartbeat.interval.ms", 5_000, 1, INT_MAX, "Interval of a member's heartbeats."
    )
    consumer_assignment_interval: int = _ms(
        "consumer.assignment.interval.ms", 1_000, 0, INT_MAX, "Minimum interval between two target assignments."
    )
    share_session: int = _ms(
        "share.session.timeout.ms",
        45_000,
        1,
        INT_MAX,
        "Without a heartbeat for this long a member of a share group is removed.",
    )
    share_heartbeat: int = _ms(
        "share.heartbeat.interval.ms", 5_000, 1, INT_MAX, "Interval of heartbeats in a share group."
    )
    share_record_lock: int = _ms(
        "share.record.lock.duration.ms", 30_000, 1_000, INT_MAX, "Duration of a member's lock on a record."
    )
    share_assignment_interval: int = _ms(
        "share.assignment.interval.ms", 1_000, 0, INT_MAX, "Minimum interval between two assignments of a share group."
    )
    share_delivery_count_limit: int = setting(
        "share.delivery.count.limit",
        default=5,
        kind=Type.INT,
        at_least=2,
        live=True,
        doc="How often a record is delivered at most.",
    )
    share_max_record_locks: int = setting(
        "share.partition.max.record.locks",
        default=2_000,
        kind=Type.INT,
        at_least=100,
        live=True,
        doc="Maximum number of records of a partition in flight.",
    )
    share_renew_acknowledge: bool = setting(
        "share.renew.acknowledge.enable",
        default=True,
        kind=Type.BOOLEAN,
        live=True,
        doc="Whether a consumer may renew its locks.",
    )
    share_offset_reset: str = setting(
        "share.auto.offset.reset",
        default="latest",
        kind=Type.STRING,
        live=True,
        content=Content.NAME,
        doc="First offset of a share group: latest, earliest or by_duration:<ISO 8601 duration>.",
    )
    share_isolation: str = setting(
        "share.isolation.level",
        default="read_uncommitted",
        kind=Type.STRING,
        live=True,
        choices=("read_committed", "read_uncommitted"),
        doc="Whether a share group reads records of open transactions.",
    )
    dead_letter_topic: str = setting(
        "errors.deadletterqueue.topic.name",
        default="",
        kind=Type.STRING,
        live=True,
        content=Content.NAME,
        doc="Topic to which a share group's rejected records go, and those that were delivered too often.",
    )
    dead_letter_copy: bool = setting(
        "errors.deadletterqueue.copy.record.enable",
        default=False,
        kind=Type.BOOLEAN,
        live=True,
        doc="Whether a dead letter has the record's key and value, not only headers that name it.",
    )
    streams_session: int = _ms(
        "streams.session.timeout.ms",
        45_000,
        45_000,
        60_000,
        "Without a heartbeat for this long a member of a Streams group is removed.",
    )
    streams_heartbeat: int = _ms(
        "streams.heartbeat.interval.ms", 5_000, 5_000, 15_000, "Interval of heartbeats in a Streams group."
    )
    streams_standbys: int = setting(
        "streams.num.standby.replicas",
        default=0,
        kind=Type.INT,
        at_least=0,
        at_most=2,
        live=True,
        doc="Number of standby replicas of each state store.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetricsConfig:
    """Settings of a subscription to clients' metrics (KIP-714)."""

    interval: int = _ms(
        "interval.ms", 300_000, INTERVAL_MS_MIN, INTERVAL_MS_MAX, "Interval at which matching clients push metrics."
    )
    match: tuple[str, ...] = setting(
        "match",
        default=(),
        kind=Type.LIST,
        live=True,
        content=Content.PATTERN,
        doc="Selectors of clients, name=pattern; all must match.",
    )
    metrics: tuple[str, ...] = setting(
        "metrics", default=(), kind=Type.LIST, live=True, content=Content.NAME, doc="Prefixes of the metrics to push."
    )
