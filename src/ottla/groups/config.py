"""Declares the settings of the group coordinator, with Kafka's names, limits and defaults."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.core.settings import INT_MAX, MIB, MINUTE_MS, Section, Type, setting
from ottla.groups.classic.settings import ClassicSettings
from ottla.groups.consumer.settings import ASSIGNORS, ConsumerSettings, MigrationPolicy
from ottla.groups.share.settings import ShareSettings


class GroupConfig(Section):
    """Section `groups` of the broker's settings."""

    min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms", default=6_000, kind=Type.INT, unit="milliseconds",
        doc="Shortest session timeout that a member may request: frequent heartbeats cost the broker processor time.",
    )  # fmt: skip
    max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms", default=30 * MINUTE_MS, kind=Type.INT, unit="milliseconds",
        doc="Longest session timeout that a member may request: its partitions are idle so long after a crash.",
    )  # fmt: skip
    initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms", default=3_000, kind=Type.INT, unit="milliseconds", at_least=0,
        doc="How long the first rebalance of an empty group waits for more members. With 0 a single consumer"
        " starts at once.",
    )  # fmt: skip
    max_size: int = setting(
        "group.max.size", default=INT_MAX, kind=Type.INT, at_least=1,
        doc="Maximum number of members of a group.",
    )  # fmt: skip
    offsets_topic_partitions: int = setting(
        "offsets.topic.num.partitions", default=50, kind=Type.INT, at_least=1,
        doc="Partitions of `__consumer_offsets` when it is created. Must not change afterwards: a group's partition is"
        " the hash of its id modulo this number.",
    )  # fmt: skip
    offsets_topic_replication_factor: int = setting(
        "offsets.topic.replication.factor", default=3, kind=Type.SHORT, at_least=1,
        doc="Replicas of `__consumer_offsets` when it is created; in a smaller cluster the number of brokers.",
    )  # fmt: skip
    offsets_topic_segment_bytes: int = setting(
        "offsets.topic.segment.bytes", default=100 * MIB, kind=Type.INT, unit="bytes", at_least=1,
        doc="Segment size of `__consumer_offsets`: small segments are compacted sooner and load faster.",
    )  # fmt: skip
    offset_metadata_max_bytes: int = setting(
        "offset.metadata.max.bytes", default=4096, kind=Type.INT, unit="bytes", at_least=0,
        doc="Longest metadata text that a consumer may store with a committed offset.",
    )  # fmt: skip
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes", default=7 * 24 * 60, kind=Type.INT, unit="minutes", at_least=1,
        doc="Committed offsets expire this long after the group lost its last member; for consumers that assign"
        " partitions to themselves, and for topics without a subscriber, after the last commit (KIP-211).",
    )  # fmt: skip
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms", default=10 * MINUTE_MS, kind=Type.LONG, unit="milliseconds", at_least=1,
        doc="Interval between checks for expired offsets and empty groups.",
    )  # fmt: skip
    offset_commit_timeout_ms: int = setting(
        "offsets.commit.timeout.ms", default=5_000, kind=Type.INT, unit="milliseconds", at_least=1,
        doc="Timeout for a change of a group or of its offsets to become durable; the request fails after it.",
    )  # fmt: skip

    consumer_session_timeout_ms: int = setting(
        "group.consumer.session.timeout.ms", default=45_000, kind=Type.INT, unit="milliseconds", at_least=1,
        doc="A member of a consumer group (KIP-848) that sends no heartbeat for so long is removed.",
    )  # fmt: skip
    consumer_min_session_timeout_ms: int = setting(
        "group.consumer.min.session.timeout.ms", default=45_000, kind=Type.INT, unit="milliseconds", at_least=1,
        doc="Shortest session timeout that a group's own settings may have.",
    )  # fmt: skip
    consumer_max_session_timeout_ms: int = setting(
        "group.consumer.max.session.timeout.ms", default=60_000, kind=Type.INT, unit="milliseconds", at_least=1,
        doc="Longest session timeout that a group's own settings may have.",
    )  # fmt: skip
    consumer_heartbeat_interval_ms: int = setting(
        "group.consumer.heartbeat.interval.ms", default=5_000, kind=Type.INT, unit="milliseconds", at_least=1,
        doc="Interval at which members of a consumer group (KIP-848) send heartbeats: a rebalance takes about two.",
    )  # fmt: skip
    consumer_min_heartbeat_interval_ms: int = setting(
        "group.consumer.min.heartbeat.interval.ms", default=5_000, kind=Type.INT, unit="milliseconds", at_least=1,
        doc="Shortest heartbeat interval that a group's own settings may have.",
    )  # fmt: skip
    consumer_max_heartbeat_interval_ms: int = setting(
        "group.consumer.max.heartbeat.interval.ms", default=15_000, kind=Type.INT, unit="milliseconds", at_least=1,
        doc="Longest heartbeat interval that a group's own settings may have.",
    )  # fmt: skip
    consumer_max_size: int = setting(
        "group.consumer.max.size", default=INT_MAX, kind=Type.INT, at_least=1,
        doc="Maximum number of members of a consumer group (KIP-848).",
    )  # fmt: skip
    consumer_assignors: tuple[str, ...] = setting(
        "group.consumer.assignors", default=tuple(ASSIGNORS), kind=Type.LIST,
        doc="Server-side assignors that members of a consumer group may choose: uniform, range. The first one is the"
        " default.",
    )  # fmt: skip
    consumer_migration_policy: str = setting(
        "group.consumer.migration.policy", default=MigrationPolicy.BIDIRECTIONAL.value, kind=Type.STRING,
        choices=tuple(policy.value for policy in MigrationPolicy),
        doc="Which groups with members may change their protocol: a classic group when a member of the new protocol"
        " joins (upgrade), a consumer group when its last one leaves (downgrade), both (bidirectional) or none"
        " (disabled).",
    )  # fmt: skip
    consumer_assignment_interval_ms: int = setting(
        "group.consumer.assignment.interval.ms", default=1_000, kind=Type.INT, unit="milliseconds", at_least=0,
        doc="Minimum interval between two target assignments of a consumer group (KIP-1263): members that join at the"
        " same time cause fewer rebalances. With 0 every change is assigned at once.",
    )  # fmt: skip
    consumer_min_assignment_interval_ms: int = setting(
        "group.consumer.min.assignment.interval.ms", default=0, kind=Type.INT, unit="milliseconds", at_least=0,
        doc="Shortest assignment interval that a group's own settings may have.",
    )  # fmt: skip
    consumer_max_assignment_interval_ms: int = setting(
        "group.consumer.max.assignment.interval.ms", default=15_000, kind=Type.INT, unit="milliseconds", at_least=0,
        doc="Longest assignment interval that a group's own settings may have.",
    )  # fmt: skip
    consumer_regex_refresh_interval_ms: int = setting(
        "group.consumer.regex.refresh.interval.ms", default=10 * MINUTE_MS, kind=Type.INT, unit="milliseconds",
        at_least=10_000,
        doc="Interval at which regular expressions of subscriptions are matched again with all topics. New topics are"
        " noticed earlier.",
    )  # fmt: skip

    share_session_timeout_ms: int = setting(
        "group.share.session.timeout.ms", default=45_000, kind=Type.INT, unit="milliseconds", at_least=1,
        doc="A member of a share group (KIP-932) that sends no heartbeat for so long is removed.",
    )  # fmt: skip
    share_min_session_timeout_ms: int = setting(
        "group.share.min.session.timeout.ms", default=45_000, kind=Type.INT, unit="milliseconds", at_least=1,
        doc="Shortest session timeout that a share group's own settings may have.",
    )  # fmt: skip
    share_max_session_timeout_ms: int = setting(
        "group.share.max.session.timeout.ms", default=60_000, kind=Type.INT, unit="milliseconds", at_least=1,
        doc="Longest session timeout that a share group's own settings may have.",
    )  # fmt: skip
    share_heartbeat_interval_ms: int = setting(
        "group.share.heartbeat.interval.ms", default=5_000, kind=Type.INT, unit="milliseconds", at_least=1,
        doc="Interval at which members of a share group (KIP-932) send heartbeats.",
    )  # fmt: skip
    share_min_heartbeat_interval_ms: int = setting(
        "group.share.min.heartbeat.interval.ms", default=5_000, kind=Type.INT, unit="milliseconds", at_least=1,
        doc="Shortest heartbeat interval that a share group's own settings may have.",
    )  # fmt: skip
    share_max_heartbeat_interval_ms: int = setting(
        "group.share.max.heartbeat.interval.ms", default=15_000, kind=Type.INT, unit="milliseconds", at_least=1,
        doc="Longest heartbeat interval that a share group's own settings may have.",
    )  # fmt: skip
    share_assignment_interval_ms: int = setting(
        "group.share.assignment.interval.ms", default=1_000, kind=Type.INT, unit="milliseconds", at_least=0,
        doc="Minimum interval between two target assignments of a share group (KIP-1263).",
    )  # fmt: skip
    share_min_assignment_interval_ms: int = setting(
        "group.share.min.assignment.interval.ms", default=0, kind=Type.INT, unit="milliseconds", at_least=0,
        doc="Shortest assignment interval that a share group's own settings may have.",
    )  # fmt: skip
    share_max_assignment_interval_ms: int = setting(
        "group.share.max.assignment.interval.ms", default=15_000, kind=Type.INT, unit="milliseconds", at_least=0,
        doc="Longest assignment interval that a share group's own settings may have.",
    )  # fmt: skip
    share_max_size: int = setting(
        "group.share.max.size", default=200, kind=Type.INT, at_least=1, at_most=1_000,
        doc="Maximum number of members of a share group (KIP-932).",
    )  # fmt: skip

    def share_settings(self, own: Mapping[str, str]) -> ShareSettings:
        """Return the settings of a share group, of which some are its own."""
        return ShareSettings(
            session_timeout_ms=int(own.get("share.session.timeout.ms", self.share_session_timeout_ms)),
            heartbeat_interval_ms=int(own.get("share.heartbeat.interval.ms", self.share_heartbeat_interval_ms)),
            assignment_interval_ms=int(own.get("share.assignment.interval.ms", self.share_assignment_interval_ms)),
            max_size=self.share_max_size,
        )

    def consumer_settings(self, own: Mapping[str, str]) -> ConsumerSettings:
        """Return the settings of a consumer group, of which some are its own."""
        return ConsumerSettings(
            session_timeout_ms=int(own.get("consumer.session.timeout.ms", self.consumer_session_timeout_ms)),
            heartbeat_interval_ms=int(own.get("consumer.heartbeat.interval.ms", self.consumer_heartbeat_interval_ms)),
            assignment_interval_ms=int(
                own.get("consumer.assignment.interval.ms", self.consumer_assignment_interval_ms)
            ),
            max_size=self.consumer_max_size,
            classic=self.classic_settings,
            migration_policy=MigrationPolicy(self.consumer_migration_policy),
            assignors=tuple(name for name in self.consumer_assignors if name in ASSIGNORS) or tuple(ASSIGNORS),
            regex_refresh_interval_ms=self.consumer_regex_refresh_interval_ms,
        )

    @property
    def classic_settings(self) -> ClassicSettings:
        """Return the settings of a classic group."""
        return ClassicSettings(self.initial_rebalance_delay_ms, self.max_size)

    @property
    def offsets_retention_ms(self) -> int:
        """Return offsets.retention.minutes in milliseconds."""
        return self.offsets_retention_minutes * MINUTE_MS
