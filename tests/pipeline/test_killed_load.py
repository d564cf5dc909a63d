"""Loads killed with -9 and repeated: DuckDB, reading the files of the tables, finds every offset exactly once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import duckdb
import pytest
from deltalake import DeltaTable
from tests.pipeline.killed_load import PARTITIONS

STEPS = ["files written", "quarantine committed", "before the table's commit", "table committed"]


def run_load(root: Path, records: int, step: str) -> int:
    command = [sys.executable, "-m", "tests.pipeline.killed_load", str(root), str(records), step]
    return subprocess.run(command, check=False, cwd=Path(__file__).parents[2]).returncode


def offsets_in(table: Path) -> Counter[tuple[int, int]]:
    files = [unquote(uri.removeprefix("file://")) for uri in DeltaTable(table).file_uris()]
    if not files:
        return Counter()
    return Counter(duckdb.execute('select partition, "offset" from read_parquet($1)', [files]).fetchall())


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_killed_load_repeated_leaves_no_duplicate_and_no_gap(tmp_path: Path, step: str) -> None:
    assert run_load(tmp_path, 10, "none") == 0
    assert run_load(tmp_path, 40, step) == -signal.SIGKILL
    assert run_load(tmp_path, 60, "none") == 0  # more has come meanwhile
    good, bad = offsets_in(tmp_path / "requests"), offsets_in(tmp_path / "quarantine")
    assert good == {(p, o): 1 for p in range(PARTITIONS) for o in range(60) if o % 5}
    assert bad == {(p, o): 1 for p in range(PARTITIONS) for o in range(60) if o % 5 == 0}


@pytest.mark.slow
def test_the_files_of_a_killed_load_are_there_and_in_no_table(tmp_path: Path) -> None:
    """Or the test above would kill too early to prove anything."""
    assert run_load(tmp_path, 10, "files written") == -signal.SIGKILL
    assert list((tmp_path / "requests").rglob("*.parquet")) != []
    assert offsets_in(tmp_path / "requests") == Counter()
