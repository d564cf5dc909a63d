"""The loop over records, plain and compiled: the same records, and the same refusals, from the same bytes."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.records import _record_reader
from ottla.records.batch import HEADER_BYTES
from ottla.records.builder import NewRecord, build_batch
from tests.fuzz.harnesses import mutated
from tests.support.compiled_loops import compiled_loop
from tests.support.examples import examples

some = settings(max_examples=examples(50), deadline=None)


@pytest.fixture(scope="module")
def compiled() -> ModuleType:
    return compiled_loop(_record_reader)


def seen(module: ModuleType, data: bytes, count: int, first: int, end: int) -> Any:
    columns: list[list[Any]] = [[] for _ in range(5)]
    try:
        module.scan_into(data, count, 1 << 40, 1_700_000_000_000, first, end, *columns)
    except (ValueError, IndexError) as error:
        return type(error)
    return columns


@some
@given(seed=st.integers(0, 2**32), first=st.integers(0, 8), length=st.integers(0, 8))
def test_both_twins_see_the_same_in_good_and_in_corrupt_bytes(
    compiled: ModuleType, seed: int, first: int, length: int
) -> None:
    source = random.Random(seed)
    records = [
        NewRecord(
            source.choice([None, b"", source.randbytes(source.randrange(200))]),
            source.choice([None, b"", source.randbytes(source.randrange(200))]),
            source.randrange(1 << 42),
            [("name", b"value"), ("é", None)][: source.randrange(3)],
        )
        for _ in range(source.randrange(10))
    ]
    data = bytes(build_batch(records)[HEADER_BYTES:])
    first += 1 << 40
    for shown in (data, mutated(data, source), source.randbytes(source.randrange(60))):
        for count in (len(records), len(records) + 1, 0):
            plain = seen(_record_reader, shown, count, first, first + length)
            assert seen(compiled, shown, count, first, first + length) == plain


@pytest.mark.parametrize(
    "record",
    [
        b"\xff" * 9 + b"\x01",
        b"\xff" * 9 + b"\x02",
        b"\xff" * 20,
        b"\xfe" + b"\xff" * 8 + b"\x01",
        b"\x02\x00",
        b"\x0c\x00" + b"\xfe" + b"\xff" * 8 + b"\x01" + b"\x00\x01\x01\x00",
        b"\x10\x00\x00\xfe\xff\xff\xff\x1f\x01\x01\x00",
        b"\x10\x00\x00\xfe\xff\xff\xff\x0f\x01\x01\x00",
        b"",
    ],
)
def test_both_twins_agree_at_the_edges_of_numbers(compiled: ModuleType, record: bytes) -> None:
    for count in (1, 2, 1 << 40):
        assert seen(compiled, record, count, 0, 1 << 63) == seen(_record_reader, record, count, 0, 1 << 63)
