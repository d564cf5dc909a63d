"""CVE-2023-34455: a snappy header that announced gigabytes had its reader allocate them; here the header of each codec."""

from __future__ import annotations

import gzip
import struct

import pytest

from ottla.core.errors import CorruptMessage
from ottla.records.codecs import Codec, TooMuch, decompress, decompress_within
from ottla.records.record_reader import read_columns, read_records
from tests.support.batches import with_payload
from tests.support.bombs import MEASURABLE, spent_kb

ANNOUNCED = 1 << 31
BODY_BYTES = 20
SPENT_MAX_KB = 16 << 10
LIMIT = 24 << 20

XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
SNAPPY = (b"\x80\x80\x80\x80\x08" + bytes(BODY_BYTES))[:BODY_BYTES]
HEADERS: dict[str, tuple[Codec, bytes]] = {
    "snappy": (Codec.SNAPPY, SNAPPY),
    "xerial, in a block": (Codec.SNAPPY, XERIAL + struct.pack(">i", BODY_BYTES) + SNAPPY),
    "xerial, a block of so many bytes": (Codec.SNAPPY, XERIAL + struct.pack(">i", ANNOUNCED - 1) + SNAPPY),
    "xerial, a block of fewer than none": (Codec.SNAPPY, XERIAL + struct.pack(">i", -1) + SNAPPY),
    "lz4, content size": (Codec.LZ4, b"\x04\x22\x4d\x18\x68\x70" + struct.pack("<Q", ANNOUNCED) + bytes(BODY_BYTES)),
    "lz4, block size": (Codec.LZ4, b"\x04\x22\x4d\x18\x60\x70\x73" + b"\xff\xff\xff\x7f" + bytes(BODY_BYTES)),
    "zstd, content size": (Codec.ZSTD, b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", ANNOUNCED) + bytes(BODY_BYTES)),
    "zstd, content size of 64 bits": (
        Codec.ZSTD,
        b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", ANNOUNCED << 20) + bytes(BODY_BYTES),
    ),
    "zstd, window": (Codec.ZSTD, b"\x28\xb5\x2f\xfd\x00\xa8" + b"\x01\0\0" + bytes(BODY_BYTES)),
    "gzip, size": (Codec.GZIP, gzip.compress(b"x")[:-4] + struct.pack("<I", ANNOUNCED)),
}
"""By name: the codec, and a header that says 2 GiB or more before some 20 bytes."""


@pytest.mark.skipif(not MEASURABLE, reason="peak memory is measured through Linux's /proc")
@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_announces_gigabytes_is_one_error_and_no_memory(name: str) -> None:
    codec, data = HEADERS[name]
    assert len(data) <= 48
    batch = with_payload(data, count=1, attributes=codec)
    assert spent_kb(lambda: decompress(codec, data)) < SPENT_MAX_KB
    assert spent_kb(lambda: list(read_records(batch))) < SPENT_MAX_KB
    assert spent_kb(lambda: read_columns(batch)) < SPENT_MAX_KB


@pytest.mark.parametrize("name", ["snappy", "xerial, in a block"])
def test_what_snappy_announces_is_compared_with_the_limit_before_there_is_a_buffer(name: str) -> None:
    """A buffer of 2 GiB that is only mapped would not show in what is resident."""
    codec, data = HEADERS[name]
    with pytest.raises(TooMuch, match=str(ANNOUNCED)):
        decompress_within(codec, data, LIMIT)


def test_blocks_that_announce_a_little_each_are_held_to_the_limit_together() -> None:
    block = b"\x80\x80\x80\x08" + bytes(BODY_BYTES - 4)  # 16 MiB
    data = XERIAL + (struct.pack(">i", len(block)) + block) * 128
    with pytest.raises(TooMuch):
        decompress_within(Codec.SNAPPY, data, LIMIT)
    with pytest.raises(CorruptMessage):
        decompress(Codec.SNAPPY, data)
