"""Runs the demo: loads a web access log through a broker into lake tables, a topic and a report, and audits them.

    lines of a file -> `web-access` -> lake/requests (+ quarantine) -> lake/traffic, `web-traffic` -> report.html

What comes after the lines is a job like any other (`demo_job.py`), written to `job.toml` and run from there: a person
goes on with `ottla pipeline`. All is stored below one directory. Run again with the same directory, the broker keeps
its log, and the load takes only what is new. Spark starts while the lines are produced: on a small machine that is most
of the waiting.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import tempfile
import time
import webbrowser
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ottla.client.audit import AUDIT_TOPIC, ProducedCounter
from ottla.client.errors import CannotConnect
from ottla.core.clock import SystemClock
from ottla.core.errors import KafkaError
from ottla.core.runtime import new_uuid
from ottla.pipeline.audit.format import partition_rows, shown_columns, verdict
from ottla.pipeline.audit.model import TopicAudit
from ottla.pipeline.demo_broker import BrokerNotStarted, start_demo_broker
from ottla.pipeline.demo_job import TABLE, TRAFFIC, DemoJob
from ottla.pipeline.errors import is_expected
from ottla.pipeline.job_file.job import PipelineJob, read_job
from ottla.pipeline.loading.spark_host import SparkHost
from ottla.pipeline.produce import Produced, ensure_topic, keyed, lines_of, produce, report_counts
from ottla.pipeline.progress import ProgressReporter, Stages
from ottla.pipeline.session import SparkOptions, start_session
from ottla.pipeline.stages.runner import Context, Round, run_round, stages_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "web-access"
TRAFFIC_TOPIC = "web-traffic"
PARTITIONS = 4
_SHORT_REPEATS = 10
_EXAMPLE = "access.log.gz"
_INTERRUPT_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class DemoPaths:
    """The paths of all files of a run."""

    output: Path

    @property
    def lake(self) -> Path:
        """Return the directory of the tables."""
        return self.output / "lake"

    @property
    def job(self) -> Path:
        """Return the path of the job file."""
        return self.output / "job.toml"

    @property
    def report(self) -> Path:
        """Return the path of the report."""
        return self.output / "report.html"

    @property
    def broker_data(self) -> Path:
        """Return the broker's log directory."""
        return self.output / "broker"

    @property
    def broker_log(self) -> Path:
        """Return the path of the broker's log output."""
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
    stay: bool = False,
    open_report: bool = False,
) -> int:
    """Run the demo; returns the exit code: 0 if the audit balances, 1 if it does not or a stage failed.

    `output` is kept and used again by the next run (default: a fresh temporary directory, kept too). `bootstrap` names
    brokers to use instead of one of its own. With `output_format` "json" the result is printed as one JSON object.
    With `stay` the demo's own broker runs until Ctrl-C; `open_report` opens the report in a browser.
    """
    console = Console(stderr=True)
    paths = DemoPaths(output.resolve() if output else Path(tempfile.mkdtemp(prefix="ottla-demo-")))
    if output is None:
        text = f"all files are in {paths.output}, a temporary directory; --output DIR keeps them for the next run"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    try:
        paths.output.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            demo = _Demo(paths, input_file or example_log(), repeat, master, Stages(console, SystemClock()))
            spark = stack.enter_context(contextlib.ExitStack())
            starting = spark.enter_context(_spark_in_background(demo.spark_options, console))
            if bootstrap is None:
                bootstrap = stack.enter_context(demo.broker())
            result = demo.run(bootstrap, starting)
            spark.close()
            print(json.dumps(result.as_json(), indent=2) if output_format == "json" else result.as_text(), flush=True)
            if open_report and not webbrowser.open(paths.report.as_uri()):
                demo.warn(f"no browser was found; open {paths.report} yourself")
            if stay:
                _wait_for_ctrl_c(console, bootstrap)
    except Exception as failure:
        if not (is_expected(failure) or isinstance(failure, BrokerNotStarted)):
            raise
        console.print(f"ottla demo: {failure}", style="red", markup=False, highlight=False, soft_wrap=True)
        console.print(f"what there is: {paths.output}", markup=False, highlight=False, soft_wrap=True)
        return 1
    return 0 if result.balanced else 1


def _wait_for_ctrl_c(console: Console, bootstrap: str) -> None:
    """Announce the broker's address and return at the first SIGINT from then on."""
    interrupted = False

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal interrupted
        interrupted = True

    before = signal.signal(signal.SIGINT, interrupt)  # before the line, for Ctrl-C may come right after it
    try:
        text = f"the broker stays at {bootstrap}, for the commands above; Ctrl-C stops it"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
        while not interrupted:  # signal.pause() would miss a signal that comes just before it
            time.sleep(_INTERRUPT_POLL_S)
    finally:
        signal.signal(signal.SIGINT, before)


def example_log() -> Path:
    """Return the access log that comes with Ottla: inside an installed package, or in the checkout's examples."""
    packaged = Path(str(files("ottla.pipeline"))) / "data" / _EXAMPLE
    if packaged.exists():
        return packaged
    return Path(__file__).resolve().parents[3] / "examples" / _EXAMPLE


@contextlib.contextmanager
def _spark_in_background(options: SparkOptions, console: Console) -> Iterator[Future[SparkSession]]:
    """Start a session in another thread; stop it at the end, however that comes."""

    def notify(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    with ThreadPoolExecutor(1, thread_name_prefix="spark") as pool:
        starting = pool.submit(start_session, options, notify)
        try:
            yield starting
        finally:
            if starting.exception() is None:  # waits: half a session cannot be stopped
                starting.result().stop()


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The result of a run: counts, the audit, and the paths of its files."""

    paths: DemoPaths
    bootstrap: str
    lines: int
    """Read from the input; each must have been acknowledged."""
    unacknowledged: int
    topic_audit: TopicAudit
    round: Round
    seconds: dict[str, float]

    @property
    def balanced(self) -> bool:
        """Nothing lost and nothing twice, from the input's lines to the tables' rows."""
        return self.topic_audit.balanced and not self.unacknowledged

    @property
    def faults(self) -> list[str]:
        """Describe what is wrong."""
        found = [fault.text for fault in self.topic_audit.faults]
        if self.unacknowledged:
            found.append(f"{self.unacknowledged:,} of {self.lines:,} lines read were not acknowledged as records")
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        results = {name: result.data for name, result in self.round.results.items()}
        return {
            "balanced": self.balanced,
            "faults": self.faults,
            "lines": self.lines,
            "unacknowledged": self.unacknowledged,
            "load": results["load"][0],
            "traffic": results["stream"][TRAFFIC],
            "books": results["audit"][0],
            "report": str(self.paths.report),
            "lake": str(self.paths.lake),
            "job": str(self.paths.job),
            "seconds": {name: round(value, 2) for name, value in self.seconds.items()},
        }

    def as_text(self) -> str:
        """Return the result as text."""
        paths = self.paths
        lines = [
            f"report       {paths.report}",
            f"lake         {paths.lake}  (Delta tables: {TABLE}, {TABLE}_quarantine, {TRAFFIC})",
            f"job          {paths.job}",
            f"spark's log  {SparkOptions(paths.spark).log}",
        ]
        if paths.broker_data.exists():
            lines.append(f"broker       {paths.broker_data}  (its log: {paths.broker_log})")
        return "\n".join(["", audit_text(self.topic_audit, self.faults), "", *lines, "", *self._going_on()])

    def _going_on(self) -> list[str]:
        """Return the lines that suggest commands for after the demo."""
        job = shlex.quote(str(self.paths.job))
        commands = [
            (f"ottla pipeline run --job {job}", "load what is new, and all that follows from it"),
            (f"ottla pipeline status --job {job}", "how far each partition is loaded"),
            (f"ottla pipeline audit --by bucket --job {job}", "the audit by time"),
        ]
        if self.paths.broker_data.exists():
            port = self.bootstrap.rpartition(":")[2]
            start = f"ottla server --port {port} --data {shlex.quote(str(self.paths.broker_data))}"
            commands.insert(0, (start, "the broker again, where the job looks for it"))
        return ["to go on:", *(f"  {command}  # {meaning}" for command, meaning in commands)]


def audit_text(topic_audit: TopicAudit, faults: list[str]) -> str:
    """Format the audit as a table of text with its faults."""
    head = ("partition", *(name.replace("_", " ") for name in shown_columns(topic_audit)))
    rows = [[_cell(value) for value in row.values()] for row in partition_rows(topic_audit)]
    lines = ["  ".join(cell.rjust(11) for cell in row) for row in (head, *rows)]
    return "\n".join([*lines, *(["THE BOOKS DO NOT BALANCE:", *faults] if faults else verdict(topic_audit))])


def _cell(value: str | int | None) -> str:
    return value if isinstance(value, str) else "-" if value is None else f"{value:,}"


class _Demo:
    """Runs the demo, stage by stage."""

    def __init__(self, paths: DemoPaths, input_file: Path, repeat: int, master: str | None, stages: Stages) -> None:
        self.paths, self.input_file, self.repeat, self.stages = paths, input_file, repeat, stages
        self.spark_options = SparkOptions(paths.spark, master, short_run=repeat <= _SHORT_REPEATS)
        self.read: Counter[int] = Counter()

    @contextlib.contextmanager
    def broker(self) -> Iterator[str]:
        """Run a broker of our own until the run ends."""
        with contextlib.ExitStack() as stack:
            with self.stages.stage("broker") as stage:
                broker = stack.enter_context(start_demo_broker(self.paths.broker_data, self.paths.broker_log))
                stage.done(broker.ready_line)
            yield broker.bootstrap

    def run(self, bootstrap: str, starting: Future[SparkSession]) -> DemoResult:
        """Run all stages after the broker's start."""
        partitions = ensure_topic(bootstrap, TOPIC, partitions=PARTITIONS, config={})
        produced = self._produce(bootstrap, partitions)
        job = self._job(bootstrap)
        with self.stages.stage("spark") as stage:
            spark = starting.result()
            stage.done(f"Spark {spark.version} on {spark.sparkContext.master} (started while producing)")
        clock = SystemClock()
        reporter = ProgressReporter(clock, console=self.stages.console, stages=self.stages)
        context = Context(job, SparkHost.of(spark, self.spark_options), reporter, clock)
        done = run_round(context, {stage.name: stage for stage in stages_of(job)})
        (topic_audit,) = context.topic_audits
        lines = self.read.total()
        lost = lines - sum(produced.acknowledged.values())
        return DemoResult(self.paths, bootstrap, lines, lost, topic_audit, done, self.stages.seconds)

    def _job(self, bootstrap: str) -> PipelineJob:
        """Write the job file, and read it as `ottla pipeline` would."""
        source = f"{self.input_file.name}, topic {TOPIC}"
        text = DemoJob(bootstrap, TOPIC, TRAFFIC_TOPIC, source, self.spark_options.master).text()
        self.paths.job.write_text(text, encoding="utf-8")
        job, result = read_job(text, directory=self.paths.output, now_ms=SystemClock().wall_ms())
        assert job is not None, result.faults
        return job

    def _produce(self, bootstrap: str, partitions: int) -> Produced:
        counter = ProducedCounter(new_uuid().hex)
        with self.stages.stage("produce") as stage:
            lines = (line for _ in range(self.repeat) for line in lines_of(self.input_file))
            produced = produce(bootstrap, TOPIC, keyed(lines, partitions, self.read), stage.advance, counter)
            stage.done(
                f"{self.read.total():,} lines of {self.input_file.name}, "
                f"{sum(produced.acknowledged.values()):,} records acknowledged by topic {TOPIC}"
            )
        if produced.first_failure:
            self.warn(f"not every record was acknowledged: {produced.first_failure}")
        try:
            report_counts(bootstrap, counter)
        except (KafkaError, CannotConnect) as error:  # the records are written; the audit lacks these counts
            self.warn(f"the counts were not reported to {AUDIT_TOPIC}: {error}")
        return produced

    def warn(self, text: str) -> None:
        """Print a warning."""
        self.stages.console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)
