"""Landing as Spark tasks, one per share, with what is done told to the driver while it is done.

Tasks and driver share the lake's directory, so each task tells how far it is in a small file there; Spark itself tells
nothing before a task ends.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from ottla.core.clock import SystemClock
from ottla.pipeline.lake.lease import PRIVATE
from ottla.pipeline.loading.commit_protocol import TaskRunner
from ottla.pipeline.loading.write_task import StagedFiles, WriteSpec, as_json, from_json, write_ranges
from ottla.pipeline.log import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Watch = Callable[[int, int], None]
"""Told how many records, and how many bytes of them, are read by now."""
_TELL_EVERY_S = 0.5
_LOOK_EVERY_S = 0.5


def run_in_process(job: WriteSpec, shares: Sequence[Sequence[OffsetRange]]) -> list[StagedFiles]:
    """A `TaskRunner` without Spark: one share after the other, in this process."""
    return [write_ranges(job, share) for share in shares]


def run_on_spark(spark: SparkSession, watch: Watch = lambda _records, _bytes: None) -> TaskRunner:
    """A `TaskRunner` that gives each share to a task of its own."""

    def task_runner(job: WriteSpec, shares: Sequence[Sequence[OffsetRange]]) -> list[StagedFiles]:
        todo = [list(share) for share in shares]
        board = job.rows.root / PRIVATE / f"progress-{uuid.uuid4().hex[:12]}"
        board.mkdir(parents=True, exist_ok=True)

        def tasks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            pa.set_cpu_count(1)  # Spark already runs one task per core
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    done = as_json(write_ranges(job, todo[index], Teller(board / f"{index}-{uuid.uuid4().hex[:8]}")))
                    yield pa.record_batch({"share": pa.array([index]), "staged": pa.array([done], pa.string())})

        try:
            with watched(board, watch):
                found = spark.range(0, len(todo), 1, len(todo)).mapInArrow(tasks, "share long, staged string").collect()
        finally:
            shutil.rmtree(board, ignore_errors=True)
        return [from_json(row.staged) for row in sorted(found, key=lambda row: int(row.share))]

    return task_runner


@dataclass(slots=True)
class Teller:
    """Writes how far a task is, not too often."""

    path: Path
    records: int = 0
    value_bytes: int = 0
    _next_at: float = 0.0
    _clock: SystemClock = field(default_factory=SystemClock)

    def __call__(self, records: int, value_bytes: int) -> None:
        """So many more are read."""
        self.records += records
        self.value_bytes += value_bytes
        if self._clock.monotonic() >= self._next_at:
            self._next_at = self._clock.monotonic() + _TELL_EVERY_S
            with contextlib.suppress(OSError):  # the driver may have given up: no reason to fail over that
                self.path.write_text(json.dumps([self.records, self.value_bytes]))


@contextlib.contextmanager
def watched(board: Path, watch: Watch) -> Iterator[None]:
    """Look at what the tasks tell while they run."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_EVERY_S):
            watch(*_told(board))

    watcher = threading.Thread(target=look, name="ottla-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _told(board: Path) -> tuple[int, int]:
    records = value_bytes = 0
    for path in board.glob("*"):
        with contextlib.suppress(OSError, ValueError):  # being written this moment
            told = json.loads(path.read_text())
            records, value_bytes = records + told[0], value_bytes + told[1]
    return records, value_bytes
