"""Runs write tasks on Spark, one per part of the offsets, and reports their progress to the driver.

Spark reports nothing before a task ends. Tasks and driver share the lake's directory, so each task writes the number of
records that it has read to a small file there.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ottla.core.clock import SystemClock
from ottla.core.runtime import new_uuid
from ottla.pipeline.lake.lease import PRIVATE
from ottla.pipeline.loading.commit_protocol import TaskRunner
from ottla.pipeline.loading.write_task import StagedFiles, WriteSpec, as_json, from_json, write_ranges
from ottla.pipeline.offset_range import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_INTERVAL_S = 0.5


def run_on_spark(spark: SparkSession, progress: Callable[[int], None] = lambda _: None) -> TaskRunner:
    """Return a `TaskRunner` that gives each part to a task of its own."""

    def task_runner(job: WriteSpec, parts: Sequence[Sequence[OffsetRange]]) -> list[StagedFiles]:
        todo = [list(part) for part in parts]
        board = job.rows.root / PRIVATE / f"progress-{new_uuid().hex[:12]}"
        board.mkdir(parents=True, exist_ok=True)

        def tasks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            pa.set_cpu_count(1)  # Spark already runs one task per core
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    done = as_json(
                        write_ranges(job, todo[index], ProgressFile(board / f"{index}-{new_uuid().hex[:8]}"))
                    )
                    yield pa.record_batch({"part": pa.array([index]), "staged": pa.array([done], pa.string())})

        try:
            with report_progress(board, progress):
                rows = spark.range(0, len(todo), 1, len(todo)).mapInArrow(tasks, "part long, staged string").collect()
        finally:
            shutil.rmtree(board, ignore_errors=True)
        return [from_json(row.staged) for row in sorted(rows, key=lambda row: int(row.part))]

    return task_runner


@dataclass(slots=True)
class ProgressFile:
    """Writes how many records a task has read to a file, at most once per interval."""

    path: Path
    records: int = 0
    _next_at: float = 0.0
    _clock: SystemClock = field(default_factory=SystemClock)

    def __call__(self, records: int) -> None:
        """Add to the records that were read."""
        self.records += records
        if self._clock.monotonic() >= self._next_at:
            self._next_at = self._clock.monotonic() + _INTERVAL_S
            with contextlib.suppress(OSError):  # the driver may have removed the directory: progress is not essential
                self.path.write_text(str(self.records))


@contextlib.contextmanager
def report_progress(board: Path, progress: Callable[[int], None]) -> Iterator[None]:
    """Report the records that the tasks have read while they run, from their progress files."""
    over = threading.Event()

    def poll() -> None:
        reported_so_far = 0
        while not over.wait(_INTERVAL_S):
            records = _records_read(board)
            if records > reported_so_far:  # a retried task begins at 0 in a file of its own
                progress(records - reported_so_far)
                reported_so_far = records

    thread = threading.Thread(target=poll, name="ottla-progress", daemon=True)  # noqa: TID251  # of a command, never simulated
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _records_read(board: Path) -> int:
    records = 0
    for path in board.glob("*"):
        with contextlib.suppress(OSError, ValueError):  # the task may be writing it now
            records += int(path.read_text())
    return records
