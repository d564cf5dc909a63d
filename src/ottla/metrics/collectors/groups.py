"""Reads the groups that this broker coordinates: states, members, and their lag in records and in seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ottla.core.ids import GroupType
from ottla.groups.classic.group import ClassicGroup
from ottla.metrics.lag import GroupLag
from ottla.metrics.page import COUNTER, GAUGE, Page, escape, family
from ottla.metrics.reading import Reading

_KE, _KM, _OWN, _KAFKA = "Names of kafka_exporter", "Names of kminion", "Lag", "Groups"
_GTP, _KM_GTP = "consumergroup topic partition", "group_id topic_name partition_id"

LAG = family("kafka_consumergroup_lag", GAUGE, "Records that a group has not read", _GTP, group=_KE)
LAG_SUM = family(
    "kafka_consumergroup_lag_sum",
    GAUGE,
    "Records of a topic that a group has not read",
    "consumergroup topic",
    group=_KE,
)
OFFSET = family("kafka_consumergroup_current_offset", GAUGE, "Offset that a group has committed", _GTP, group=_KE)
OFFSET_SUM = family(
    "kafka_consumergroup_current_offset_sum",
    GAUGE,
    "Sum of the offsets that a group has committed in a topic",
    "consumergroup topic",
    group=_KE,
)
MEMBERS = family("kafka_consumergroup_members", GAUGE, "Members of a group", "consumergroup", group=_KE)
KM_INFO = family(
    "kminion_kafka_consumer_group_info",
    GAUGE,
    "1 if the group is stable",
    "group_id protocol protocol_type state coordinator_id",
    group=_KM,
)
KM_MEMBERS = family("kminion_kafka_consumer_group_members", GAUGE, "Members of a group", "group_id", group=_KM)
KM_EMPTY = family(
    "kminion_kafka_consumer_group_empty_members", GAUGE, "Members of a group without a partition", "group_id", group=_KM
)
KM_TOPIC_MEMBERS = family(
    "kminion_kafka_consumer_group_topic_members",
    GAUGE,
    "Members of a group that have a partition of the topic",
    "group_id topic_name",
    group=_KM,
)
KM_ASSIGNED = family(
    "kminion_kafka_consumer_group_topic_assigned_partitions",
    GAUGE,
    "Partitions of the topic that a member of the group has",
    "group_id topic_name",
    group=_KM,
)
KM_OFFSET_SUM = family(
    "kminion_kafka_consumer_group_topic_offset_sum",
    GAUGE,
    "Sum of the offsets that a group has committed in a topic",
    "group_id topic_name",
    group=_KM,
)
KM_COMMITS = family(
    "kminion_kafka_consumer_group_offset_commits",
    COUNTER,
    "Commits of offsets by a group, with those that are left in the log",
    "group_id",
    group=_KM,
)
KM_LAG = family(
    "kminion_kafka_consumer_group_topic_partition_lag", GAUGE, "Records that a group has not read", _KM_GTP, group=_KM
)
KM_TOPIC_LAG = family(
    "kminion_kafka_consumer_group_topic_lag",
    GAUGE,
    "Records of a topic that a group has not read",
    "group_id topic_name",
    group=_KM,
)
SECONDS = family(
    "ottla_group_lag_seconds",
    GAUGE,
    "Age of the first committed record that a group has not read; 0 without one",
    "group topic partition",
    group=_OWN,
)
SECONDS_MAX = family(
    "ottla_group_lag_seconds_max", GAUGE, "The largest lag in seconds of a group", "group type", group=_OWN
)
RECORDS = family("ottla_group_lag_records", GAUGE, "Records that a group has not read", "group type", group=_OWN)
SHARE_RECORDS = family(
    "ottla_share_group_lag_records",
    GAUGE,
    "Records that a share group is not done with",
    "group topic partition",
    group=_OWN,
)
STATES = family(
    "kafka_server_group_coordinator_metrics_group_count",
    GAUGE,
    "Groups that this broker coordinates",
    "protocol state",
    group=_KAFKA,
)
GROUPS = family(
    "kafka_coordinator_group_groupmetadatamanager_numgroups", GAUGE, "Groups that this broker coordinates", group=_KAFKA
)
COMMITS = family(
    "kafka_coordinator_group_groupmetadatamanager_numoffsets",
    GAUGE,
    "Offsets that the groups of this broker have committed",
    group=_KAFKA,
)
LEFT_OUT = family(
    "ottla_metrics_group_partitions_left_out",
    GAUGE,
    "Partitions of groups without series of their own, because there are more than `ottla.metrics.partitions.max`",
    group=_OWN,
)
_STABLE = "Stable"


def collect(reading: Reading, page: Page) -> Iterator[None]:
    """Format what `GroupLags` has read."""
    states: Counter[tuple[str, str]] = Counter()
    left, commits, left_out = reading.services.config.metrics.partitions_max, 0, 0
    for lag in reading.lags.groups:
        summary = lag.group.summary
        states[str(summary.type.value), summary.state] += 1
        has_series = left >= len(lag.partitions)
        left -= len(lag.partitions) if has_series else 0
        left_out += 0 if has_series else len(lag.partitions)
        commits += sum(partition.committed is not None for partition in lag.partitions)
        _group(reading, page, lag)
        if has_series:
            _partitions(page, lag)
        if reading.slices.spend(10 + 3 * len(lag.partitions)):
            yield
    for (protocol, state), count in sorted(states.items()):
        page.add(STATES, count, f'protocol="{protocol}",state="{state}"')
    page.add(GROUPS, len(reading.lags.groups))
    page.add(COMMITS, commits)
    page.add(LEFT_OUT, left_out)


def _group(reading: Reading, page: Page, lag: GroupLag) -> None:
    group, members = lag.group, lag.members
    summary, name = group.summary, escape(group.group_id)
    protocol = (group.protocol or "") if isinstance(group, ClassicGroup) else ""
    info = (
        f'group_id="{name}",protocol="{escape(protocol)}",protocol_type="{escape(summary.protocol_type)}",'
        f'state="{summary.state}",coordinator_id="{reading.services.node_id}"'
    )
    page.add(KM_INFO, int(summary.state == _STABLE), info)
    page.add(MEMBERS, members.members, f'consumergroup="{name}"')
    page.add(KM_MEMBERS, members.members, f'group_id="{name}"')
    page.add(KM_COMMITS, lag.commits, f'group_id="{name}"')
    page.add(KM_EMPTY, members.without_partitions, f'group_id="{name}"')
    labels = f'group="{name}",type="{summary.type.value}"'
    page.add(RECORDS, sum(partition.records for partition in lag.partitions), labels)
    known = [partition.seconds for partition in lag.partitions if partition.seconds is not None]
    if known:
        page.add(SECONDS_MAX, max(known), labels)


class _TopicSums:
    """The sums of a group over one topic."""

    def __init__(self) -> None:
        self.lag = self.offsets = self.assigned = 0
        self.members: set[str] = set()


def _partitions(page: Page, lag: GroupLag) -> None:
    """Add the series of a group's partitions, and their sums by topic."""
    name, is_share = escape(lag.group.group_id), lag.group.summary.type is GroupType.SHARE
    topics: dict[str, _TopicSums] = {}
    for where, committed, records, seconds in lag.partitions:
        sums = topics.get(where.topic) or topics.setdefault(where.topic, _TopicSums())
        topic = escape(where.topic)
        sums.lag += records
        own = f'group="{name}",topic="{topic}",partition="{where.partition}"'
        if seconds is not None:
            page.add(SECONDS, seconds, own)
        if is_share:
            page.add(SHARE_RECORDS, records, own)
            continue
        theirs = f'consumergroup="{name}",topic="{topic}",partition="{where.partition}"'
        page.add(LAG, records, theirs)
        page.add(KM_LAG, records, f'group_id="{name}",topic_name="{topic}",partition_id="{where.partition}"')
        if committed is not None:
            page.add(OFFSET, committed, theirs)
            sums.offsets += committed
    for where, member in lag.members.partitions.items():
        if (assigned := topics.get(where.topic)) is not None:
            assigned.assigned += 1
            assigned.members.add(member)
    for topic_name, sums in topics.items():
        labels = f'group_id="{name}",topic_name="{escape(topic_name)}"'
        page.add(KM_TOPIC_LAG, sums.lag, labels)
        page.add(KM_TOPIC_MEMBERS, len(sums.members), labels)
        page.add(KM_ASSIGNED, sums.assigned, labels)
        if not is_share:
            theirs = f'consumergroup="{name}",topic="{escape(topic_name)}"'
            page.add(LAG_SUM, sums.lag, theirs)
            page.add(OFFSET_SUM, sums.offsets, theirs)
            page.add(KM_OFFSET_SUM, sums.offsets, labels)
