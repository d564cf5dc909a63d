"""The balance sheet: what balances, and that every kind of loss shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ottla.pipeline.balance import BalanceSheet, PartitionBooks, balance_sheet, tally
from ottla.pipeline.demo import sheet_text
from ottla.pipeline.log import OffsetRange

EVEN = PartitionBooks(partition=0, read=10, acknowledged=10, in_log=10, in_lake=8, quarantined=2)


def write(path: Path, partition: int, offsets: list[int]) -> str:
    columns = {"partition": pa.array([partition] * len(offsets), pa.int32()), "offset": pa.array(offsets, pa.int64())}
    pq.write_table(pa.table(columns), path)
    return str(path)


def test_even_books_balance() -> None:
    sheet = BalanceSheet([EVEN, replace(EVEN, partition=1)])
    assert (sheet.balanced, sheet.exit_code, sheet.faults) == (True, 0, [])
    assert "the books balance" in sheet_text(sheet)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"acknowledged": 9, "in_log": 9, "in_lake": 7}, "10 lines read, but 9 records acknowledged (-1)"),
        ({"in_log": 9, "in_lake": 7}, "10 records acknowledged, but 9 offsets in the log (-1)"),
        ({"in_lake": 7}, "10 offsets in the log, but 9 rows in the lake and quarantined (-1)"),
        ({"quarantined": 3}, "10 offsets in the log, but 11 rows in the lake and quarantined (+1)"),
        ({"repeated": 1}, "1 rows repeat an offset"),
    ],
)
def test_a_loss_at_any_step_is_named_with_its_partition(wrong: dict[str, int], told: str) -> None:
    sheet = BalanceSheet([EVEN, replace(EVEN, partition=3, **wrong)])
    assert sheet.faults == [f"partition 3: {told}"]
    assert sheet.exit_code == 1
    assert told in sheet_text(sheet)


def test_losses_in_two_partitions_that_make_up_for_each_other_in_the_total_still_show() -> None:
    sheet = BalanceSheet([replace(EVEN, in_lake=7), replace(EVEN, partition=1, in_lake=9)])
    assert sheet.total().in_lake + sheet.total().quarantined == sheet.total().in_log
    assert len(sheet.faults) == 2


def test_a_row_taken_out_of_the_lake_is_missed(tmp_path: Path) -> None:
    whole, lossy = write(tmp_path / "a", 0, [0, 1, 2, 3]), write(tmp_path / "b", 0, [0, 1, 3])
    spans = {0: OffsetRange(0, 0, 4)}
    books = {"read": {0: 4}, "acknowledged": {0: 4}, "in_log": spans, "quarantine_files": []}
    assert balance_sheet(lake_files=[whole], **books).balanced  # type: ignore[arg-type]
    assert balance_sheet(lake_files=[lossy], **books).exit_code == 1  # type: ignore[arg-type]


def test_one_row_lost_and_another_one_doubled_does_not_balance(tmp_path: Path) -> None:
    lake, aside = write(tmp_path / "a", 0, [0, 1, 1]), write(tmp_path / "b", 0, [3])
    sheet = balance_sheet(
        read={0: 4},
        acknowledged={0: 4},
        in_log={0: OffsetRange(0, 0, 4)},
        lake_files=[lake],
        quarantine_files=[aside],
    )
    assert sheet.faults == ["partition 0: 1 rows repeat an offset"]


def test_a_row_both_in_the_lake_and_quarantined_is_a_repeat(tmp_path: Path) -> None:
    sheet = balance_sheet(
        read={0: 2},
        acknowledged={0: 2},
        in_log={0: OffsetRange(0, 0, 2)},
        lake_files=[write(tmp_path / "a", 0, [0])],
        quarantine_files=[write(tmp_path / "b", 0, [0])],
    )
    assert not sheet.balanced


def test_rows_of_earlier_runs_are_not_counted(tmp_path: Path) -> None:
    file = write(tmp_path / "a", 0, [7, 8, 9, 10, 11])
    assert tally([file], {0: OffsetRange(0, 9, 11), 1: OffsetRange(1, 0, 5)})[0].rows == 2
