"""The main job: a real web access log through a broker into a lake table and a report, and the books balanced.

    lines of a file -> `web-access` -> lake/requests (+ lake/quarantine) -> lake/traffic, `web-traffic` -> report.html

Everything lies below one directory. Run again with the same directory, the broker keeps its log, and the load takes
only what is new. Spark starts while the lines are produced: on a small machine that is most of the waiting.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake.exceptions import DeltaError
from rich.console import Console

from ottla.client.errors import CannotConnect
from ottla.core.clock import SystemClock
from ottla.core.errors import KafkaError
from ottla.pipeline.balance import BalanceSheet, balance_sheet
from ottla.pipeline.event_time import TimeFrom, TimeRule
from ottla.pipeline.formats.access_log import AccessLog
from ottla.pipeline.java import NoJavaError
from ottla.pipeline.lake.lakes import Lake
from ottla.pipeline.lake.lease import LeaseTakenError
from ottla.pipeline.lake.port import LakeError, LakeTable
from ottla.pipeline.loading.protocol import LoadResult
from ottla.pipeline.loading.rows import Shape
from ottla.pipeline.loading.run import LoadSpec, TopicLoad, load_topics
from ottla.pipeline.loading.spark_host import SparkHost
from ottla.pipeline.log import LoadError, OffsetRange
from ottla.pipeline.own_broker import BrokerFailedError, own_broker
from ottla.pipeline.produce import Produced, ensure_topic, keyed, lines_of, produce
from ottla.pipeline.publish import TOPIC as TRAFFIC_TOPIC
from ottla.pipeline.publish import publish
from ottla.pipeline.report import render, size_text
from ottla.pipeline.session import SparkFailedError, SparkOptions, spark_step, start_session
from ottla.pipeline.source import Brokers, topic_state
from ottla.pipeline.stages import Stage, Stages

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

TOPIC = "web-access"
PARTITIONS = 4
TABLE = "requests"
_SHORT_REPEATS = 10
_EXAMPLE = "access.log.gz"
_FAILURES = (
    BrokerFailedError,
    CannotConnect,
    DeltaError,
    KafkaError,
    LakeError,
    LeaseTakenError,
    LoadError,
    NoJavaError,
    SparkFailedError,
    OSError,
)
"""What can go wrong without being a bug: one line, exit code 1."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where everything of a run lies."""

    output: Path

    @property
    def lake(self) -> Path:
        """The tables."""
        return self.output / "lake"

    @property
    def report(self) -> Path:
        """The report."""
        return self.output / "report.html"

    @property
    def broker_data(self) -> Path:
        """The broker's log directory."""
        return self.output / "broker"

    @property
    def broker_log(self) -> Path:
        """What the broker had to say."""
        return self.output / "broker.log"

    @property
    def spark(self) -> Path:
        """Spark's own files and its log."""
        return self.output / "spark"


def run(
    *,
    input_file: Path | None = None,
    repeat: int = 1,
    output: Path | None = None,
    bootstrap: str | None = None,
    master: str | None = None,
    output_format: str = "text",
) -> int:
    """Run the demo; returns the exit code: 0 if the books balance, 1 if they do not or a stage failed.

    `output` is kept and used again by the next run (default: a fresh temporary directory, kept too). `bootstrap` names
    brokers to use instead of one of its own. With `output_format` "json" the result is printed as one JSON object.
    """
    console = Console(stderr=True)
    places = Places(output.resolve() if output else Path(tempfile.mkdtemp(prefix="ottla-demo-")))
    try:
        places.output.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            job = _Job(places, input_file or example_log(), repeat, Stages(console, SystemClock()))
            options = SparkOptions(places.spark, master, short_run=repeat <= _SHORT_REPEATS)
            starting = stack.enter_context(_spark_in_background(options, console))
            if bootstrap is None:
                bootstrap = stack.enter_context(job.broker())
            result = job.run(bootstrap, starting)
    except _FAILURES as failure:
        console.print(f"ottla demo: {failure}", style="red", markup=False, highlight=False, soft_wrap=True)
        console.print(f"what there is: {places.output}", markup=False, highlight=False, soft_wrap=True)
        return 1
    print(json.dumps(result.as_json(), indent=2) if output_format == "json" else result.as_text())
    return result.sheet.exit_code


def example_log() -> Path:
    """The access log that comes with Ottla: inside an installed package, or in the checkout's examples."""
    packaged = Path(str(files("ottla.pipeline"))) / "data" / _EXAMPLE
    if packaged.exists():
        return packaged
    return Path(__file__).resolve().parents[3] / "examples" / _EXAMPLE


@contextlib.contextmanager
def _spark_in_background(options: SparkOptions, console: Console) -> Iterator[Future[SparkSession]]:
    """A session that is starting; stopped at the end, however that comes."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    with ThreadPoolExecutor(1, thread_name_prefix="spark") as pool:
        starting = pool.submit(start_session, options, say)
        try:
            yield starting
        finally:
            if starting.exception() is None:  # waits: half a session cannot be stopped
                starting.result().stop()


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What a run did, and where it is."""

    places: Places
    input_file: Path
    sheet: BalanceSheet
    loaded: TopicLoad
    published: int
    publish_failure: str | None
    seconds: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "balanced": self.sheet.balanced,
            "faults": self.sheet.faults,
            "partitions": [asdict(line) for line in self.sheet.lines],
            "total": asdict(self.sheet.total()),
            "published": self.published,
            "report": str(self.places.report),
            "lake": str(self.places.lake),
            "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
        }

    def as_text(self) -> str:
        """For people."""
        places = self.places
        lines = [
            f"report       {places.report}",
            f"lake         {places.lake}  (Delta tables: requests, requests_quarantine, traffic)",
            f"spark's log  {SparkOptions(places.spark).log}",
        ]
        if places.broker_data.exists():
            lines.append(f"broker       {places.broker_data}  (its log: {places.broker_log})")
        return "\n".join(["", sheet_text(self.sheet), "", *lines])


def sheet_text(sheet: BalanceSheet) -> str:
    """The balance sheet as a table of text."""
    head = ("partition", "lines read", "acknowledged", "in the log", "in the lake", "quarantined")
    rows = [
        ("all" if b.partition < 0 else str(b.partition), b.read, b.acknowledged, b.in_log, b.in_lake, b.quarantined)
        for b in (*sheet.lines, sheet.total())
    ]
    lines = ["  ".join(name.rjust(12) for name in head)]
    lines += ["  ".join((c if isinstance(c, str) else f"{c:,}").rjust(12) for c in row) for row in rows]
    verdict = ["the books balance"] if sheet.balanced else ["THE BOOKS DO NOT BALANCE:", *sheet.faults]
    return "\n".join([*lines, *verdict])


class _Job:
    """One run of the demo, stage by stage."""

    def __init__(self, places: Places, input_file: Path, repeat: int, stages: Stages) -> None:
        self.places, self.input_file, self.repeat, self.stages = places, input_file, repeat, stages
        self.read: Counter[int] = Counter()

    @contextlib.contextmanager
    def broker(self) -> Iterator[str]:
        """A broker of our own, as long as the run."""
        with contextlib.ExitStack() as stack:
            with self.stages.stage("broker") as stage:
                broker = stack.enter_context(own_broker(self.places.broker_data, self.places.broker_log))
                stage.done(broker.ready_line)
            yield broker.bootstrap

    def run(self, bootstrap: str, starting: Future[SparkSession]) -> DemoResult:
        """All stages after the broker's start."""
        partitions = ensure_topic(bootstrap, TOPIC, partitions=PARTITIONS, config={})
        before = topic_state(bootstrap, TOPIC)
        produced = self._produce(bootstrap, partitions)
        with self.stages.stage("spark") as stage:
            spark = starting.result()
            stage.done(f"Spark {spark.version} on {spark.sparkContext.master} (started while producing)")
        after = topic_state(bootstrap, TOPIC)
        written = {p: OffsetRange(p, before.spans[p].end_offset, span.end_offset) for p, span in after.spans.items()}
        lake = Lake(self.places.lake)
        table, quarantine = lake.table(TABLE), lake.quarantine(TABLE)
        with self.stages.stage("load") as stage:
            loaded = self._load(lake, bootstrap, spark, stage)
            stage.done(
                f"{loaded.rows:,} rows and {loaded.quarantined:,} quarantined, "
                f"{loaded.files} files of {size_text(loaded.size_bytes)}"
            )
        sheet = balance_sheet(
            read=self.read,
            acknowledged=produced.acknowledged,
            in_log=written,
            lake_files=table.paths(),
            quarantine_files=quarantine.paths(),
        )
        published = self._aggregate_and_report(spark, table, bootstrap, sheet)
        return DemoResult(
            self.places,
            self.input_file,
            sheet,
            loaded,
            sum(published.acknowledged.values()),
            published.first_failure,
            self.stages.seconds,
        )

    def _load(self, lake: Lake, bootstrap: str, spark: SparkSession, stage: Stage) -> TopicLoad:
        shape = Shape(AccessLog(), TimeRule(TimeFrom.FORMAT))
        spec = LoadSpec(lake, Brokers(bootstrap), shape, topics=(TOPIC,), table=TABLE)
        host = SparkHost.of(spark, SparkOptions(self.places.spark))
        (loaded,) = load_topics(spec, host, _Watcher(self, stage))
        return loaded

    def _produce(self, bootstrap: str, partitions: int) -> Produced:
        with self.stages.stage("produce") as stage:
            lines = (line for _ in range(self.repeat) for line in lines_of(self.input_file))
            produced = produce(bootstrap, TOPIC, keyed(lines, partitions, self.read), stage.advance)
            stage.done(
                f"{self.read.total():,} lines of {self.input_file.name}, "
                f"{sum(produced.acknowledged.values()):,} records acknowledged by topic {TOPIC}"
            )
        if produced.first_failure:
            self.warn(f"not every record was acknowledged: {produced.first_failure}")
        return produced

    def _aggregate_and_report(
        self, spark: SparkSession, table: LakeTable, bootstrap: str, sheet: BalanceSheet
    ) -> Produced:
        from ottla.pipeline.summary import summarize
        from ottla.pipeline.traffic import traffic

        version, paths = table.version(), table.paths()
        with self.stages.stage("aggregate") as stage, self._on_spark("aggregating"):
            requests = table.dataframe(spark, paths).cache()
            rows: pa.Table = traffic(requests).toArrow()
            _replace_table(self.places.lake / "traffic", rows, made_from=version)
            stage.done(f"{len(rows):,} windows by status class and path prefix")
        with self.stages.stage("publish", total=len(rows)) as stage:
            published = publish(bootstrap, rows, stage.advance)
            stage.done(f"{sum(published.acknowledged.values()):,} records in compacted topic {TRAFFIC_TOPIC}")
        if published.first_failure:
            self.warn(f"not every traffic record was acknowledged: {published.first_failure}")
        with self.stages.stage("report") as stage, self._on_spark("summing up"):
            summary = summarize(requests, rows.to_pylist())
            source = f"{self.input_file.name}, topic {TOPIC}"
            self.places.report.write_text(render(summary, sheet, title="Web traffic", source=source), encoding="utf-8")
            stage.done(str(self.places.report))
        return published

    def _on_spark(self, step: str) -> contextlib.AbstractContextManager[None]:
        return spark_step(step, SparkOptions(self.places.spark).log)

    def warn(self, text: str) -> None:
        """In a line that is seen."""
        self.stages.console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class _Watcher:
    """What the load does, on the stage's bar."""

    job: _Job
    stage: Stage

    def begins(self, topic: str, offsets: int) -> None:
        self.stage.say(f"{topic}: {offsets:,} offsets")

    def reading(self, records: int, value_bytes: int) -> None:
        self.stage.say(f"{records:,} records, {size_text(value_bytes)}")

    def committed(self, topic: str, result: LoadResult, lag: int) -> None:
        self.stage.say(f"{topic}: {result.rows:,} rows, {lag:,} offsets to go")

    def warns(self, text: str) -> None:
        self.job.warn(text)


def _replace_table(path: Path, rows: pa.Table, *, made_from: str) -> None:
    """Write a table made from another one's version `made_from`; readers see the old rows or the new, never both."""
    from deltalake import CommitProperties, write_deltalake

    properties = CommitProperties(custom_metadata={"ottla.made.from.version": made_from})
    write_deltalake(str(path), rows, mode="overwrite", commit_properties=properties)
