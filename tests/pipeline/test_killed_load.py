"""Loads killed with -9 and repeated: DuckDB, reading the files of the tables, finds every offset exactly once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ottla.pipeline.lake.lake import Lake
from ottla.pipeline.lake.table_format import TableFormat
from tests.pipeline.killed_load import PARTITIONS, load
from tests.pipeline.memory_log import by_duckdb
from tests.support.lakes import directory_of, lake_in

STEPS = ["files written", "quarantine committed", "before the table's commit", "table committed"]


def killed_load(lake: Lake, records: int, step: str) -> None:
    """A load in a process of its own, which kills itself with -9 at a step."""
    arguments = [str(directory_of(lake)), str(lake.table_format), str(records), step]
    command = [sys.executable, "-m", "tests.pipeline.killed_load", *arguments]
    assert subprocess.run(command, check=False, cwd=Path(__file__).parents[2]).returncode == -signal.SIGKILL


def whole_load(lake: Lake, records: int) -> None:
    """A load in this process, which has nothing of others but the files."""
    load(directory_of(lake), lake.table_format, records, "none", stem=f"whole-{records}")


def offsets_in(lake: Lake) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]]:
    tables = (lake.table("requests"), lake.quarantine("requests"))
    good, bad = (Counter(by_duckdb(table, 'partition, "offset"')) for table in tables)
    return good, bad


@pytest.fixture(params=list(TableFormat))
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return lake_in(tmp_path / "lake", request.param)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_killed_load_repeated_leaves_no_duplicate_and_no_gap(lake: Lake, step: str) -> None:
    whole_load(lake, 10)
    killed_load(lake, 40, step)
    whole_load(lake, 60)  # more has come meanwhile
    good, bad = offsets_in(lake)
    assert good == {(p, o): 1 for p in range(PARTITIONS) for o in range(60) if o % 5}
    assert bad == {(p, o): 1 for p in range(PARTITIONS) for o in range(60) if o % 5 == 0}


@pytest.mark.slow
def test_the_files_of_a_killed_load_are_orphaned(lake: Lake) -> None:
    """Or the test above would kill too early to prove anything."""
    killed_load(lake, 10, "files written")
    assert list((directory_of(lake) / "requests").rglob("*.parquet")) != []
    assert offsets_in(lake)[0] == Counter()
