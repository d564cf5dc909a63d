"""Bytes that cost a peer little and would make a reader hold a gigabyte."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import cramjam
import lz4.frame
import pytest
import zstandard

from ottla.core.errors import CorruptMessage
from ottla.records.codecs import Codec

BOMB_BYTES = 1 << 30
SPENT_MAX_KB = 64 << 10
MEASURABLE = Path("/proc/self/clear_refs").exists()
_PIECE = bytes(1 << 20)
_PIECES = BOMB_BYTES // len(_PIECE)
_GZIP_PARTS = 16
_XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


@cache
def _gzip() -> bytes:
    """One member. After a full flush the same input gives the same bytes, so that little of it is compressed."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    part = compressor.compress(bytes(BOMB_BYTES // _GZIP_PARTS)) + compressor.flush(zlib.Z_FULL_FLUSH)
    checksum = 0
    for _ in range(_PIECES):
        checksum = zlib.crc32(_PIECE, checksum)
    header, last_block = b"\x1f\x8b\x08\0\0\0\0\0\x02\xff", b"\x03\0"
    return header + part * _GZIP_PARTS + last_block + struct.pack("<II", checksum, BOMB_BYTES)


def _gzip_members() -> bytes:
    return gzip.compress(_PIECE) * _PIECES


@cache
def _zstd() -> bytes:
    window_of_level_19 = zstandard.ZstdCompressionParameters.from_level(1, window_log=23)
    compressor = zstandard.ZstdCompressor(compression_params=window_of_level_19).compressobj()
    return b"".join(compressor.compress(_PIECE) for _ in range(_PIECES)) + compressor.flush()


@cache
def _zstd_with_the_largest_window() -> bytes:
    wide = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    compressor = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    return b"".join(compressor.compress(_PIECE) for _ in range(_PIECES)) + compressor.flush()


def _zstd_frames() -> bytes:
    return zstandard.ZstdCompressor(level=19).compress(_PIECE) * _PIECES


@cache
def _lz4() -> bytes:
    compressor = lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX4MB)
    begin = compressor.begin()
    return b"".join((begin, *(compressor.compress(_PIECE) for _ in range(_PIECES)), compressor.flush()))


def _snappy_that_says_so() -> bytes:
    """A kilobyte that says it is a gigabyte: what a reader that trusts it would ask the system for."""
    return b"\x80\x80\x80\x80\x04" + b"\0" * 1024


def _snappy() -> bytes:
    return bytes(cramjam.snappy.compress_raw(bytes(64 << 20)))


def _xerial() -> bytes:
    block = bytes(cramjam.snappy.compress_raw(bytes(32 << 20)))
    return _XERIAL + (struct.pack(">i", len(block)) + block) * 2


def _xerial_that_says_so() -> bytes:
    block = _snappy_that_says_so()
    return _XERIAL + struct.pack(">i", len(block)) + block


BOMBS: dict[str, tuple[Codec, Callable[[], bytes]]] = {
    "gzip": (Codec.GZIP, _gzip),
    "gzip of many members": (Codec.GZIP, _gzip_members),
    "snappy": (Codec.SNAPPY, _snappy),
    "snappy that says so": (Codec.SNAPPY, _snappy_that_says_so),
    "xerial": (Codec.SNAPPY, _xerial),
    "xerial that says so": (Codec.SNAPPY, _xerial_that_says_so),
    "lz4": (Codec.LZ4, _lz4),
    "zstd": (Codec.ZSTD, _zstd),
    "zstd with the largest window": (Codec.ZSTD, _zstd_with_the_largest_window),
    "zstd of many frames": (Codec.ZSTD, _zstd_frames),
}
"""By name: the codec, and what makes the compressed bytes. Snappy reaches 21 to 1 at most, so its real ones are 64 MiB."""


def peak_kb() -> int:
    """The greatest resident size of this process since it was forgotten."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def spent_kb(read: Callable[[], object], *, error: type[Exception] = CorruptMessage) -> int:
    """How far the resident size rises while `read` is refused."""
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_kb()
    with pytest.raises(error):
        read()
    return peak_kb() - before
