"""Runs the write tasks of a load without Spark."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.pipeline.loading.write_task import StagedFiles, WriteSpec, write_ranges
from ottla.pipeline.offset_range import OffsetRange


def run_in_process(job: WriteSpec, parts: Sequence[Sequence[OffsetRange]]) -> list[StagedFiles]:
    """Run the parts as a `TaskRunner`: one after the other, in this process."""
    return [write_ranges(job, part) for part in parts]
