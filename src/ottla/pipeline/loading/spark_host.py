"""Provides Spark for loads: a running session, or one that is started when the first task needs it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ottla.pipeline.changes.bucket_files import BucketWork, MergeSpec
from ottla.pipeline.changes.merge import MergeRunner
from ottla.pipeline.lake.rewrite import FileSwap
from ottla.pipeline.loading.commit_protocol import TaskRunner
from ottla.pipeline.loading.spark_tasks import merge_on_spark, run_on_spark
from ottla.pipeline.loading.write_task import StagedFiles, WriteSpec
from ottla.pipeline.offset_range import OffsetRange
from ottla.pipeline.session import SparkOptions, spark_step, start_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession


@dataclass(slots=True)
class SparkHost:
    """Starts a Spark session on first use. Call `stop` whether it was started or not."""

    options: SparkOptions
    notify: Callable[[str], None]
    """Called with a line before long operations."""
    _session: SparkSession | None = field(default=None, repr=False)

    @staticmethod
    def of(session: SparkSession, options: SparkOptions) -> SparkHost:
        """Wrap a running session, which the caller stops."""
        host = SparkHost(options, lambda _: None)
        host._session = session
        return host

    def session(self) -> SparkSession:
        """Return the session, started now if it was not."""
        if self._session is None:
            self._session = start_session(self.options, self.notify)
        return self._session

    @property
    def started(self) -> bool:
        """Return whether there is a session."""
        return self._session is not None

    def task_runner(self, progress: Callable[[int], None]) -> TaskRunner:
        """Return a function that runs each part as a task. It raises SparkFailed, with the log's path."""

        def write_ranges(job: WriteSpec, parts: Sequence[Sequence[OffsetRange]]) -> list[StagedFiles]:
            with spark_step("loading", self.options.log):
                return run_on_spark(self.session(), progress)(job, parts)

        return write_ranges

    def merge_runner(self) -> MergeRunner:
        """Return a function that merges each bucket as a task. It raises SparkFailed, with the log's path."""

        def merge(job: MergeSpec, works: Sequence[BucketWork]) -> list[FileSwap]:
            with spark_step("merging", self.options.log):
                return merge_on_spark(self.session())(job, works)

        return merge

    def cores(self) -> int:
        """Return the number of tasks that run at once."""
        return int(self.session().sparkContext.defaultParallelism)

    def stop(self) -> None:
        """End the session, if one was started."""
        if self._session is not None:
            with contextlib.suppress(Exception):  # a session that broke cannot be stopped, and need not be
                self._session.stop()
            self._session = None
