"""Declares the settings of share partitions, with Kafka's names, limits and defaults."""

from __future__ import annotations

from ottla.core.settings import Content, Section, Type, setting


class ShareConfig(Section):
    """Section `share` of the broker's settings."""

    delivery_count_limit: int = setting(
        "group.share.delivery.count.limit", default=5, kind=Type.INT, at_least=2, at_most=10,
        doc="How often a record is delivered at most before it is archived.",
    )  # fmt: skip
    min_delivery_count_limit: int = setting(
        "group.share.min.delivery.count.limit", default=2, kind=Type.INT, at_least=2, at_most=5,
        doc="Smallest value that a group may set as share.delivery.count.limit.",
    )  # fmt: skip
    max_delivery_count_limit: int = setting(
        "group.share.max.delivery.count.limit", default=10, kind=Type.INT, at_least=5, at_most=25,
        doc="Largest value that a group may set as share.delivery.count.limit.",
    )  # fmt: skip
    record_lock_duration_ms: int = setting(
        "group.share.record.lock.duration.ms", default=30_000, kind=Type.INT, unit="milliseconds",
        at_least=1_000, at_most=3_600_000,
        doc="How long a consumer holds acquired records; afterwards they are delivered again.",
    )  # fmt: skip
    min_record_lock_duration_ms: int = setting(
        "group.share.min.record.lock.duration.ms", default=15_000, kind=Type.INT, unit="milliseconds",
        at_least=1_000, at_most=30_000,
        doc="Smallest value that a group may set as share.record.lock.duration.ms.",
    )  # fmt: skip
    max_record_lock_duration_ms: int = setting(
        "group.share.max.record.lock.duration.ms", default=60_000, kind=Type.INT, unit="milliseconds",
        at_least=30_000, at_most=3_600_000,
        doc="Largest value that a group may set as share.record.lock.duration.ms.",
    )  # fmt: skip
    partition_max_record_locks: int = setting(
        "group.share.partition.max.record.locks", default=2_000, kind=Type.INT, at_least=100, at_most=10_000,
        doc="Maximum number of records of a partition between the first and the last that a share group has in flight.",
    )  # fmt: skip
    min_partition_max_record_locks: int = setting(
        "group.share.min.partition.max.record.locks", default=100, kind=Type.INT, at_least=100, at_most=2_000,
        doc="Smallest value that a group may set as share.partition.max.record.locks.",
    )  # fmt: skip
    max_partition_max_record_locks: int = setting(
        "group.share.max.partition.max.record.locks", default=4_000, kind=Type.INT, at_least=2_000, at_most=10_000,
        doc="Largest value that a group may set as share.partition.max.record.locks.",
    )  # fmt: skip
    max_sessions: int = setting(
        "group.share.max.share.sessions", default=2_000, kind=Type.INT, at_least=1,
        doc="Maximum number of share sessions of the broker: one per consumer of a share group.",
    )  # fmt: skip
    dead_letter_topic_creation: bool = setting(
        "errors.deadletterqueue.auto.create.topics.enable", default=False, kind=Type.BOOLEAN, live=True,
        doc="Whether the topic for the dead letters of a share group is created when the first is written.",
    )  # fmt: skip
    dead_letter_topic_prefix: str = setting(
        "errors.deadletterqueue.topic.name.prefix", default="dlq.", kind=Type.STRING, live=True, content=Content.NAME,
        doc="How the names of topics must begin to which share groups write dead letters; empty: in any way.",
    )  # fmt: skip
