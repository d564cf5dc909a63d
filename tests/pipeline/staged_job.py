"""Jobs over a topic of the test's own, for tests of the stages: their files, records with times, and hand-made corruption.

Run as a program it is a stream's process that kills itself with -9; arguments: the job file, and the moment ("before
the commit", "after the commit").
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Message, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from ottla.client.audit import ProducedCounter
from ottla.core.clock import SystemClock
from ottla.pipeline.job_file.job import PipelineJob, read_job
from ottla.pipeline.lake.lake_table import LakeTable
from ottla.pipeline.loading.spark_host import SparkHost
from ottla.pipeline.produce import report_counts
from ottla.pipeline.progress import ProgressReporter
from ottla.pipeline.stages.runner import STAGES, Context, Round, run_round, stages_of
from ottla.pipeline.stream.results import Results, Step
from tests.support.topics import create_topic, read_with_librdkafka

TEN_MS = 1_431_856_800_000
"""2015-05-17 10:00, when the records were made; the events are a day older."""
MINUTE_MS = 60_000
PARTITIONS = 2
JOB = """\
[brokers]
bootstrap = "{bootstrap}"
[lake]
path = "lake"
format = "{table_format}"
[spark]
work = "spark"
master = "local[2]"
[[load]]
topics = ["{topic}"]
table = "events"
on_loss = "fail"
columns.n = "int"
[load.time]
from = "field"
field = "at"
"""
_PER_KIND = """\
[[stream]]
name = "per_kind"
from = "events"
window = "10m"
by = ["kind"]
topic = "{topic}-per-kind"
"""
STREAM = (
    _PER_KIND
    + """\
values = {{events = "count", total = "sum(n)", best = "top(cast(n as string), 1)"}}
"""
)
OWN_STREAM = (
    _PER_KIND
    + """\
function = "{function}"
"""
)
AUDIT = """\
[audit]
bucket = "10m"
"""
REPORT = """\
[report]
title = "Events"
output = "report.html"
[[report.section]]
show = "figures"
sql = "select count(*) as events, sum(n) as total from events"
[[report.section]]
title = "Over time"
show = "columns"
sql = "select window_start, kind, sum(events) as events from per_kind group by all order by 1"
"""


@dataclass
class StagedJob:
    """A topic, the job over it, and its tables."""

    directory: Path
    bootstrap: str
    topic: str
    host: SparkHost
    sections: str = STREAM + AUDIT + REPORT
    table_format: str = "delta"
    function: str = ""
    ends: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        create_topic(self.bootstrap, self.topic, partitions=PARTITIONS)
        self.file.write_text((JOB + self.sections).format(**vars(self)))

    @property
    def file(self) -> Path:
        return self.directory / "job.toml"

    @property
    def job(self) -> PipelineJob:
        made, found = read_job(self.file.read_text(), directory=self.directory, now_ms=0)
        assert made is not None, found.faults
        return replace(made, functions=frozenset({self.function}))

    @property
    def table(self) -> LakeTable:
        return self.job.lake.table("events")

    def send(self, minutes: Iterable[int], *, bad: int = 0, reported: bool = False) -> None:
        """A record a minute after ten to each partition, the first ones invalid; reported to the audit topic if `reported`."""
        counter = ProducedCounter(f"{self.topic}-{self.ends.total()}")

        def answered(error: object, message: Message) -> None:
            assert error is None, error
            partition = message.partition() or 0
            counter.acknowledged(self.topic, partition, message.offset() or 0, message.timestamp()[1])
            self.ends[partition] += 1

        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True})
        for n, minute in enumerate(minutes):
            for partition in range(PARTITIONS):
                at = f"2015-05-16T{10 + minute // 60:02}:{minute % 60:02}:30Z"
                value = json.dumps({"at": at, "kind": "abc"[minute % 3], "n": minute + partition}).encode()
                time = TEN_MS + minute * MINUTE_MS
                value = b"no json" if n < bad else value
                producer.produce(self.topic, value, partition=partition, timestamp=time, on_delivery=answered)
        assert producer.flush(30) == 0
        if reported:
            report_counts(self.bootstrap, counter)

    def report(self, *, partition: int, first_offset: int, last_offset: int, count: int, minute: int) -> None:
        """A producer that says it had so many more acknowledged."""
        counter = ProducedCounter(f"{self.topic}-another")
        for offset in (first_offset, last_offset, *[last_offset] * (count - 2)):
            counter.acknowledged(self.topic, partition, offset, TEN_MS + minute * MINUTE_MS)
        report_counts(self.bootstrap, counter)

    def rewrite(self, old: str, new: str) -> None:
        """Change the job file."""
        text = self.file.read_text()
        assert old in text, old
        self.file.write_text(text.replace(old, new))

    def use(self, function: str) -> None:
        """Name another function, and allow it."""
        self.rewrite(self.function, function)
        self.function = function

    @contextmanager
    def rewritten(self, old: str, new: str) -> Iterator[None]:
        """Change the job file, and revert the change at the end."""
        before = self.file.read_text()
        self.rewrite(old, new)
        try:
            yield
        finally:
            self.file.write_text(before)

    def delete_before(self, partition: int, offset: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for done in admin.delete_records([Place(self.topic, partition, offset)]).values():
            done.result()

    def context(self) -> Context:
        clock = SystemClock()
        return Context(self.job, self.host, ProgressReporter(clock, quiet=True), clock)

    def run(self, *names: str) -> Round:
        """Those stages, or all that the job has."""
        job = self.job
        stages = [stage for stage in STAGES if stage.name in names] if names else stages_of(job)
        return run_round(self.context(), {stage.name: stage for stage in stages})

    def audit(self) -> dict[str, Any]:
        found: dict[str, Any] = self.run("audit").results["audit"].data[0]
        return found

    def rows(self, table: str, what: str, rest: str = "") -> list[tuple[Any, ...]]:
        """By DuckDB from the files alone."""
        paths = self.job.lake.table(table).paths()
        return duckdb.execute(
            f"select {what} from read_parquet($1, hive_partitioning = true) {rest}", [paths]
        ).fetchall()

    def windows(self) -> list[tuple[Any, ...]]:
        """The results, as the table has them."""
        return sorted(self.rows("per_kind", "epoch_ms(window_start), kind, events, total"))

    def batch(self) -> list[tuple[Any, ...]]:
        """The same by DuckDB from the loaded rows."""
        window = "epoch_ms(time_bucket(interval 10 minutes, event_time))"
        return sorted(self.rows("events", f"{window}, kind, count(*), sum(n)::bigint", "group by all"))

    def published(self) -> list[tuple[Any, ...]]:
        """The same from the compacted topic: the last value of each key."""
        rows = read_with_librdkafka(self.bootstrap, f"{self.topic}-per-kind", end_offset=1 << 60)
        last = {row.key: row.value for row in rows}
        values = [json.loads(value) for value in last.values() if value is not None]
        epoch = "epoch_ms(strptime($1, '%Y-%m-%dT%H:%M:%SZ'))"
        return sorted(
            (*duckdb.execute(f"select {epoch}", [v["window_start"]]).fetchone(), v["kind"], v["events"], v["total"])  # type: ignore[misc]
            for v in values
        )


def corrupt(table: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replace one file of a Delta table by a changed one in a commit written by hand, as no program of ours would."""
    delta = DeltaTable(table)
    adds = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
    path = adds[0]["path"]
    where = {name.removeprefix("partition."): value for name, value in adds[0].items() if name.startswith("partition.")}
    old = pq.ParquetFile(table / path).read()
    new = f"{path.removesuffix('.parquet')}-corrupt.parquet"
    pq.write_table(change(old), table / new)
    values = {n: str(v).lower() if isinstance(v, bool) else str(v) for n, v in where.items()}
    about = {"partitionValues": values, "dataChange": True}
    entries = [
        {"commitInfo": {"timestamp": TEN_MS, "operation": "WRITE"}},
        {"remove": {"path": path, "deletionTimestamp": TEN_MS, **about}},
        {"add": {"path": new, "size": (table / new).stat().st_size, "modificationTime": TEN_MS, **about}},
    ]
    log = table / "_delta_log" / f"{delta.version() + 1:020}.json"
    log.write_text("\n".join(json.dumps(entry) for entry in entries))


def main(file: Path, moment: str) -> None:
    commit = Results.commit

    def deadly(self: Results, step: Step) -> None:
        if moment == "after the commit":
            commit(self, step)
        os.kill(os.getpid(), signal.SIGKILL)

    Results.commit = deadly  # type: ignore[method-assign]
    from ottla.cli.main import main as ottla

    sys.argv = ["ottla", "pipeline", "stream", "--no-load", "--job", str(file), "--quiet"]
    ottla()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
