"""Reads the replicas of this broker: offsets, sizes and who is in sync.

What there is once for a partition is served by its leader, and by the controller where there is none: so each series is
there once in a cluster, and a sum over all brokers is right.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.metadata_store.cluster_view import NO_LEADER, TopicView
from ottla.metrics.page import COUNTER, GAUGE, Page, escape, family
from ottla.metrics.reading import Reading
from ottla.replication.partition import Partition

_KE, _KM, _KAFKA = "Names of kafka_exporter", "Names of kminion", "Partitions"
_TP = "topic partition"

CURRENT_OFFSET = family(
    "kafka_topic_partition_current_offset", GAUGE, "High watermark of the partition, by its leader", _TP, group=_KE
)
OLDEST_OFFSET = family(
    "kafka_topic_partition_oldest_offset", GAUGE, "First offset of the partition, by its leader", _TP, group=_KE
)
LEADER = family("kafka_topic_partition_leader", GAUGE, "Node id of the leader; -1: none", _TP, group=_KE)
REPLICAS = family("kafka_topic_partition_replicas", GAUGE, "Replicas of the partition", _TP, group=_KE)
IN_SYNC = family("kafka_topic_partition_in_sync_replica", GAUGE, "In-sync replicas of the partition", _TP, group=_KE)
IS_PREFERRED = family(
    "kafka_topic_partition_leader_is_preferred", GAUGE, "1 if the first of the replicas leads", _TP, group=_KE
)
IS_UNDER_REPLICATED = family(
    "kafka_topic_partition_under_replicated_partition", GAUGE, "1 if a replica is not in sync", _TP, group=_KE
)
HIGH_WATER_MARK = family(
    "kminion_kafka_topic_partition_high_water_mark",
    GAUGE,
    "High watermark of the partition",
    "topic_name partition_id",
    group=_KM,
)
LOW_WATER_MARK = family(
    "kminion_kafka_topic_partition_low_water_mark",
    GAUGE,
    "First offset of the partition",
    "topic_name partition_id",
    group=_KM,
)
HIGH_SUM = family(
    "kminion_kafka_topic_high_water_mark_sum",
    GAUGE,
    "Sum of the high watermarks of the partitions that this broker leads",
    "topic_name",
    group=_KM,
)
LOW_SUM = family(
    "kminion_kafka_topic_low_water_mark_sum",
    GAUGE,
    "Sum of the first offsets of the partitions that this broker leads",
    "topic_name",
    group=_KM,
)
TOPIC_BYTES = family(
    "kminion_kafka_topic_log_dir_size_total_bytes",
    GAUGE,
    "Bytes of the topic's replicas on this broker",
    "topic_name",
    group=_KM,
)
LOG_SIZE = family("kafka_log_log_size", GAUGE, "Bytes of a replica's log", _TP, group=_KAFKA)
LOG_START = family("kafka_log_log_logstartoffset", GAUGE, "First offset of a replica's log", _TP, group=_KAFKA)
LOG_END = family("kafka_log_log_logendoffset", GAUGE, "Offset after the last record of a replica", _TP, group=_KAFKA)
SEGMENTS = family("kafka_log_log_numlogsegments", GAUGE, "Segments of a replica's log", _TP, group=_KAFKA)
PARTITIONS = family("kafka_server_replicamanager_partitioncount", GAUGE, "Replicas on this broker", group=_KAFKA)
LEADERS = family("kafka_server_replicamanager_leadercount", GAUGE, "Partitions that this broker leads", group=_KAFKA)
UNDER_REPLICATED = family(
    "kafka_server_replicamanager_underreplicatedpartitions",
    GAUGE,
    "Partitions that this broker leads, of which a replica is not in sync",
    group=_KAFKA,
)
UNDER_MIN_ISR = family(
    "kafka_server_replicamanager_underminisrpartitioncount",
    GAUGE,
    "Partitions that this broker leads, which have fewer in-sync replicas than min.insync.replicas: acks=all fails",
    group=_KAFKA,
)
AT_MIN_ISR = family(
    "kafka_server_replicamanager_atminisrpartitioncount",
    GAUGE,
    "Partitions that this broker leads, which have just as many in-sync replicas as min.insync.replicas",
    group=_KAFKA,
)
OFFLINE_REPLICAS = family(
    "kafka_server_replicamanager_offlinereplicacount",
    GAUGE,
    "Replicas of this broker that cannot be read: their log directory failed or is missing",
    group=_KAFKA,
)
SHRINKS = family(
    "kafka_server_replicamanager_isrshrinks",
    COUNTER,
    "Replicas that left the ISR of what this broker leads",
    group=_KAFKA,
)
EXPANDS = family(
    "kafka_server_replicamanager_isrexpands",
    COUNTER,
    "Replicas that joined the ISR of what this broker leads",
    group=_KAFKA,
)
FAILED_UPDATES = family(
    "kafka_server_replicamanager_failedisrupdates", COUNTER, "Changes of the ISR that were not decided", group=_KAFKA
)
LEFT_OUT = family(
    "ottla_metrics_partitions_left_out",
    GAUGE,
    "Replicas without series of their own, because there are more than `ottla.metrics.partitions.max`",
    group=_KAFKA,
)

WORK = 5


class _Counts:
    """The counts over all replicas."""

    def __init__(self) -> None:
        self.led = self.under_replicated = self.under_min_isr = self.at_min_isr = self.left_out = 0
        self.topics: dict[str, list[int]] = {}  # high watermarks, first offsets, bytes


def collect(reading: Reading, page: Page) -> Iterator[None]:
    """Read all replicas of this broker."""
    replicas, slices, counts = reading.services.replicas, reading.slices, _Counts()
    partitions_max = reading.services.config.metrics.partitions_max
    replica_lines = [page.lines_of(family) for family in (LOG_SIZE, LOG_START, LOG_END, SEGMENTS)]
    leader_lines = [
        page.lines_of(family) for family in (CURRENT_OFFSET, OLDEST_OFFSET, HIGH_WATER_MARK, LOW_WATER_MARK)
    ]
    state_lines = _state_lines(page)
    escaped: dict[str, str] = {}
    for number, partition in enumerate(list(replicas.partitions.values())):
        reading.traffic.look_at(partition)
        topic, index = partition.topic_partition
        name = escaped.get(topic) or escaped.setdefault(topic, escape(topic))
        has_series = number < partitions_max
        counts.left_out += not has_series
        _replica(partition, name, index, counts, replica_lines if has_series else None)
        if partition.is_serving:
            _leader(partition, name, index, counts, leader_lines if has_series else None)
            view = reading.view.topics.get(topic)
            if has_series and view is not None and index < len(view.partitions):
                _state(view, name, index, state_lines)
        if slices.spend(WORK):
            yield
    reading.traffic.forget_removed(replicas.partitions, reading.view.topics)
    if reading.is_controller:
        yield from _without_leader(reading, state_lines)
    _sums(reading, page, counts)


def _state_lines(page: Page) -> list[list[str]]:
    return [page.lines_of(family) for family in (LEADER, REPLICAS, IN_SYNC, IS_PREFERRED, IS_UNDER_REPLICATED)]


def _replica(partition: Partition, name: str, index: int, counts: _Counts, lines: list[list[str]] | None) -> None:
    log = partition.log
    size_bytes = log.size_bytes
    counts.topics.setdefault(name, [0, 0, 0])[2] += size_bytes
    if lines is None:
        return
    labels = f'{{topic="{name}",partition="{index}"}}'
    size, start, end, segments = lines
    size.append(f"kafka_log_log_size{labels} {size_bytes}\n")
    start.append(f"kafka_log_log_logstartoffset{labels} {log.log_start_offset}\n")
    end.append(f"kafka_log_log_logendoffset{labels} {log.end_offset}\n")
    segments.append(f"kafka_log_log_numlogsegments{labels} {len(log.segments)}\n")


def _leader(partition: Partition, name: str, index: int, counts: _Counts, lines: list[list[str]] | None) -> None:
    high, low, in_sync = partition.high_watermark, partition.log.log_start_offset, len(partition.isr)
    counts.led += 1
    counts.under_replicated += in_sync < len(partition.replicas)
    counts.under_min_isr += in_sync < partition.min_isr
    counts.at_min_isr += in_sync == partition.min_isr
    sums = counts.topics[name]
    sums[0] += high
    sums[1] += low
    if lines is None:
        return
    labels, kminion = f'{{topic="{name}",partition="{index}"}}', f'{{topic_name="{name}",partition_id="{index}"}}'
    current, oldest, high_mark, low_mark = lines
    current.append(f"kafka_topic_partition_current_offset{labels} {high}\n")
    oldest.append(f"kafka_topic_partition_oldest_offset{labels} {low}\n")
    high_mark.append(f"kminion_kafka_topic_partition_high_water_mark{kminion} {high}\n")
    low_mark.append(f"kminion_kafka_topic_partition_low_water_mark{kminion} {low}\n")


def _state(topic: TopicView, name: str, index: int, lines: list[list[str]]) -> None:
    """Add what the snapshot says of a partition."""
    state = topic.partitions[index]
    labels = f'{{topic="{name}",partition="{index}"}}'
    leader, replicas, in_sync, preferred, under_replicated = lines
    leader.append(f"kafka_topic_partition_leader{labels} {state.leader}\n")
    replicas.append(f"kafka_topic_partition_replicas{labels} {len(state.replicas)}\n")
    in_sync.append(f"kafka_topic_partition_in_sync_replica{labels} {len(state.isr)}\n")
    is_preferred = int(state.leader == state.replicas[0]) if state.replicas else 0
    preferred.append(f"kafka_topic_partition_leader_is_preferred{labels} {is_preferred}\n")
    is_under = int(len(state.isr) < len(state.replicas))
    under_replicated.append(f"kafka_topic_partition_under_replicated_partition{labels} {is_under}\n")


def _without_leader(reading: Reading, lines: list[list[str]]) -> Iterator[None]:
    """Add the partitions that have no leader: at most so many as have series otherwise."""
    left = reading.services.config.metrics.partitions_max
    for topic in reading.view.topics.values():
        for state in topic.partitions:
            if state.leader == NO_LEADER and left > 0:
                left -= 1
                _state(topic, escape(topic.name), state.index, lines)
        if reading.slices.spend(1 + len(topic.partitions) // 20):
            yield


def _sums(reading: Reading, page: Page, counts: _Counts) -> None:
    replicas = reading.services.replicas
    for name, (high, low, size_bytes) in counts.topics.items():
        labels = f'topic_name="{name}"'
        page.add(TOPIC_BYTES, size_bytes, labels)
        page.add(HIGH_SUM, high, labels)
        page.add(LOW_SUM, low, labels)
    page.add(PARTITIONS, len(replicas.partitions))
    page.add(LEADERS, counts.led)
    page.add(UNDER_REPLICATED, counts.under_replicated)
    page.add(UNDER_MIN_ISR, counts.under_min_isr)
    page.add(AT_MIN_ISR, counts.at_min_isr)
    page.add(OFFLINE_REPLICAS, len(replicas.offline_partitions))
    page.add(LEFT_OUT, counts.left_out)
    changes = replicas.context.isr_changes
    page.add(SHRINKS, changes.shrinks)
    page.add(EXPANDS, changes.expands)
    page.add(FAILED_UPDATES, changes.failures)
