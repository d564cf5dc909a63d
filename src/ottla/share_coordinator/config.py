"""Declares the settings of the share coordinator, with Kafka's names, limits and defaults."""

from __future__ import annotations

from ottla.core.settings import MIB, MINUTE_MS, Section, Type, setting


class ShareCoordinatorConfig(Section):
    """Section `share_coordinator` of the broker's settings."""

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
