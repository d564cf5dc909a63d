"""Compression codecs: frames of other writers are read, and bombs are refused before they use memory."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import lz4.frame
import pytest
import snappy
import zstandard
from kafka.codec import snappy_encode

from ottla.core.errors import CorruptMessage, UnsupportedCompressionType
from ottla.records.builder import NewRecord, build_batch
from ottla.records.codecs import Codec, TooMuch, codec_named, compress, decompress, decompress_view, release
from ottla.records.record_reader import read_columns, read_records

COMPRESSING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
BOMB_BYTES = 64 << 20


def bombs() -> list[tuple[Codec, bytes]]:
    """Return bombs that state how large they are, that state nothing, and that lie."""
    zeros = bytes(BOMB_BYTES)
    zipped = gzip.compress(zeros, compresslevel=9)
    silent = zstandard.ZstdCompressor(level=19).compressobj()
    return [
        (Codec.GZIP, zipped),
        (Codec.GZIP, zipped[:-4] + bytes(4)),
        (Codec.SNAPPY, snappy.compress(zeros)),
        (Codec.LZ4, lz4.frame.compress(zeros)),
        (Codec.LZ4, lz4.frame.compress(zeros, store_size=False)),
        (Codec.ZSTD, silent.compress(zeros) + silent.flush()),
        (Codec.ZSTD, zstandard.ZstdCompressor(level=19).compress(zeros)),
    ]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
def test_compressed_data_is_decompressed_unchanged(codec: Codec, size: int) -> None:
    data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    assert decompress(codec, compress(codec, data)) == data
    assert decompress(codec, memoryview(bytearray(compress(codec, memoryview(data)))), limit=size) == data


def peak_rss_kb() -> int:
    """The greatest resident size since `forget_peak`."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is measured through Linux's /proc")
def test_no_codec_is_made_to_spend_more_memory_than_its_limit() -> None:
    for codec, bomb in bombs():
        forget_peak()
        before_kb = peak_rss_kb()
        with pytest.raises(CorruptMessage):
            decompress(codec, bomb, limit=1 << 20)
        spent_kb = peak_rss_kb() - before_kb
        assert spent_kb < 16 << 10, f"{codec.name} spent {spent_kb} KB"
        if codec is Codec.ZSTD:  # the measurement sees what is spent where no limit holds it
            decompress(codec, bomb, limit=BOMB_BYTES)
            assert peak_rss_kb() - before_kb > 32 << 10


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("size", [100_000, 70_000, (64 << 10) + 256, 20_000_000])
def test_data_that_states_its_size_is_decompressed_into_exactly_so_much(codec: Codec, size: int) -> None:
    zeros = bytes(size)
    stating = {
        Codec.GZIP: gzip.compress(zeros),
        Codec.LZ4: lz4.frame.compress(zeros),
        Codec.ZSTD: zstandard.ZstdCompressor().compress(zeros),
    }[codec]
    view = decompress_view(codec, stating, 24 << 20)
    assert len(view) == size
    assert len(memoryview(view.obj)) == size
    release(view)
    with pytest.raises(TooMuch, match=f"to {size} bytes"):
        decompress_view(codec, stating, size - 1)


def test_what_an_error_still_refers_to_is_released_with_it() -> None:
    view = decompress_view(Codec.GZIP, gzip.compress(bytes(20_000_000)), 24 << 20)
    part = view[:10]
    release(view)
    assert bytes(part) == bytes(10)


def test_a_size_that_is_stated_wrongly_is_not_believed() -> None:
    zipped = gzip.compress(bytes(3_000_000))
    for stated in (0, 10, 2_000_000, 20_000_000):
        with pytest.raises(CorruptMessage):
            decompress(Codec.GZIP, zipped[:-4] + struct.pack("<I", stated))
    two = gzip.compress(b"a" * 300_000) + gzip.compress(b"b" * 70_000)
    assert decompress(Codec.GZIP, two) == b"a" * 300_000 + b"b" * 70_000


def test_a_bomb_inside_a_batch_is_a_corrupt_batch() -> None:
    for codec in COMPRESSING:
        batch = build_batch([NewRecord(b"k", bytes(4 << 20))], codec=codec)
        with pytest.raises(CorruptMessage):
            read_records(batch, limit=1 << 20)
        with pytest.raises(CorruptMessage):
            read_columns(batch, limit=1 << 20)
        assert len(read_columns(batch).values) == 1, "within the default limit it is a batch like any other"


def test_many_small_xerial_blocks_are_held_to_the_limit_together() -> None:
    data = compress(Codec.SNAPPY, bytes(1 << 20))
    assert len(decompress(Codec.SNAPPY, data, limit=1 << 20)) == 1 << 20
    with pytest.raises(CorruptMessage):
        decompress(Codec.SNAPPY, data, limit=(1 << 20) - 1)


@pytest.mark.parametrize("size", [0, 5, 100_000])
def test_snappy_is_read_in_both_framings(size: int) -> None:
    data = b"x" * size
    assert decompress(Codec.SNAPPY, snappy.compress(data)) == data
    assert decompress(Codec.SNAPPY, snappy_encode(data, xerial_compatible=True)) == data


def test_frames_of_other_libraries_are_read() -> None:
    data = b"log line\n" * 50_000
    assert decompress(Codec.GZIP, gzip.compress(data)) == data
    assert decompress(Codec.LZ4, lz4.frame.compress(data, block_linked=False)) == data
    assert decompress(Codec.LZ4, lz4.frame.compress(data, block_linked=True, content_checksum=True)) == data
    without_size = zstandard.ZstdCompressor().compressobj()
    assert decompress(Codec.ZSTD, without_size.compress(data) + without_size.flush()) == data


def test_lz4_blocks_stand_alone_because_java_reads_no_others() -> None:
    flags = compress(Codec.LZ4, b"x" * 200_000)[4]
    assert flags & 0x20, "the block independence flag of the frame descriptor"


@pytest.mark.parametrize("codec", COMPRESSING)
def test_bytes_of_no_codec_are_corrupt(codec: Codec) -> None:
    good = compress(codec, b"0123456789" * 1000)
    for bad in (b"", b"\xff" * 30, good[: len(good) // 2], zlib.compress(b"x")):
        with pytest.raises(CorruptMessage):
            decompress(codec, bad)


def test_a_block_length_that_leaves_a_xerial_frame_is_corrupt() -> None:
    head = compress(Codec.SNAPPY, b"")
    for tail in (struct.pack(">i", -5), struct.pack(">i", 1 << 30), struct.pack(">i", 0), b"\0\0"):
        with pytest.raises(CorruptMessage):
            decompress(Codec.SNAPPY, head + tail)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_codec_numbers_without_a_codec_are_refused(codec: int) -> None:
    with pytest.raises(UnsupportedCompressionType):
        compress(codec, b"x")
    with pytest.raises(UnsupportedCompressionType):
        decompress(codec, b"x")


def test_codecs_are_named_as_in_a_setting() -> None:
    assert [codec_named(name) for name in ("none", "gzip", "snappy", "lz4", "zstd")] == [0, 1, 2, 3, 4]
    with pytest.raises(UnsupportedCompressionType):
        codec_named("brotli")
