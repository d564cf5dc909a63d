"""Loads into Iceberg tables on a simulated object store: a stop at every write, every lost answer, errors, stale lists.

The tables, the manifests and the commits are the real ones; the store is in memory, and its faults are exact. After any
of them the next load leaves each offset in the table or in its quarantine, once.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ottla.pipeline.event_time import TimeFrom, TimeRule
from ottla.pipeline.formats.access_log import AccessLog
from ottla.pipeline.lake.catalog import catalog_of
from ottla.pipeline.lake.intent import complete_intent
from ottla.pipeline.lake.lake import Lake
from ottla.pipeline.lake.lake_store import StoreError
from ottla.pipeline.lake.lake_table import CommitConflict, LakeTable, NotContiguous
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.loading.row_mapping import RowMapping
from tests.pipeline.killed_load import LINE
from tests.pipeline.memory_log import Bench, MemoryTopic, Values
from tests.support.sim_lake_store import Bucket, Crashed, Fault, SimStore

SCHEDULES = int(os.environ.get("OTTLA_STORE_SCHEDULES", "2"))
"""Of each kind of fault; 0: every one."""
FAULTS = (Fault.CRASH, Fault.CRASH_AFTER, Fault.LOST_ANSWER, Fault.ERROR)
MAPPING = RowMapping(AccessLog(), TimeRule(TimeFrom.FORMAT))


class SimulatedLoads:
    """A bucket and a catalog, with loads that each see them as a new process."""

    def __init__(self, root: Path) -> None:
        self.root, self.bucket, self.loads = root, Bucket(), 0

    def bench(self, records: int) -> Bench:
        """Return tables and a log of so many records in each partition."""
        values: Values = [b"bad" if n % 5 == 0 else LINE % (n % 24, n) for n in range(records)]
        store = SimStore(self.bucket)
        lake = Lake(store, TableFormat.ICEBERG, catalog_of(f"sqlite:///{self.root / 'catalog.db'}", store))
        self.loads += 1
        topic = MemoryTopic({partition: list(values) for partition in range(2)})
        return Bench(self.root, topic, MAPPING, stem=f"s{self.loads}", lake=lake)

    def load(self, records: int) -> None:
        bench = self.bench(records)
        complete_intent(bench.table, bench.quarantine)
        bench.load()

    def backfill(self, records: int) -> None:
        bench = self.bench(records)
        complete_intent(bench.table, bench.quarantine)
        bench.backfill({0: 1}, {0: 3})

    def check(self, records: int) -> None:
        """Each offset once, by the files that the tables name."""
        self.bucket.faults.clear()
        bench = self.bench(records)
        both = Counter([*self.rows_of(bench.table), *self.rows_of(bench.quarantine)])
        assert both == {(partition, offset): 1 for partition in range(2) for offset in range(records)}

    def rows_of(self, table: LakeTable) -> list[tuple[int, int]]:
        rows: list[tuple[int, int]] = []
        for file in table.files():
            with table.store.input(file.path) as source:
                columns = pq.ParquetFile(source).read(columns=["partition", "offset"])
            rows += zip(columns["partition"].to_pylist(), columns["offset"].to_pylist(), strict=True)
        return rows


def writes_of(loads: SimulatedLoads, work: Callable[[int], None], records: int) -> range:
    """Run some work without faults; returns how many writes it takes, as numbers."""
    first = len(loads.bucket.requests)
    work(records)
    return range(sum(what.startswith(("put", "delete")) for what in loads.bucket.requests[first:]))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["load", "backfill"])
def test_after_a_fault_at_any_write_the_next_load_has_each_offset_once(fault: Fault, kind: str, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = SimulatedLoads(tmp_path / "whole")
    whole.load(4)
    numbers = list(writes_of(whole, getattr(whole, kind), 8 if kind == "load" else 4))
    whole.check(8 if kind == "load" else 4)
    assert len(numbers) > 5
    chosen = random.Random(28).sample(numbers, SCHEDULES) if SCHEDULES else numbers
    for number in chosen:
        root = tmp_path / f"at {number}"
        root.mkdir()
        loads = SimulatedLoads(root)
        loads.load(4)
        loads.bucket.fault_at_write = (loads.bucket.writes + number, fault)
        try:
            getattr(loads, kind)(8 if kind == "load" else 4)
        except (Crashed, StoreError, CommitConflict, NotContiguous):
            pass
        pending: object = loads.bucket.fault_at_write
        assert pending is None, f"write {number} was reached"
        loads.load(8)
        loads.check(8)


def test_lists_that_are_late_hide_nothing_that_is_committed(tmp_path: Path) -> None:
    """What a list leaves out is at worst an orphan that the next compaction finds."""
    loads = SimulatedLoads(tmp_path)
    loads.load(4)
    loads.bucket.faults = dict.fromkeys(range(len(loads.bucket.requests), 100_000), Fault.STALE_LIST)
    loads.load(8)
    loads.load(12)
    loads.check(12)
