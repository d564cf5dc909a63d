"""Runs write tasks on Spark, one per part of the offsets, and reports their progress to the driver.

Spark reports nothing before a task ends. Tasks and driver share the lake, so each task writes the number of
records that it has read to a small object there.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from ottla.core.clock import SystemClock
from ottla.core.runtime import new_uuid
from ottla.pipeline.changes.bucket_files import BucketWork, MergeSpec
from ottla.pipeline.changes.merge import MergeRunner, merge_bucket
from ottla.pipeline.changes.merge import as_json as merged_as_json
from ottla.pipeline.changes.merge import from_json as merged_from_json
from ottla.pipeline.lake.lake_store import PRIVATE, LakeStore
from ottla.pipeline.lake.rewrite import FileSwap
from ottla.pipeline.loading.commit_protocol import TaskRunner
from ottla.pipeline.loading.write_task import StagedFiles, WriteSpec, as_json, from_json, write_ranges
from ottla.pipeline.offset_range import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_on_spark(spark: SparkSession, progress: Callable[[int], None] = lambda _: None) -> TaskRunner:
    """Return a `TaskRunner` that gives each part to a task of its own."""

    def task_runner(job: WriteSpec, parts: Sequence[Sequence[OffsetRange]]) -> list[StagedFiles]:
        todo = [list(part) for part in parts]
        board = ProgressBoard(job.rows.store, f"{PRIVATE}progress-{new_uuid().hex[:12]}/")

        def tasks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            pa.set_cpu_count(1)  # Spark already runs one task per core
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    done = as_json(write_ranges(job, todo[index], TaskProgress(board, f"{index}-{new_uuid().hex[:8]}")))
                    yield pa.record_batch({"part": pa.array([index]), "staged": pa.array([done], pa.string())})

        try:
            with report_progress(board, progress):
                rows = spark.range(0, len(todo), 1, len(todo)).mapInArrow(tasks, "part long, staged string").collect()
        finally:
            board.clear()
        return [from_json(row.staged) for row in sorted(rows, key=lambda row: int(row.part))]

    return task_runner


def merge_on_spark(spark: SparkSession) -> MergeRunner:
    """Return a `MergeRunner` that gives each bucket to a task of its own."""

    def merge_runner(job: MergeSpec, works: Sequence[BucketWork]) -> list[FileSwap]:
        def tasks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            pa.set_cpu_count(1)  # Spark already runs one task per core
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    done = merged_as_json(merge_bucket(job, works[index]))
                    yield pa.record_batch({"work": pa.array([index]), "merged": pa.array([done], pa.string())})

        count = len(works)
        rows = spark.range(0, count, 1, count).mapInArrow(tasks, "work long, merged string").collect()
        return [merged_from_json(row.merged, works[int(row.work)]) for row in rows]

    return merge_runner


@dataclass(frozen=True, slots=True)
class ProgressBoard:
    """A place in a store where the tasks of one run write how many records they have read."""

    store: LakeStore
    prefix: str

    @property
    def interval_s(self) -> float:
        """Return the interval between notes: an object store charges for each."""
        return 5.0 if self.store.is_remote else 0.5

    def records(self) -> int:
        """Return the records that all tasks have read."""
        records = 0
        with contextlib.suppress(OSError):
            for note in self.store.objects(self.prefix):
                with contextlib.suppress(OSError, ValueError):  # the task may be writing it now
                    records += int(self.store.get(note.key))
        return records

    def clear(self) -> None:
        """Delete the notes, as far as that is possible."""
        with contextlib.suppress(OSError):
            self.store.delete_below(self.prefix)


@dataclass(slots=True)
class TaskProgress:
    """Writes how many records a task has read, at most once per interval."""

    board: ProgressBoard
    name: str
    records: int = 0
    _next_at: float = 0.0
    _clock: SystemClock = field(default_factory=SystemClock)

    def __call__(self, records: int) -> None:
        """Add to the records that were read."""
        self.records += records
        if self._clock.monotonic() >= self._next_at:
            self._next_at = self._clock.monotonic() + self.board.interval_s
            with contextlib.suppress(OSError):  # progress is not essential
                self.board.store.note(self.board.prefix + self.name, str(self.records))


@contextlib.contextmanager
def report_progress(board: ProgressBoard, progress: Callable[[int], None]) -> Iterator[None]:
    """Report the records that the tasks have read while they run, from their notes."""
    over = threading.Event()

    def poll() -> None:
        reported_so_far = 0
        while not over.wait(board.interval_s):
            records = board.records()
            if records > reported_so_far:  # a retried task begins at 0 in a note of its own
                progress(records - reported_so_far)
                reported_so_far = records

    thread = threading.Thread(target=poll, name="ottla-progress", daemon=True)  # noqa: TID251  # of a command, never simulated
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
