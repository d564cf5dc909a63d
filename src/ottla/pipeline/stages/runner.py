"""Runs a job: its stages in their order, once or on its schedule, until it is stopped.

Stages do not know each other; they share the tables. A new stage adds a line to `STAGES`, with the section of the job
file that enables it.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ottla.core.clock import Clock
from ottla.pipeline.audit.model import TopicAudit
from ottla.pipeline.errors import FailureKind, failure_kind_of, is_expected, is_retriable
from ottla.pipeline.job_file.job import PipelineJob
from ottla.pipeline.loading.spark_host import SparkHost
from ottla.pipeline.progress import ProgressReporter


@dataclass(frozen=True, slots=True)
class StageResult:
    """The result of a stage."""

    text: str
    """For people, a line or several."""
    data: Any = None
    """The same for programs, as JSON has it."""
    ok: bool = True
    """False if the stage succeeded and found a fault, such as an unbalanced audit."""
    failure: FailureKind = FailureKind.FAILED
    """The end of the command if the stage is not `ok`."""


@dataclass(frozen=True, slots=True)
class Context:
    """The objects that stages share in a round."""

    job: PipelineJob
    spark: SparkHost
    reporter: ProgressReporter
    clock: Clock
    topic_audits: list[TopicAudit] = field(default_factory=list)
    """The audits of this round, for its report."""


class Run(Protocol):
    """A stage's function."""

    def __call__(self, context: Context) -> StageResult:
        """Run the stage once."""


@dataclass(frozen=True, slots=True)
class StageEntry:
    """A stage by its section and function; imported when it runs."""

    name: str
    section: str
    """The section that enables it."""
    function: str
    """`module:name` below `ottla.pipeline`."""
    seldom: bool = False
    """Whether it runs on the slower of the job's two schedules."""

    def load(self) -> Run:
        """Import and return the function."""
        module, _, name = self.function.partition(":")
        run: Run = getattr(importlib.import_module(f"ottla.pipeline.{module}"), name)
        return run


STAGES: tuple[StageEntry, ...] = (
    StageEntry("load", "load", "stages.load:run"),
    StageEntry("stream", "stream", "stages.stream:run"),
    StageEntry("compact", "compact", "stages.compact:run", seldom=True),
    StageEntry("audit", "audit", "stages.audit:run"),
    StageEntry("report", "report", "stages.report:run"),
)


@dataclass(slots=True)
class Round:
    """The results of one run of the stages."""

    results: dict[str, StageResult] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Return whether every stage succeeded without a fault."""
        return self.failure is None

    @property
    def failure(self) -> FailureKind | None:
        """Return how the command ends: FAILED before any other fault; None without a fault."""
        failure_kinds = {result.failure for result in self.results.values() if not result.ok}
        return FailureKind.FAILED if FailureKind.FAILED in failure_kinds else next(iter(failure_kinds), None)


def stages_of(job: PipelineJob) -> list[StageEntry]:
    """Return the stages whose section the job has."""
    return [entry for entry in STAGES if job.sections.get(entry.section)]


def run_round(context: Context, stages: Mapping[str, StageEntry]) -> Round:
    """Run some stages, one after the other. Raises what a stage raises."""
    done = Round()
    for name, entry in stages.items():
        began = context.clock.monotonic()
        done.results[name] = entry.load()(context)
        done.seconds[name] = context.clock.monotonic() - began
    return done


def run_rounds(
    context: Context, *, stop: threading.Event, notify: Callable[[Round], None], stages: list[StageEntry] | None = None
) -> FailureKind | None:
    """Run rounds on the job's schedule until `stop` is set, or a single one. Returns the failure of the last one.

    On a schedule, a retriable error (an unavailable broker, a concurrent load) is logged, and the next round retries.
    Any other error is raised.
    """
    selected = stages_of(context.job) if stages is None else stages
    every_ms, seldom_at = context.job.every_ms, 0.0
    while True:
        began = context.clock.monotonic()
        due = {p.name: p for p in selected if not p.seldom or began >= seldom_at}
        failure = None
        try:
            done = run_round(context, due)
            failure = done.failure
            notify(done)
            if any(p.seldom for p in due.values()):
                seldom_at = began + context.job.compact_every_ms / 1000
        except Exception as error:
            if every_ms is None or not is_expected(error) or not is_retriable(error):
                raise
            context.reporter.warn(
                f"{error}; trying again in the next round ({failure_kind_of(error)[1] or 'it may pass'})"
            )
        if every_ms is None or stop.wait(max(0.0, began + every_ms / 1000 - context.clock.monotonic())):
            return failure


@contextlib.contextmanager
def stopping_on_signals(stop: threading.Event) -> Iterator[None]:
    """End a job that runs all day between two rounds at SIGTERM or Ctrl-C; a second one ends it at once."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def note(number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        if number == signal.SIGTERM:
            return

    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
