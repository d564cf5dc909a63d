"""Whole brokers starting on the same directory, Ottla and Kafka in turn: until every partition has a leader.

The directory is Ottla's; Kafka gets a copy that was exported (`ottla cluster export-kafka`). Both have been started on
theirs once before, so that what is measured is any later start. Kafka's start holds that of a JVM, which takes it about
two seconds: the row without data says how long for each.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from ottla.broker.migration.export_to_kafka import export
from ottla.core.files import SystemFiles
from tests.support.ottla_process import OttlaProcess
from tests.support.real_kafka import FULL_JVM, RealKafka

PATIENCE_S = 180.0
NODE = 1
Say = Callable[[str], None]
NOTES = (".kafka_cleanshutdown", "recovery-point-offset-checkpoint", "ottla-copies")


class Pair:
    """The same data twice: as Ottla has it, and exported for Kafka."""

    def __init__(self, jars: Path, scratch: Path, topics: dict[str, int], log_bytes: int) -> None:
        self.ottla = OttlaProcess(scratch / "ottla")
        self.topics = topics
        self.ottla.start()
        fill(self.ottla.bootstrap, topics, log_bytes)
        self.ottla.stop()
        self.kafka = RealKafka(
            jars,
            scratch / "kafka",
            jvm_options=FULL_JVM,
            node_id=NODE,
            settings={"log.dirs": str(scratch / "kafka" / "data")},
        )
        self.kafka.data = scratch / "kafka" / "data"
        shutil.copytree(self.ottla.data, self.kafka.data)
        export(SystemFiles(), [self.kafka.data], now_ms=1)

    def ottla_start(self, *, clean: bool) -> float:
        """Seconds of one start; the broker is stopped afterwards."""
        return self._timed(self.ottla, self.ottla.data, clean=clean)

    def kafka_start(self, *, clean: bool) -> float:
        """The same of Kafka."""
        return self._timed(self.kafka, self.kafka.data, clean=clean)

    def _timed(self, broker: OttlaProcess | RealKafka, data: Path, *, clean: bool) -> float:
        if not clean:
            for name in NOTES:
                (data / name).unlink(missing_ok=True)
        began = time.perf_counter()
        broker.start()
        wait_for_leaders(broker.bootstrap, self.topics)
        took = time.perf_counter() - began
        broker.stop()
        return took


def fill(bootstrap: str, topics: dict[str, int], log_bytes: int) -> None:
    """Records into every partition of every topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    if topics:
        for future in admin.create_topics([NewTopic(name, count, 1) for name, count in topics.items()]).values():
            future.result(PATIENCE_S)
    settings = {"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 20, "queue.buffering.max.kbytes": 1 << 19}
    producer = Producer(settings)
    partitions = [(name, index) for name, count in topics.items() for index in range(count)]
    value = os.urandom(1000)
    for at in range(max(log_bytes // len(value), 3 * len(partitions)) if partitions else 0):
        while True:
            try:
                producer.produce(
                    partitions[at % len(partitions)][0], value, partition=partitions[at % len(partitions)][1]
                )
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(PATIENCE_S)


def wait_for_leaders(bootstrap: str, topics: dict[str, int]) -> None:
    """Ask until each partition is led. Raises TimeoutError."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    deadline = time.perf_counter() + PATIENCE_S
    while time.perf_counter() < deadline:
        try:
            found = admin.list_topics(timeout=5).topics
        except KafkaException:
            continue
        if all(
            name in found and sum(part.leader >= 0 for part in found[name].partitions.values()) == count
            for name, count in topics.items()
        ):
            return
        time.sleep(0.005)
    raise TimeoutError(f"not every partition of {bootstrap} got a leader in {PATIENCE_S:g} s")


def table(jars: Path, scratch: Path, say: Say, *, partitions: int, log_bytes: int, rounds: int) -> list[str]:
    """Rows for the page."""
    rows = ["| start until every partition has a leader, s | Ottla | Kafka |", "| --- | ---: | ---: |"]
    cases = [
        ("no topic", {}, 0, True),
        (f"{partitions:,} partitions after a clean stop", {"many": partitions}, 0, True),
        (f"{log_bytes / (1 << 30):.2g} GiB in one partition after a clean stop", {"large": 1}, log_bytes, True),
        (
            f"{log_bytes / (1 << 30):.2g} GiB in one partition, nothing known to be synced",
            {"large": 1},
            log_bytes,
            False,
        ),
    ]
    for name, topics, size, clean in cases:
        say(f"starting: {name}")
        pair = Pair(jars, scratch, topics, size)
        took: dict[str, list[float]] = {"ottla": [], "kafka": []}
        for number in range(rounds + 1):
            for who, start in (("ottla", pair.ottla_start), ("kafka", pair.kafka_start)):
                seconds = start(clean=clean)
                if number:  # the first start after an export is not like the others
                    took[who].append(seconds)
        rows.append(f"| {name} | {' | '.join(f'{statistics.median(each):.2f}' for each in took.values())} |")
        shutil.rmtree(scratch)
    return rows
