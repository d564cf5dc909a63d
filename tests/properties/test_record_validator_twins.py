"""The loop that validates records, plain and compiled: the same answers, and the same refusals, from the same bytes."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.core.settings import INT_MAX
from ottla.records import _record_validator
from ottla.records.batch import HEADER_BYTES
from ottla.records.builder import NewRecord, build_batch
from tests.fuzz.harnesses import mutated
from tests.support.compiled_loops import compiled_loop
from tests.support.examples import examples

some = settings(max_examples=examples(50), deadline=None)


@pytest.fixture(scope="module")
def compiled() -> ModuleType:
    return compiled_loop(_record_validator)


def checked(
    module: ModuleType,
    data: bytes | memoryview,
    count: int,
    base_timestamp: int,
    *,
    keyed: bool,
    chunk: int,
    size_max: int = INT_MAX,
) -> Any:
    """Validate all records, a few at a time."""
    at, greatest_ms = 0, -1
    faults: list[Any] = []
    try:
        for first in range(0, count, chunk):
            at, greatest_ms = module.validate_into(
                data,
                at,
                first,
                min(chunk, count - first),
                base_timestamp,
                1 << 39,
                1 << 41,
                keyed,
                greatest_ms,
                faults,
                5,
                size_max,
            )
    except ValueError as error:
        return str(error)
    return at, greatest_ms, faults


@some
@given(seed=st.integers(0, 2**32), chunk=st.integers(1, 5), keyed=st.booleans())
def test_both_twins_find_the_faults_that_the_records_have(
    compiled: ModuleType, seed: int, chunk: int, keyed: bool
) -> None:
    source = random.Random(seed)
    records = [
        NewRecord(
            source.choice([None, b"", b"key", bytes(70)]),
            source.choice([None, b"value", bytes(9000)]),
            source.randrange(-1, 1 << 42),
            [("name", b"value"), ("", None)][: source.randrange(3)],
        )
        for _ in range(source.randrange(10))
    ]
    data, count = bytes(build_batch(records)[HEADER_BYTES:]), len(records)
    base = records[0].timestamp_ms if records else 0
    for shown in (data, mutated(data, source), source.randbytes(source.randrange(60))):
        for many in (count, count + 1):
            plain = checked(_record_validator, shown, many, base, keyed=keyed, chunk=chunk)
            assert checked(compiled, shown, many, base, keyed=keyed, chunk=chunk) == plain
            bounded, twin = (
                checked(module, shown, many, base, keyed=keyed, chunk=chunk, size_max=80)
                for module in (_record_validator, compiled)
            )
            assert bounded == twin
    at, greatest_ms, faults = checked(_record_validator, data, count, base, keyed=keyed, chunk=chunk)
    times = [each.timestamp_ms for each in records]
    keyless = [n for n, each in enumerate(records) if keyed and each.key is None]
    outside = [n for n, ms in enumerate(times) if n not in keyless and ms != -1 and not 1 << 39 <= ms <= 1 << 41]
    assert [place for place, _, _ in faults] == sorted(keyless + outside)[:5]
    assert (at, greatest_ms) == (
        len(data),
        max([ms for n, ms in enumerate(times) if n not in keyless + outside], default=-1),
    )


@pytest.mark.parametrize(
    ("number", "is_valid"),
    [
        (b"\x02", True),
        (b"\x82\x00", True),
        (b"\x82\x80\x80\x80\x00", True),
        (b"\x82\x80\x80\x80\x80\x00", False),
        (b"\x82\x80\x80\x80\x10", False),
    ],
)
def test_lengths_and_counts_have_at_most_32_bits(compiled: ModuleType, number: bytes, *, is_valid: bool) -> None:
    """Java reads them as 32 bits, and refuses a sixth byte."""
    for fields in (
        b"\0\0\0" + number + b"k" + b"\x01" + b"\0",  # the key's length
        b"\0\0\0" + b"\x01" + number + b"v" + b"\0",  # the value's
        b"\0\0\0" + b"\x01\x01" + number + b"\x02h\x01",  # how many headers
        b"\0\0\0" + b"\x01\x01" + b"\x02" + number + b"h" + b"\x01",  # the length of a header's name
        b"\0\0\0" + b"\x01\x01" + b"\x02" + b"\x02h" + number + b"v",  # and of its value
    ):
        data = bytes([2 * len(fields)]) + fields
        for module in (_record_validator, compiled):
            found = checked(module, data, 1, 1 << 40, keyed=False, chunk=1)
            assert (found == (len(data), 1 << 40, [])) == is_valid, found


@pytest.mark.parametrize(
    "record",
    [
        b"\xff" * 9 + b"\x01",
        b"\xff" * 20,
        b"\x02\x00",
        b"\x00",
        b"\x0c\x00" + b"\xfe" + b"\xff" * 8 + b"\x01" + b"\x00\x01\x01\x00",
        b"\x10\x00\x00\xfe\xff\xff\xff\x1f\x01\x01\x00",
        b"\x10\x00\x00\xfe\xff\xff\xff\x0f\x01\x01\x00",
        b"\x1e\x00" + b"\xff" * 9 + b"\x01" + b"\x00\x01\x01\x00",
        b"",
    ],
)
def test_both_twins_agree_at_the_edges_of_numbers(compiled: ModuleType, record: bytes) -> None:
    for base in (0, (1 << 63) - 1, -(1 << 63)):
        for data in (record, memoryview(bytearray(record))):
            plain = checked(_record_validator, bytes(data), 1, base, keyed=True, chunk=1)
            assert checked(compiled, data, 1, base, keyed=True, chunk=1) == plain
