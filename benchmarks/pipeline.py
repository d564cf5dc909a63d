"""Spark reading a topic: our source, our load and the official connector, in one run on one session and one broker.

    python -m benchmarks pipeline [--records N] [--rounds N] [--broker ottla|kafka]

Every case reads the same topic (4 partitions, records of 200 B) whole; the cases take turns, the first turn is thrown
away, and each later one turns their order round. "Transfer" is the limit that no source in Python can pass: batches of
the same shape that lie ready in the worker, handed to the JVM and counted there.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.progress import Progress
from benchmarks.report import SPARK_TITLE, machine, number, today, write_part
from tests.support.kafka_jars import kafka_jars
from tests.support.lakes import lake_in
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import TICKS_PER_S, descendants, usage
from tests.support.real_kafka import FULL_JVM, RealKafka
from tests.support.topics import create_topic, write_batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


TOPIC, PARTITIONS, SIZE = "benchmark", 4, 200
BATCH = 1000
MIB = 1 << 20
CORES = 2
SHAPE = ("key", "value", "partition", "offset", "timestamp")
REQUIRED = 2.0
OFFICIAL, SOURCE, LOAD = "official connector, Parquet", "ottla source, Parquet", "ottla load, Delta"
OFFICIAL_COMMAND, COMMAND = "official connector, the whole job", "ottla pipeline load, the whole command"
OFFICIAL_COUNT, COUNT, COUNT_OFFSETS = (
    "official connector, count",
    "ottla source, count",
    "ottla source, count of offsets",
)
TRANSFER, WRITING = "rows from nowhere: worker to JVM", "rows from nowhere, Parquet"


@dataclass(slots=True)
class Turn:
    """One case, once."""

    seconds: float
    cpu_s: dict[str, float]


@dataclass(slots=True)
class Figures:
    """All that was measured."""

    records: int
    broker: str
    start_s: float = 0.0
    jvm_mib: float = 0.0
    turns: dict[str, list[Turn]] = field(default_factory=dict)

    def seconds(self, case: str) -> float:
        """The median of the turns."""
        return statistics.median(turn.seconds for turn in self.turns[case])

    def rate(self, case: str) -> float:
        """Records per second, the median of the turns."""
        return self.records / self.seconds(case)

    def cpu_us(self, case: str, who: str) -> float:
        """Processor time per record in microseconds, the median."""
        return statistics.median(turn.cpu_s.get(who, 0.0) for turn in self.turns[case]) / self.records * 1e6


def run(records: int, rounds: int, broker: str, page: Path | None, progress: Progress) -> bool:
    """Measure, and write the page's part; whether the load is as fast as it must be."""
    directory = Path(tempfile.mkdtemp(prefix="ottla-bench-spark-"))
    server: Any = OttlaProcess(directory / "broker")
    if broker == "kafka":
        server = RealKafka(kafka_jars(), directory / "broker", jvm_options=FULL_JVM)
    server.start()
    try:
        fill(server.bootstrap, records, progress)
        figures = Figures(records, "Apache Kafka" if broker == "kafka" else "Ottla")
        measure(server, directory, figures, rounds, progress)
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
    lines = table(figures, rounds)
    progress.line("\n".join(lines))
    if page is not None:
        write_part(page, SPARK_TITLE, lines)
        progress.line(f"written to {page}")
    return figures.rate(LOAD) >= REQUIRED * figures.rate(OFFICIAL)


def fill(bootstrap: str, records: int, progress: Progress) -> None:
    """Batches of 1000 records, each value different and half of it random: text compresses about so."""
    from ottla.records.builder import NewRecord, build_batch

    create_topic(bootstrap, TOPIC, partitions=PARTITIONS)
    chance = random.Random(1)
    each = records // PARTITIONS
    for partition in range(PARTITIONS):
        batches = []
        for at in range(0, each, BATCH):
            noise = chance.randbytes(BATCH * SIZE // 2)
            found = [
                NewRecord(
                    b"%d" % n,
                    noise[(n - at) * SIZE // 2 : (n - at + 1) * SIZE // 2] + b"=" * (SIZE // 2),
                    1_700_000_000_000 + n,
                )
                for n in range(at, min(at + BATCH, each))
            ]
            batches.append(bytes(build_batch(found)))
            if len(batches) == 50:
                write_batches(bootstrap, TOPIC, batches, partition=partition)
                batches.clear()
                progress.status(f"filling: partition {partition}, {at:,} of {each:,}")
        write_batches(bootstrap, TOPIC, batches, partition=partition)


def measure(server: Any, directory: Path, figures: Figures, rounds: int, progress: Progress) -> None:
    """Start Spark and let the cases take turns."""
    from ottla.pipeline.jars import connector_jars
    from ottla.pipeline.session import SparkOptions, start_session

    jars = connector_jars(os.environ, progress.line)
    progress.line(f"the official connector: {jars.version}, by {jars.how}")
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {jars.spark_option} pyspark-shell"
    began = time.perf_counter()
    spark = start_session(SparkOptions(directory / "spark", cores=CORES), progress.line)
    figures.start_s = time.perf_counter() - began
    java = next(pid for pid in descendants(os.getpid()) if _name(pid) == "java" and pid != server.pid)
    figures.jvm_mib = usage(java).rss_bytes / MIB
    todo = list(cases(spark, server.bootstrap, directory / "out", figures.records).items())
    try:
        for turn in range(rounds + 1):
            for name, case in todo if turn % 2 == 0 else reversed(todo):
                progress.status(f"turn {turn} of {rounds}: {name}")
                shutil.rmtree(directory / "out", ignore_errors=True)
                before, at = _cpu(server.pid), time.perf_counter()
                count = case()
                took = time.perf_counter() - at
                assert count in {None, figures.records}, f"{name} counted {count}"
                used = {who: spent - before.get(who, 0.0) for who, spent in _cpu(server.pid).items()}
                progress.line(f"turn {turn}, {name}: {took:.2f} s, {number(figures.records / took)} records/s")
                if turn:
                    figures.turns.setdefault(name, []).append(Turn(took, used))
    finally:
        spark.stop()


def cases(spark: SparkSession, bootstrap: str, out: Path, records: int) -> dict[str, Callable[[], int | None]]:
    """What is compared, by name."""

    def read(kind: str, **options: str) -> DataFrame:
        reader = spark.read.format(kind).option("kafka.bootstrap.servers", bootstrap).option("subscribe", TOPIC)
        return reader.options(**options).load()

    def parquet(frame: DataFrame) -> None:
        frame.select(*SHAPE).write.parquet(str(out))

    return {
        OFFICIAL_COUNT: lambda: read("kafka").count(),
        COUNT: lambda: read("ottla").count(),
        COUNT_OFFSETS: lambda: read("ottla", columns="offset").count(),
        OFFICIAL: lambda: parquet(read("kafka")),
        SOURCE: lambda: parquet(read("ottla", columns=",".join(SHAPE))),
        LOAD: lambda: load(spark, bootstrap, out),
        OFFICIAL_COMMAND: lambda: official_command(bootstrap, out),
        COMMAND: lambda: command(bootstrap, out),
        WRITING: lambda: parquet(from_nowhere(spark, records)),
        TRANSFER: lambda: from_nowhere(spark, records).count(),
    }


class Silent:
    """Shows no progress."""

    def expect(self, count: int) -> None:
        """Nothing."""

    def advance(self, count: int) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def warn(self, text: str) -> None:
        """Never in a benchmark."""
        raise AssertionError(text)


def load(spark: SparkSession, bootstrap: str, out: Path) -> int:
    """What `ottla pipeline load` does once Spark runs: a new Delta table of all records, durable and committed."""
    from ottla.pipeline.event_time import TimeRule
    from ottla.pipeline.formats.plain import Raw
    from ottla.pipeline.loading.load import LoadSpec, load_topics
    from ottla.pipeline.loading.row_mapping import RowMapping
    from ottla.pipeline.loading.spark_host import SparkHost
    from ottla.pipeline.session import SparkOptions
    from ottla.pipeline.source import Brokers

    spec = LoadSpec(lake_in(out), Brokers(bootstrap), RowMapping(Raw(), TimeRule(), keep=("key",)), topics=(TOPIC,))
    (done,) = load_topics(spec, SparkHost.of(spark, SparkOptions(out)), Silent()).done
    return done.rows


def official_command(bootstrap: str, out: Path) -> int:
    """A Spark job that does nothing else, its start included."""
    job = [sys.executable, "-m", "benchmarks.official", bootstrap, TOPIC, str(out), str(CORES)]
    return int(subprocess.run(job, check=True, capture_output=True).stdout)


def command(bootstrap: str, out: Path) -> int:
    """The same by a person's command: Python, Spark and all are started for it."""
    program = str(Path(sys.executable).with_name("ottla"))
    ottla = [program, "pipeline", "load", TOPIC, "--lake", str(out), "-b", bootstrap, "--as", "raw", "-o", "keep=key"]
    without_jars = {name: value for name, value in os.environ.items() if name != "PYSPARK_SUBMIT_ARGS"}
    options = ["--master", f"local[{CORES}]", "--format", "json"]
    result = json.loads(subprocess.run([*ottla, *options], check=True, stdout=subprocess.PIPE, env=without_jars).stdout)
    (loaded,) = result["load"]["result"]
    return int(loaded["rows"])


def from_nowhere(spark: SparkSession, records: int) -> DataFrame:
    """Batches of the same columns that are ready beforehand: nothing is fetched and nothing decoded."""
    each, size = records // PARTITIONS, SIZE

    def tasks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        rows, half = min(40_000, each), size // 2
        noise = random.Random(1).randbytes(rows * half)
        ready = pa.record_batch(
            {
                "key": pa.array([b"%d" % n for n in range(rows)], pa.binary()),
                "value": pa.array([noise[n * half : (n + 1) * half] + b"=" * half for n in range(rows)], pa.binary()),
                "partition": pa.array([0] * rows, pa.int32()),
                "offset": pa.array(range(rows), pa.int64()),
                "timestamp": pa.array(range(rows), pa.timestamp("us", tz="UTC")),
            }
        )
        for batch in batches:
            for _ in range(batch.num_rows):
                for at in range(0, each, rows):
                    yield ready.slice(0, min(rows, each - at))

    shape = "key binary, value binary, partition int, offset bigint, timestamp timestamp"
    return spark.range(0, PARTITIONS, 1, PARTITIONS).mapInArrow(tasks, shape)


def table(figures: Figures, rounds: int) -> list[str]:
    """The page's part."""
    import pyspark

    ratio = figures.rate(LOAD) / figures.rate(OFFICIAL)
    transfer_mb = figures.rate(TRANSFER) * SIZE / 1e6
    head = (
        f"Measured {today()} on {machine()}; PySpark {pyspark.__version__}, `local[{CORES}]`, broker: "
        f"{figures.broker}; {figures.records:,} records of {SIZE} B in {PARTITIONS} partitions, uncompressed. Medians "
        f"of {rounds} alternating turns after one that is thrown away. Processor time is of JVM, workers and broker."
    )
    lines = [
        head,
        "",
        "| case | records/s | of the official | µs of processor per record: JVM, Python, broker |",
        "| --- | ---: | ---: | --- |",
    ]
    for case in figures.turns:
        base = OFFICIAL_COUNT if "count" in case else OFFICIAL_COMMAND if "whole" in case else OFFICIAL
        against = "" if case == TRANSFER else f"{figures.rate(case) / figures.rate(base):.2f}x"
        used = ", ".join(f"{figures.cpu_us(case, who):.2f}" for who in ("java", "python", "broker"))
        lines.append(
            f"| {case} | {number(figures.rate(case))} | {against} | {'' if base is OFFICIAL_COMMAND else used} |"
        )
    lines += [
        "",
        f"`ottla pipeline load` writes {ratio:.2f}x as many records/s as the official connector writes as Parquet.",
        "",
        (
            "The limit of any source in Python is the way from the worker to the JVM: "
            f"{number(figures.rate(TRANSFER))} records/s, {transfer_mb:.0f} MB/s of values, with nothing read and "
            f"nothing decoded; and where Spark writes such rows as Parquet, {number(figures.rate(WRITING))} records/s, "
            f"{figures.rate(WRITING) / figures.rate(OFFICIAL):.2f}x the official connector's write. The load's tasks "
            "write their files themselves, so its rows never cross."
        ),
        "",
        (
            f"Spark's start: {figures.start_s:.1f} s, and {figures.jvm_mib:.0f} MiB for its JVM before any work. The "
            f"whole commands, start and end included, took {figures.seconds(COMMAND):.1f} s (`ottla pipeline load`) "
            f"and {figures.seconds(OFFICIAL_COMMAND):.1f} s (a job of the official connector)."
        ),
    ]
    return lines


def _cpu(broker: int) -> dict[str, float]:
    """Processor seconds so far: of this process's Java and Python children, and of the broker."""
    spent = {"java": 0.0, "python": 0.0, "broker": _ticks(broker) / TICKS_PER_S}
    for pid in descendants(os.getpid()):
        if pid != broker:
            who = "java" if _name(pid) == "java" else "python"
            spent[who] += _ticks(pid) / TICKS_PER_S
    return spent


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _ticks(pid: int) -> int:
    """User and system time of a process, without its children."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(after_name[11]) + int(after_name[12])
