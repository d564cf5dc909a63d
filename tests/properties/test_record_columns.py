"""Where records lie (`records/record_columns.py`) against the records themselves (`records/record_reader.py`), and its two twins."""

from __future__ import annotations

import random
from array import array
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.core.errors import CorruptMessage
from ottla.records import _record_reader, record_columns
from ottla.records.batch import HEADER_BYTES, BatchHeader, split, write_crc
from ottla.records.builder import build_batch
from ottla.records.record_columns import HEADERS, KEYS, VALUES, RecordColumns, locate_records
from ottla.records.record_reader import Columns, Record, read_columns
from tests.fuzz.harnesses import mutated
from tests.support.compiled_loops import compiled_loop
from tests.support.examples import examples

EVERYTHING = KEYS | VALUES | HEADERS
some = settings(max_examples=examples(50), deadline=None)
_bytes = st.none() | st.binary(max_size=30)


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Batches as a log holds them: any codec, gaps within and between them, empty ones, append times."""
    data, at = bytearray(), draw(st.sampled_from([0, 7, 1 << 40]))
    for _ in range(draw(st.integers(0, 5))):
        base = at = at + draw(st.integers(0, 3))
        records = []
        for _ in range(draw(st.integers(0, 6))):
            at += draw(st.sampled_from([0, 0, 0, 2]))
            headers = draw(st.lists(st.tuples(st.text(max_size=5), _bytes), max_size=3))
            records.append(Record(at, draw(st.integers(-1, 1 << 42)), draw(_bytes), draw(_bytes), headers))
            at += 1
        at += draw(st.sampled_from([0, 0, 1]))
        data += build_batch(
            records,
            base_offset=base,
            last_offset=max(at - 1, base),
            codec=draw(st.integers(0, 4)),
            log_append_time_ms=draw(st.none() | st.just(1_700_000_000_000)),
        )
        at = max(at, base + 1)
    return bytes(data)


def walked(data: bytes) -> list[tuple[memoryview, BatchHeader]]:
    view = memoryview(data)
    return [(view[at : at + header.size_bytes], header) for at, header in split(view)]


def gathered(found: list[RecordColumns], parts: int) -> Columns:
    """What Arrow makes of it, in plain Python."""
    joined = Columns(array("q"), array("q"), [], [], [])
    for piece in found:
        joined.offsets.extend(piece.offsets[: piece.count])
        joined.timestamps_ms.extend(piece.timestamps_ms[: piece.count])
        half = len(piece.slots) // 2
        for wanted, slots, into in (
            (KEYS, piece.slots[:half], joined.keys),
            (VALUES, piece.slots[half:], joined.values),
        ):
            if parts & wanted:
                into += [
                    None if s < 0 else piece.data[piece.edges[s] : piece.edges[s + 1]] for s in slots[: piece.count]
                ]
        pairs = iter(zip(*[iter(piece.header_edges)] * 4, piece.header_nulls, strict=False))
        for count in piece.header_counts:
            these = [next(pairs) for _ in range(count)]
            joined.headers.append(
                [
                    (piece.data[a:b].decode("utf-8", "replace"), None if null else piece.data[c:d])
                    for a, b, c, d, null in these
                ]
            )
    return joined


@some
@given(data=logs(), first=st.integers(0, 20), length=st.integers(0, 30), parts=st.integers(0, 7), high=st.booleans())
def test_the_places_of_records_hold_what_a_scan_of_each_record_finds(
    data: bytes, first: int, length: int, parts: int, high: bool
) -> None:
    first += (1 << 40) if high else 0
    want = [name for bit, name in ((KEYS, "key"), (VALUES, "value"), (HEADERS, "headers")) if parts & bit]
    expected = read_columns(data, from_offset=first, end_offset=first + length, want=want)
    found = list(locate_records(walked(data), from_offset=first, end_offset=first + length, parts=parts))
    assert gathered(found, parts) == expected
    if not parts:
        bare = list(locate_records(walked(data), from_offset=first, end_offset=first + length, parts=0, times=False))
        assert gathered(bare, 0).offsets == expected.offsets
    append_times = [flag for piece in found for count, flag in piece.append_times for _ in range(count)]
    by_batch = {
        offset: header.log_append_time
        for view, header in walked(data)
        for offset in read_columns(view, from_offset=first, end_offset=first + length, want=()).offsets
    }
    assert append_times == [by_batch[offset] for offset in expected.offsets]


@pytest.fixture(scope="module")
def compiled() -> ModuleType:
    return compiled_loop(_record_reader)


def seen(module: ModuleType, data: bytes, count: int, parts: int) -> Any:
    numbers = [array("q", bytes(80)), array("q", bytes(80)), array("i", bytes(80)), array("i", bytes(160))]
    headers: list[list[int]] = [[], [], []]
    try:
        end = module.places_into(
            data,
            0,
            len(data),
            count,
            1 << 40,
            1_700_000_000_000,
            1 << 40,
            (1 << 40) + 5,
            parts,
            *numbers,
            headers,
            0,
            0,
        )
    except ValueError as error:
        return str(error)
    return end, numbers, headers


@some
@given(data=logs(), seed=st.integers(0, 2**32), parts=st.integers(0, 7))
def test_both_twins_place_the_same_in_good_and_in_corrupt_bytes(
    compiled: ModuleType, data: bytes, seed: int, parts: int
) -> None:
    source = random.Random(seed)
    for view, header in walked(data):
        if header.codec:
            continue
        body = bytes(view[HEADER_BYTES:])
        for shown in (body, mutated(body, source), source.randbytes(source.randrange(60))):
            for count in (header.record_count, 0, 1):
                assert seen(compiled, shown, count, parts) == seen(_record_reader, shown, count, parts)


@pytest.mark.parametrize("number", [b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x02", b"\xfe" + b"\xff" * 8 + b"\x01"])
@pytest.mark.parametrize("place", range(5))
def test_both_twins_refuse_hostile_numbers_in_the_same_words(compiled: ModuleType, number: bytes, place: int) -> None:
    """In turn: the length, the time's delta (its sum may not fit), the offset's delta, the key's length, the value's."""
    fields = [b"\x00", b"\x00", b"\x01", b"\x01", b"\x00"]
    if place == 0:
        record = number + b"\x00" + b"".join(fields)
    else:
        fields[place - 1] = number
        body = b"\x00" + b"".join(fields)
        record = bytes([2 * len(body)]) + body
    assert seen(compiled, record, 1, EVERYTHING) == seen(_record_reader, record, 1, EVERYTHING)


def test_a_header_that_claims_more_records_than_bytes_is_refused_before_memory_is_spent() -> None:
    data = bytearray(build_batch([Record(0, 0, b"k", b"v", [])]))
    data[57:61] = (1 << 30).to_bytes(4, "big")
    write_crc(data, 0, len(data))
    with pytest.raises(CorruptMessage, match="cannot hold"):
        list(locate_records(walked(bytes(data)), from_offset=0, end_offset=1 << 62, parts=VALUES))


def test_a_dense_batch_of_which_only_offsets_are_asked_is_not_decompressed() -> None:
    def not_decompressable(records: list[Record], base_offset: int) -> bytes:
        data = bytearray(build_batch(records, base_offset=base_offset, codec=4))
        data[61:] = b"\xff" * len(data[61:])
        write_crc(data, 0, len(data))
        return bytes(data)

    data = not_decompressable([Record(n, n, b"k", b"v" * 50, []) for n in range(9)], 0)
    gaps = not_decompressable([Record(n, n, b"k", b"v", []) for n in (9, 11)], 9)
    (found,) = locate_records(walked(data), from_offset=2, end_offset=8, parts=0, times=False)
    assert list(found.offsets[: found.count]) == [2, 3, 4, 5, 6, 7]
    for times, parts in ((True, 0), (False, KEYS)):
        with pytest.raises(CorruptMessage):
            list(locate_records(walked(data), from_offset=0, end_offset=9, parts=parts, times=times))
    with pytest.raises(CorruptMessage):
        list(locate_records(walked(gaps), from_offset=0, end_offset=20, parts=0, times=False))


def test_pieces_are_given_before_too_much_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_columns, "_PIECE_BYTES", 100)
    batches = [bytes(build_batch([Record(n, n, b"k", b"v" * 60, [])], base_offset=n)) for n in range(5)]
    found = list(locate_records(walked(b"".join(batches)), from_offset=0, end_offset=9, parts=VALUES))
    assert [piece.count for piece in found] == [2, 2, 1]
    assert list(gathered(found, VALUES).offsets) == [0, 1, 2, 3, 4]
