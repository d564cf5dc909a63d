"""Reads the groups that this broker coordinates: states, members, and their lag in records and in seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from ottla.core.ids import GroupType
from ottla.groups.classic.group import ClassicGroup
from ottla.metrics.lag import GroupLag
from ottla.metrics.page import COUNTER, GAUGE, ROWS_MAX, Family, Page, escape, escape_row, family
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
GROUPS_LEFT_OUT = family(
    "ottla_metrics_groups_left_out",
    GAUGE,
    "Groups without series of their own, because there are more than `ottla.metrics.partitions.max`",
    group=_OWN,
)
_STABLE = "Stable"


def collect(reading: Reading, page: Page) -> Iterator[None]:
    """Format what `GroupLags` has read."""
    states: Counter[tuple[str, str]] = Counter()
    series_max = reading.services.config.metrics.partitions_max
    left, commits, left_out, block = series_max, 0, 0, _Block()
    for number, lag in enumerate(reading.lags.groups):
        summary = lag.group.summary
        states[str(summary.type.value), summary.state] += 1
        has_series = left >= len(lag.partitions)
        left -= len(lag.partitions) if has_series else 0
        left_out += 0 if has_series else len(lag.partitions)
        commits += sum(partition.committed is not None for partition in lag.partitions)
        if number < series_max:
            _group(reading, page, lag)
        if has_series:
            block.add(lag)
            if block.is_full:
                block.add_to(page)
                block = _Block()
        if reading.slices.spend(6 + 2 * len(lag.partitions)):
            yield
    block.add_to(page)
    for (protocol, state), count in sorted(states.items()):
        page.add(STATES, count, f'protocol="{protocol}",state="{state}"')
    page.add(GROUPS, len(reading.lags.groups))
    page.add(COMMITS, commits)
    page.add(LEFT_OUT, left_out)
    page.add(GROUPS_LEFT_OUT, max(0, len(reading.lags.groups) - series_max))


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


class _Block:
    """The samples of the partitions and topics of some groups: labels, and beside each the values of its families."""

    def __init__(self) -> None:
        self._samples: dict[tuple[Family, ...], tuple[list[str], list[tuple[float, ...]]]] = {}
        self._partitions = 0

    @property
    def is_full(self) -> bool:
        """Return whether it is time to add it to a page."""
        return self._partitions >= ROWS_MAX

    def add_to(self, page: Page) -> None:
        """Add what there is."""
        for families, (lines, values) in self._samples.items():
            page.add_rows(lines, families, values)

    def _of(self, *families: Family) -> tuple[list[str], list[tuple[float, ...]]]:
        samples = self._samples.get(families)
        if samples is None:
            samples = self._samples[families] = ([], [])
        return samples

    def add(self, lag: GroupLag) -> None:
        """Add the partitions of a group, and their sums by topic."""
        name, is_share = escape_row(lag.group.group_id), lag.group.summary.type is GroupType.SHARE
        topics: dict[str, _TopicSums] = {}
        for where, committed, records, _ in lag.partitions:
            sums = topics.get(where.topic)
            if sums is None:
                sums = topics[where.topic] = _TopicSums()
            sums.lag += records
            sums.offsets += committed or 0
        for where, member in lag.members.partitions.items():
            if (assigned := topics.get(where.topic)) is not None:
                assigned.assigned += 1
                assigned.members.add(member)
        self._partitions += len(lag.partitions)
        self._add_lags(name, lag, is_share=is_share)
        if not is_share:
            self._add_offsets(name, lag)
        self._add_topics(name, topics, is_share=is_share)

    def _add_lags(self, name: str, lag: GroupLag, *, is_share: bool) -> None:
        age_lines, ages = self._of(SECONDS)
        share_lines, share_records = self._of(SHARE_RECORDS)
        for (topic, index), _, records, seconds in lag.partitions:
            labels = f'{{group="{name}",topic="{topic}",partition="{index}"}}'
            if seconds is not None:
                age_lines.append(f"{labels} %s")
                ages.append((seconds,))
            if is_share:
                share_lines.append(f"{labels} %d")
                share_records.append((records,))

    def _add_offsets(self, name: str, lag: GroupLag) -> None:
        """Add the names of the exporters, which know no share groups."""
        lag_lines, lags = self._of(LAG)
        km_lines, km_lags = self._of(KM_LAG)
        offset_lines, offsets = self._of(OFFSET)
        for (topic, index), committed, records, _ in lag.partitions:
            labels = f'{{consumergroup="{name}",topic="{topic}",partition="{index}"}} %d'
            value = (records,)
            lag_lines.append(labels)
            lags.append(value)
            km_lines.append(f'{{group_id="{name}",topic_name="{topic}",partition_id="{index}"}} %d')
            km_lags.append(value)
            if committed is not None:
                offset_lines.append(labels)
                offsets.append((committed,))

    def _add_topics(self, name: str, topics: Mapping[str, _TopicSums], *, is_share: bool) -> None:
        km_lines, km_values = self._of(KM_TOPIC_LAG, KM_TOPIC_MEMBERS, KM_ASSIGNED)
        km_offset_lines, km_offsets = self._of(KM_OFFSET_SUM)
        lines, values = self._of(LAG_SUM, OFFSET_SUM)
        for topic, sums in topics.items():
            labels = f'{{group_id="{name}",topic_name="{topic}"}} %d'
            km_lines.append(labels)
            km_values.append((sums.lag, len(sums.members), sums.assigned))
            if not is_share:
                km_offset_lines.append(labels)
                km_offsets.append((sums.offsets,))
                lines.append(f'{{consumergroup="{name}",topic="{topic}"}} %d')
                values.append((sums.lag, sums.offsets))
