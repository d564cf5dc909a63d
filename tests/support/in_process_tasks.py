"""Runs the write tasks of a load without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ottla.pipeline.changes.apply import merge_in_turn
from ottla.pipeline.changes.merge import MergeRunner
from ottla.pipeline.loading.commit_protocol import TaskRunner
from ottla.pipeline.loading.write_task import StagedFiles, WriteSpec, write_ranges
from ottla.pipeline.offset_range import OffsetRange


def run_in_process(job: WriteSpec, parts: Sequence[Sequence[OffsetRange]]) -> list[StagedFiles]:
    """Run the parts as a `TaskRunner`: one after the other, in this process."""
    return [write_ranges(job, part) for part in parts]


class InThisProcess:
    """A load's Spark that runs its tasks in this process."""

    def task_runner(self, progress: Callable[[int], None]) -> TaskRunner:
        return run_in_process

    def merge_runner(self) -> MergeRunner:
        return merge_in_turn

    def cores(self) -> int:
        return 1
