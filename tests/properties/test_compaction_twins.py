"""Compaction's loops over records, plain and compiled: the same keys, choice and bytes, and the same refusals."""

from __future__ import annotations

import random
from array import array
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.records import _compaction, compaction
from ottla.records.batch import HEADER_BYTES
from ottla.records.builder import NewRecord, build_batch
from ottla.records.record_reader import read_records
from ottla.storage.cleaning.offset_map import OffsetMap
from tests.fuzz.harnesses import mutated
from tests.support.compiled_loops import compiled_loop
from tests.support.examples import examples

SLOTS = 11
some = settings(max_examples=examples(50), deadline=None)


@pytest.fixture(scope="module")
def compiled() -> ModuleType:
    return compiled_loop(_compaction)


def seen(module: ModuleType, data: bytes, count: int, capacity: int, latest: int, *, drops: bool) -> Any:
    """Everything the loops say of one batch: the table, the choice, the records moved in time."""
    table = array("Q", bytes(SLOTS * 24))
    extents: list[int] = []
    try:
        noted = module.note_keys(data, 0, len(data), count, 100, 101, table, SLOTS, capacity, 1, 2**64 - 1, None)
        into = array("Q", bytes(2 * SLOTS * 24))
        module.move_slots(table, 0, SLOTS, into, 2 * SLOTS)
        chosen = module.choose(
            data, 0, len(data), count, 100, latest, drops, into, 2 * SLOTS, 1, 2**64 - 1, None, extents
        )
        moved = [bytes(module.shifted(data, extents, shift)) for shift in (1, 2**64 - 1, 2**63, 2**40)]
    except (ValueError, IndexError) as error:
        return type(error)
    return noted, table.tolist(), into.tolist(), chosen, extents, moved


def some_batch(source: random.Random) -> tuple[bytes, int]:
    keys = [None, b"", b"a", b"abcdefgh", b"abcdefghi", source.randbytes(source.randrange(70))]
    records = [
        NewRecord(source.choice(keys), source.choice([None, b"", b"value"]), source.randrange(1 << 42), [("h", b"v")])
        for _ in range(source.randrange(12))
    ]
    return bytes(build_batch(records)[HEADER_BYTES:]), len(records)


@some
@given(seed=st.integers(0, 2**32), capacity=st.integers(0, SLOTS - 1), latest=st.integers(98, 112), drops=st.booleans())
def test_both_twins_see_the_same_in_good_and_in_corrupt_bytes(
    compiled: ModuleType, seed: int, capacity: int, latest: int, drops: bool
) -> None:
    source = random.Random(seed)
    data, size = some_batch(source)
    for shown in (data, mutated(data, source), source.randbytes(source.randrange(60))):
        for count in (size, size + 1, 0):
            plain = seen(_compaction, shown, count, capacity, latest, drops=drops)
            assert seen(compiled, shown, count, capacity, latest, drops=drops) == plain


@some
@given(data=st.binary(max_size=100), key=st.binary(min_size=16, max_size=16))
def test_both_twins_digest_a_key_the_same(compiled: ModuleType, data: bytes, key: bytes) -> None:
    first, second = compaction.halves(key)
    expected = _compaction.sip(data, 0, len(data), first, second)
    assert compiled.sip(data, 0, len(data), first, second) == expected
    around = b"x" + data + b"y"
    assert compiled.sip(around, 1, len(data) + 1, first, second) == expected, "what lies around the key took part"
    assert expected != _compaction.sip(data + b"\0", 0, len(data) + 1, first, second)


@some
@given(seed=st.integers(0, 2**32), memory_slots=st.integers(2, 40), load=st.floats(0.01, 1))
def test_whatever_digests_the_keys_the_same_records_stay(
    compiled: ModuleType, seed: int, memory_slots: int, load: float
) -> None:
    """The plain twin leaves digests to hashlib: the tables differ, what becomes of the records does not."""
    source = random.Random(seed)
    batches = [some_batch(source) for _ in range(6)]
    outcomes = []
    for loop in (_compaction, compiled):
        offsets = OffsetMap(memory_bytes=memory_slots * 24, load_factor=load, loop=loop)
        noted = [
            offsets.note(data, 0, len(data), count=count, base_offset=20 * n, from_offset=0)
            for n, (data, count) in enumerate(batches)
        ]
        kept: list[Any] = []
        for n, (data, count) in enumerate(batches):
            extents: list[int] = []
            kept.append(
                (
                    offsets.choose(
                        data, 0, len(data), count=count, base_offset=20 * n, drops_tombstones=False, extents=extents
                    ),
                    extents,
                )
            )
        outcomes.append((noted, kept, offsets.count, offsets.latest_offset))
        offsets.close()
    assert outcomes[0] == outcomes[1]


@some
@given(times=st.lists(st.integers(0, 2**62), min_size=1, max_size=6), base=st.integers(-(2**62), 2**62))
def test_records_moved_to_another_base_keep_their_times(times: list[int], base: int) -> None:
    batch = build_batch([NewRecord(b"k%d" % at, b"v" * at, time_ms, [("h", None)]) for at, time_ms in enumerate(times)])
    body = bytes(batch[HEADER_BYTES:])
    moved = batch[:HEADER_BYTES] + compaction.LOOP.shifted(body, [0, len(body)], (times[0] - base) & (2**64 - 1))
    moved[8:12] = (len(moved) - 12).to_bytes(4, "big")
    moved[27:35] = base.to_bytes(8, "big", signed=True)
    assert list(read_records(moved)) == list(read_records(batch))
