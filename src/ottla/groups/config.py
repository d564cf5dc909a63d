"""The settings of the group coordinator, with Kafka's names, limits and defaults."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.core.settings import INT_MAX, MIB, MINUTE_MS, Type, setting
from ottla.groups.group import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Section `groups` of the broker's settings."""

    min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms", default=6_000, kind=Type.INT, unit="milliseconds",
        doc="A member that asks for a shorter session is refused: many heartbeats cost the broker much.",
    )  # fmt: skip
    max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms", default=30 * MINUTE_MS, kind=Type.INT, unit="milliseconds",
        doc="A member that asks for a longer session is refused: its partitions would lie idle so long if it died.",
    )  # fmt: skip
    initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms", default=3_000, kind=Type.INT, unit="milliseconds", at_least=0,
        doc="How long the first rebalance of an empty group waits for more members to come. 0 for tests and single"
        " consumers: they start sooner.",
    )  # fmt: skip
    max_size: int = setting(
        "group.max.size", default=INT_MAX, kind=Type.INT, at_least=1,
        doc="A group takes no more members than this.",
    )  # fmt: skip
    offsets_topic_partitions: int = setting(
        "offsets.topic.num.partitions", default=50, kind=Type.INT, at_least=1,
        doc="Partitions of `__consumer_offsets` when it is created. Must not change afterwards: a group's partition is"
        " the hash of its name modulo this number.",
    )  # fmt: skip
    offsets_topic_replication_factor: int = setting(
        "offsets.topic.replication.factor", default=3, kind=Type.SHORT, at_least=1,
        doc="Replicas of `__consumer_offsets` when it is created; a smaller cluster gets as many as it has brokers.",
    )  # fmt: skip
    offsets_topic_segment_bytes: int = setting(
        "offsets.topic.segment.bytes", default=100 * MIB, kind=Type.INT, unit="bytes", at_least=1,
        doc="Segment size of `__consumer_offsets`: small, so that compaction keeps it short and loading is quick.",
    )  # fmt: skip
    offset_metadata_max_bytes: int = setting(
        "offset.metadata.max.bytes", default=4096, kind=Type.INT, unit="bytes", at_least=0,
        doc="Longest text a consumer may store beside a committed offset.",
    )  # fmt: skip
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes", default=7 * 24 * 60, kind=Type.INT, unit="minutes", at_least=1,
        doc="Committed offsets are forgotten this long after the group lost its last member; for consumers that assign"
        " partitions to themselves, and for topics a group no longer subscribes to, after the last commit (KIP-211).",
    )  # fmt: skip
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms", default=10 * MINUTE_MS, kind=Type.LONG, unit="milliseconds", at_least=1,
        doc="How often expired offsets and empty groups are looked for.",
    )  # fmt: skip
    offset_commit_timeout_ms: int = setting(
        "offsets.commit.timeout.ms", default=5_000, kind=Type.INT, unit="milliseconds", at_least=1,
        doc="A change of a group or of its offsets that is not durable by then is answered as failed.",
    )  # fmt: skip

    @property
    def limits(self) -> Limits:
        """What the machines need of it."""
        return Limits(self.initial_rebalance_delay_ms, self.max_size)

    @property
    def offsets_retention_ms(self) -> int:
        """offsets.retention.minutes, in the unit of everything else."""
        return self.offsets_retention_minutes * MINUTE_MS
