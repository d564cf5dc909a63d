"""Tests the search in an index of aborted transactions."""

import random
from pathlib import Path

import pytest

from ottla.core.files import SystemFiles
from ottla.storage.state.aborted_index import (
    ENTRY_BYTES,
    AbortedTransaction,
    append_aborted,
    find_aborted,
    read_aborted,
    replace_aborted,
)
from ottla.testing.sim_disk import SimDisk
from tests.support.counting_files import counting
from tests.support.storage import ROOT

PATH = ROOT / "00000000000000000000.txnindex"


def index(count: int, *, seed: int = 1) -> list[AbortedTransaction]:
    """Transactions of three producers that overlap, in the order of their markers."""
    rng = random.Random(seed)
    entries: list[AbortedTransaction] = []
    opened = {producer_id: producer_id for producer_id in range(3)}
    offset = len(opened)
    while len(entries) < count:
        producer_id = rng.choice(sorted(opened))
        first = opened.pop(producer_id)
        entries.append(AbortedTransaction(producer_id, first, offset, min(opened.values(), default=offset + 1)))
        opened[producer_id] = offset + 1
        offset += 2
    return entries


def expected(entries: list[AbortedTransaction], first_offset: int, end_offset: int) -> list[AbortedTransaction]:
    return [each for each in entries if each.last_offset >= first_offset and each.first_offset < end_offset]


@pytest.mark.parametrize("count", [0, 1, 2, 63, 64, 65, 500])
def test_the_search_finds_what_a_scan_finds(count: int) -> None:
    disk, entries = SimDisk(), index(count)
    disk.make_directory(ROOT)
    replace_aborted(disk, PATH, entries)
    rng = random.Random(count)
    for _ in range(200):
        first_offset = rng.randrange(2 * count + 10)
        end_offset = first_offset + rng.randrange(1, 40)
        part = find_aborted(disk, PATH, first_offset, end_offset)
        assert part is not None
        assert part[0] == expected(entries, first_offset, end_offset)


def test_a_large_index_costs_a_few_small_reads(tmp_path: Path) -> None:
    files, calls = counting(SystemFiles())
    path, entries = tmp_path / PATH.name, index(20_000)
    replace_aborted(files, path, entries)
    calls.clear()
    part = find_aborted(files, path, 20_000, 20_010)
    assert part is not None and part[0] == expected(entries, 20_000, 20_010)
    assert calls["read"] <= 17, f"{calls} to read a few of {len(entries)} entries"


def test_a_corrupt_index_is_not_searched() -> None:
    disk = SimDisk()
    disk.make_directory(ROOT)
    append_aborted(disk, PATH, AbortedTransaction(1, 0, 5, 6))
    assert find_aborted(disk, PATH, 0, 9) == ([AbortedTransaction(1, 0, 5, 6)], False)
    file = disk.open(PATH)
    file.write_at(ENTRY_BYTES, b"half an entry")
    file.close()
    assert find_aborted(disk, PATH, 0, 9) is None and read_aborted(disk, PATH) is None
    assert find_aborted(disk, ROOT / "none.txnindex", 0, 9) == ([], False)
