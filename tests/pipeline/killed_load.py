"""A load in a process of its own that kills itself with -9 at a given step: the other half of test_killed_load.py.

Arguments: the lake's directory, the table's format, the number of records per partition, and the step.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from ottla.pipeline.event_time import TimeFrom, TimeRule
from ottla.pipeline.formats.access_log import AccessLog
from ottla.pipeline.lake.intent import complete_intent
from ottla.pipeline.lake.lake_table import Change, LakeTable
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.loading.commit_protocol import Tables
from ottla.pipeline.loading.row_mapping import RowMapping
from tests.pipeline.memory_log import Bench, MemoryTopic, Values

LINE = b'203.0.113.9 - - [17/May/2015:%02d:05:03 +0000] "GET /%d HTTP/1.1" 200 5'
PARTITIONS = 3


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Deadly:
    """A table whose commit may be the last thing the process does."""

    def __init__(self, table: LakeTable, *, before: bool, after: bool) -> None:
        self._table, self._before, self._after = table, before, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def commit(self, change: Change) -> None:
        if self._before:
            die()
        self._table.commit(change)
        if self._after:
            die()


def load(root: Path, table_format: TableFormat, records: int, step: str, *, stem: str) -> None:
    """Load the first records of each partition, up to a step ("none": all of it); `stem` begins the names of files."""
    values: Values = [b"bad" if n % 5 == 0 else LINE % (n % 24, n) for n in range(records)]
    topic = MemoryTopic({partition: list(values) for partition in range(PARTITIONS)})
    mapping = RowMapping(AccessLog(), TimeRule(TimeFrom.FORMAT))
    bench = Bench(root, topic, mapping, table_format=table_format, stem=stem)
    quarantine: Any = Deadly(bench.quarantine, before=step == "files written", after=step == "quarantine committed")
    table: Any = Deadly(bench.table, before=step == "before the table's commit", after=step == "table committed")
    complete_intent(bench.table, bench.quarantine)
    bench.loading(Tables(table, quarantine)).run(topic.bounds())


if __name__ == "__main__":
    load(Path(sys.argv[1]), TableFormat(sys.argv[2]), int(sys.argv[3]), sys.argv[4], stem=str(os.getpid()))
