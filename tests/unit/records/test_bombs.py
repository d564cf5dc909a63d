"""A gigabyte in a few bytes costs one error and less than 64 MB, in whatever is read by."""

from __future__ import annotations

import random

import pytest

from ottla.records._record_reader import KEYS
from ottla.records.batch import BatchHeader
from ottla.records.builder import NewRecord, build_batch
from ottla.records.codecs import decompress
from ottla.records.record_columns import locate_records
from ottla.records.record_reader import read_columns, read_records
from tests.support.batches import with_payload
from tests.support.bombs import BOMBS, MEASURABLE, SPENT_MAX_KB, spent_kb

pytestmark = pytest.mark.skipif(not MEASURABLE, reason="peak memory is measured through Linux's /proc")


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_costs_one_error_and_less_than_64_mb(name: str) -> None:
    codec, make = BOMBS[name]
    bomb = make()
    batch = with_payload(bomb, count=1000, attributes=codec)

    assert BatchHeader(batch).codec == codec
    assert spent_kb(lambda: decompress(codec, bomb)) < SPENT_MAX_KB
    assert spent_kb(lambda: read_records(batch)) < SPENT_MAX_KB
    assert spent_kb(lambda: read_columns(batch)) < SPENT_MAX_KB
    parts = [(memoryview(batch), BatchHeader(batch))]
    assert spent_kb(lambda: list(locate_records(parts, from_offset=0, end_offset=9, parts=KEYS))) < SPENT_MAX_KB


def test_a_large_batch_that_is_compressed_a_little_is_no_bomb() -> None:
    value = random.Random(1).randbytes(30 << 20) + bytes(10 << 20)
    batch = build_batch([NewRecord(b"k", value)], codec=2)

    assert next(read_records(batch)).value == value
