"""What a power cut may leave of Delta's log: names whose bytes are not there (`lake/delta_log_repair.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.pipeline.lake.lake_table import Change, TableSpec
from ottla.pipeline.offset_range import OffsetRange
from tests.contracts.test_lake_tables import BY, SCHEMA, load, offsets, rows, stage
from tests.support.lakes import delta_in


def torn(path: Path) -> None:
    """As a power cut leaves a file: its name is there, its bytes are not."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])


@pytest.mark.parametrize("left", [0, 40])
def test_a_log_entry_that_a_power_cut_took_the_bytes_of_is_put_aside(tmp_path: Path, left: int) -> None:
    delta = delta_in(tmp_path / "events")
    delta.create(TableSpec(SCHEMA, BY))
    load(delta, 0, 10)
    files = stage(delta, rows(10, 20))
    delta.commit(Change("load", "t", ranges=[OffsetRange(0, 10, 20)], add=files))
    entry = tmp_path / "events" / "_delta_log" / "00000000000000000002.json"
    entry.write_bytes(entry.read_bytes()[:left])
    assert delta.positions("t", [0]) == {0: OffsetRange(0, 0, 10)}
    load(delta, 10, 20)
    assert offsets(delta) == list(range(20))
    assert entry.with_suffix(".torn").exists()


def test_a_checkpoint_that_a_power_cut_took_the_bytes_of_is_put_aside(tmp_path: Path) -> None:
    delta = delta_in(tmp_path / "events")
    delta.create(TableSpec(SCHEMA, BY))
    for first in range(60):
        load(delta, first, first + 1)
    log = tmp_path / "events" / "_delta_log"
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    whole = {path: path.read_bytes() for path in (checkpoint, log / "_last_checkpoint")}
    for victim in whole:
        for path, data in whole.items():
            path.write_bytes(data)
        torn(victim)
        assert delta.positions("t", [0]) == {0: OffsetRange(0, 0, 60)}
        assert not any(path.exists() for path in whole)
    load(delta, 60, 61)
    assert offsets(delta) == list(range(61))
