"""Declares the settings of share partitions and of the share coordinator, with Kafka's names, limits and defaults."""

from __future__ import annotations

from ottla.core.settings import MIB, MINUTE_MS, Section, Type, setting


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
        "errors.deadletterqueue.topic.name.prefix", default="dlq.", kind=Type.STRING, live=True,
        doc="How the names of topics must begin to which share groups write dead letters; empty: in any way.",
    )  # fmt: skip
    state_topic_partitions: int = setting(
        "share.coordinator.state.topic.num.partitions", default=50, kind=Type.INT, at_least=1,
        doc="Partitions of `__share_group_state` when it is created. Must not change afterwards.",
    )  # fmt: skip
    state_topic_replication_factor: int = setting(
        "share.coordinator.state.topic.replication.factor", default=3, kind=Type.SHORT, at_least=1,
        doc="Replicas of `__share_group_state` when it is created; in a smaller cluster the number of brokers.",
    )  # fmt: skip
    state_topic_min_isr: int = setting(
        "share.coordinator.state.topic.min.isr", default=2, kind=Type.SHORT, at_least=1,
        doc="`min.insync.replicas` of `__share_group_state` when it is created.",
    )  # fmt: skip
    state_topic_segment_bytes: int = setting(
        "share.coordinator.state.topic.segment.bytes", default=100 * MIB, kind=Type.INT, unit="bytes", at_least=1,
        doc="Segment size of `__share_group_state`.",
    )  # fmt: skip
    snapshot_update_records: int = setting(
        "share.coordinator.snapshot.update.records.per.snapshot", default=500, kind=Type.INT, at_least=0, at_most=500,
        doc="How many changes of a share partition are written before its whole state is.",
    )  # fmt: skip
    write_timeout_ms: int = setting(
        "share.coordinator.write.timeout.ms", default=5_000, kind=Type.INT, unit="milliseconds", at_least=1,
        doc="Timeout for a change of a share partition's state to become durable.",
    )  # fmt: skip
    prune_interval_ms: int = setting(
        "share.coordinator.state.topic.prune.interval.ms", default=5 * MINUTE_MS, kind=Type.INT, unit="milliseconds",
        at_least=1, doc="Interval between deletions of redundant records of `__share_group_state`.",
    )  # fmt: skip
    cold_snapshot_interval_ms: int = setting(
        "share.coordinator.cold.partition.snapshot.interval.ms", default=5 * MINUTE_MS, kind=Type.INT,
        unit="milliseconds", at_least=1,
        doc="A share partition's state that has not been written for so long is written again, so that older records"
        " can be deleted.",
    )  # fmt: skip
