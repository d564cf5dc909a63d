"""Reads the replicas of this broker: offsets, sizes and who is in sync.

What there is once for a partition is served by its leader, and by the controller where there is none: so each series is
there once in a cluster, and a sum over all brokers is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from ottla.metadata_store.cluster_view import NO_LEADER, TopicView
from ottla.metrics.page import COUNTER, GAUGE, ROWS_MAX, Page, escape_row, family
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

_OF_REPLICA = (LOG_SIZE, LOG_START, LOG_END, SEGMENTS)
_OF_LEADER, _OF_LEADER_KM = (CURRENT_OFFSET, OLDEST_OFFSET), (HIGH_WATER_MARK, LOW_WATER_MARK)
_OF_TOPIC = (HIGH_SUM, LOW_SUM, TOPIC_BYTES)
_OF_STATE = (LEADER, REPLICAS, IN_SYNC, IS_PREFERRED, IS_UNDER_REPLICATED)
_WORK = 3


class _Counts:
    """The counts over all replicas."""

    def __init__(self) -> None:
        self.led = self.under_replicated = self.under_min_isr = self.at_min_isr = self.left_out = 0
        self.topics: dict[str, list[int]] = {}  # high watermarks, first offsets, bytes


class _Block:
    """The samples of some replicas: labels, and beside each the values of its families."""

    def __init__(self) -> None:
        self.replicas, self.replica_values = list[str](), list[tuple[int, int, int, int]]()
        self.led, self.led_for_kminion = list[str](), list[str]()
        self.led_values: list[tuple[int, int]] = []
        self.states, self.state_values = list[str](), list[tuple[int, int, int, int, int]]()

    @property
    def is_full(self) -> bool:
        """Return whether it is time to add it to a page."""
        return len(self.replicas) >= ROWS_MAX or len(self.states) >= ROWS_MAX

    def add_to(self, page: Page) -> None:
        """Add what there is."""
        page.add_rows(self.replicas, _OF_REPLICA, self.replica_values)
        page.add_rows(self.led, _OF_LEADER, self.led_values)
        page.add_rows(self.led_for_kminion, _OF_LEADER_KM, self.led_values)
        page.add_rows(self.states, _OF_STATE, self.state_values)


def collect(reading: Reading, page: Page) -> Iterator[None]:
    """Read all replicas of this broker."""
    replicas, slices, counts, block = reading.services.replicas, reading.slices, _Counts(), _Block()
    partitions_max, look_at = reading.services.config.metrics.partitions_max, reading.traffic.look_at
    for number, partition in enumerate(list(replicas.partitions.values())):
        look_at(partition)
        if number < partitions_max:
            _read(reading, partition, counts, block)
            if block.is_full:
                block.add_to(page)
                block = _Block()
        else:
            counts.left_out += 1
            _read(reading, partition, counts, None)
        if slices.spend(_WORK):
            yield
    reading.traffic.forget_removed(replicas.partitions, reading.view.topics)
    if reading.is_controller:
        yield from _without_leader(reading, block)
    block.add_to(page)
    yield from _sums(reading, page, counts)


def _read(reading: Reading, partition: Partition, counts: _Counts, block: _Block | None) -> None:
    """Count a replica, and add its samples if it has series of its own."""
    topic, index = partition.topic_partition
    log, name = partition.log, escape_row(topic)
    size_bytes, start = log.size_bytes, log.log_start_offset
    labels = f'{{topic="{name}",partition="{index}"}} %d'
    sums = counts.topics.get(name)
    if sums is None:
        sums = counts.topics[name] = [0, 0, 0]
    sums[2] += size_bytes
    if block is not None:
        block.replicas.append(labels)
        block.replica_values.append((size_bytes, start, log.end_offset, len(log.segments)))
    if not partition.is_serving:
        return
    high, in_sync, min_isr = partition.high_watermark, len(partition.isr), partition.min_isr
    counts.led += 1
    counts.under_replicated += in_sync < len(partition.replicas)
    counts.under_min_isr += in_sync < min_isr
    counts.at_min_isr += in_sync == min_isr
    sums[0] += high
    sums[1] += start
    if block is None:
        return
    block.led.append(labels)
    block.led_for_kminion.append(f'{{topic_name="{name}",partition_id="{index}"}} %d')
    block.led_values.append((high, start))
    view = reading.view.topics.get(topic)
    if view is not None and index < len(view.partitions):
        _add_state(view, index, labels, block)


def _add_state(topic: TopicView, index: int, labels: str, block: _Block) -> None:
    """Add what the snapshot says of a partition."""
    state = topic.partitions[index]
    leader, replicas, in_sync = state.leader, state.replicas, len(state.isr)
    is_preferred = int(leader == replicas[0]) if replicas else 0
    block.states.append(labels)
    block.state_values.append((leader, len(replicas), in_sync, is_preferred, int(in_sync < len(replicas))))


def _without_leader(reading: Reading, block: _Block) -> Iterator[None]:
    """Add the partitions that have no leader: at most so many as have series otherwise."""
    left = reading.services.config.metrics.partitions_max
    for topic in list(reading.view.topics.values()):
        for state in topic.partitions:
            if state.leader == NO_LEADER and left > 0:
                left -= 1
                labels = f'{{topic="{escape_row(topic.name)}",partition="{state.index}"}} %d'
                _add_state(topic, state.index, labels, block)
        if reading.slices.spend(1 + len(topic.partitions) // 20):
            yield


def _sums(reading: Reading, page: Page, counts: _Counts) -> Iterator[None]:
    replicas, lines, values = reading.services.replicas, list[str](), list[list[int]]()
    for name, sums in islice(counts.topics.items(), reading.services.config.metrics.partitions_max):
        lines.append(f'{{topic_name="{name}"}} %d')
        values.append(sums)
        if len(lines) >= ROWS_MAX:
            page.add_rows(lines, _OF_TOPIC, values)
            lines, values = [], []
        if reading.slices.spend():
            yield
    page.add_rows(lines, _OF_TOPIC, values)
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
