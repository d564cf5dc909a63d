"""Whole brokers starting on the same directory, Ottla and Kafka in turn: until every partition has a leader.

`python -m benchmarks.starts` starts them with 10,000 partitions in 10 topics, after a clean stop and after a kill.

The directory is Ottla's; Kafka gets a copy that was exported (`ottla cluster export-kafka`). Both have been started on
theirs once before, so that what is measured is any later start. Kafka's start holds that of a JVM, which takes it about
two seconds: the row without data says how long for each.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.progress import Progress
from benchmarks.report import STARTS_TITLE, machine, today, write_part
from ottla.broker.migration.export_to_kafka import export
from ottla.core.files import SystemFiles
from tests.support.kafka_jars import kafka_jars
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import usage
from tests.support.real_kafka import FULL_JVM, RealKafka

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S, SETTLE_S = 180.0, 3.0
TOPICS = 10
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


def fill(bootstrap: str, topics: dict[str, int], log_bytes: int, *, creates: bool = True) -> None:
    """Records into every partition of every topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    if topics and creates:
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


# ---- 10,000 partitions


class Start(NamedTuple):
    """One start: seconds until the first answer and until all partitions are led, processor time, and memory then."""

    answers_s: float
    serves_s: float
    cpu_s: float
    rss_bytes: int


def start_of(broker: OttlaProcess | RealKafka, topics: dict[str, int]) -> Start:
    """Start a broker, which runs on."""
    began = time.perf_counter()
    if isinstance(broker, OttlaProcess):
        broker.start(timeout_s=PATIENCE_S)
    else:
        broker.start()
    answers_s = time.perf_counter() - began
    wait_for_leaders(broker.bootstrap, topics)
    serves_s = time.perf_counter() - began
    cpu_s = usage(broker.pid).cpu_s
    time.sleep(SETTLE_S)
    return Start(answers_s, serves_s, cpu_s, usage(broker.pid).rss_bytes)


def memory_without_topics(scratch: Path) -> int:
    """Return the memory of a broker without topics."""
    broker = OttlaProcess(scratch / "empty")
    found = start_of(broker, {})
    broker.stop()
    return found.rss_bytes


def kafka_with_copy(ottla: OttlaProcess, scratch: Path, topics: dict[str, int]) -> RealKafka:
    """Return a Kafka with a copy of a stopped broker's data, which has started on it once."""
    data = scratch / "kafka" / "data"
    kafka = RealKafka(
        kafka_jars(), scratch / "kafka", jvm_options=FULL_JVM, node_id=NODE, settings={"log.dirs": str(data)}
    )
    kafka.data = data
    shutil.copytree(ottla.data, data)
    export(SystemFiles(), [data], now_ms=1)
    start_of(kafka, topics)  # the first start after an export is not like the others
    kafka.stop()
    return kafka


def many(scratch: Path, say: Say, *, partitions: int, rounds: int, has_kafka: bool) -> list[str]:
    """Rows for the page: starts with many partitions in several topics."""
    topics = {f"many-{at}": partitions // TOPICS for at in range(TOPICS)}
    say("a broker without topics")
    empty_bytes = memory_without_topics(scratch)
    ottla = OttlaProcess(scratch / "ottla")
    ottla.start()
    say("filling the topics")
    fill(ottla.bootstrap, topics, 0)
    ottla.stop()
    brokers: dict[str, OttlaProcess | RealKafka] = {"Ottla": ottla}
    if has_kafka:
        brokers["Kafka"] = kafka_with_copy(ottla, scratch, topics)
    rows = [
        f"Measured {today()} on {machine()}: {partitions:,} partitions in {TOPICS} topics, a few batches in each, one",
        f"broker, medians of {rounds}. A killed broker had written to each partition since its start.",
        "",
        "| start | first answer, s | all partitions led, s | processor time, s | memory, MiB |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for how in ("clean stop", "kill -9"):
        for name, broker in brokers.items():
            found = []
            for _ in range(rounds):
                if how == "kill -9":
                    start_of(broker, topics)
                    fill(broker.bootstrap, topics, 0, creates=False)
                    broker.kill()
                say(f"{name}, start after {how}")
                found.append(start_of(broker, topics))
                broker.stop()
            figures = [statistics.median(each[at] for each in found) for at in range(3)]
            memory = statistics.median(each.rss_bytes for each in found)
            rows.append(
                f"| {name}, after {how} | {' | '.join(f'{each:.2f}' for each in figures)} | {memory / (1 << 20):.0f} |"
            )
            if name == "Ottla":
                idle_bytes = memory
    turns = subprocess.run(
        [sys.executable, "-m", "benchmarks.loop_turns", str(ottla.data)], check=True, capture_output=True, text=True
    ).stdout.strip()
    rows += [
        "",
        f"An idle partition takes {(idle_bytes - empty_bytes) / partitions / 1024:.1f} KiB of Ottla: a broker without",
        f"topics has {empty_bytes / (1 << 20):.0f} MiB. The longest turns of the loop in a start after a clean stop,",
        f"by `benchmarks/loop_turns.py`: `{turns}`.",
    ]
    return rows


def main() -> int:
    """Measure, print the rows and write them into the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.starts", description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-kafka", action="store_true")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "benchmarks.md")
    parser.add_argument("--no-page", action="store_true")
    asked = parser.parse_args()
    progress = Progress()
    with tempfile.TemporaryDirectory(prefix="ottla-bench-starts-") as directory:
        rows = many(
            Path(directory),
            progress.status,
            partitions=asked.partitions,
            rounds=asked.rounds,
            has_kafka=not asked.no_kafka,
        )
    for row in rows:
        progress.line(row)
    if not asked.no_page:
        write_part(asked.page, STARTS_TITLE, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
