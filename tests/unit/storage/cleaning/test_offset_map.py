"""The map from keys to latest offsets, and its memory."""

from __future__ import annotations

from ottla.records.builder import NewRecord, build_batch
from ottla.storage.cleaning.offset_map import OffsetMap


def test_a_map_takes_no_more_than_it_may_and_refuses_the_key_too_many() -> None:
    offsets = OffsetMap(memory_bytes=24 * 20_000, load_factor=0.5)
    records = build_batch([NewRecord(b"%d" % number) for number in range(30_000)])
    body = bytes(records[61:])
    assert not offsets.note(body, 0, len(body), count=30_000, base_offset=0, from_offset=0)
    assert (offsets.count, offsets.latest_offset) == (10_000, 9_999)
    assert offsets.memory_bytes <= 24 * 20_000
    again = bytes(build_batch([NewRecord(b"%d" % number) for number in range(10_000)])[61:])
    assert offsets.note(again, 0, len(again), count=10_000, base_offset=50_000, from_offset=0), "a known key fits"
    assert (offsets.count, offsets.latest_offset) == (10_000, 59_999)
    offsets.close()


def test_a_small_log_needs_a_small_map() -> None:
    offsets = OffsetMap(memory_bytes=128 << 20, load_factor=0.9)
    body = bytes(build_batch([NewRecord(b"%d" % number) for number in range(100)])[61:])
    assert offsets.note(body, 0, len(body), count=100, base_offset=0, from_offset=0)
    assert offsets.memory_bytes < 200_000
    offsets.close()
