"""Compresses and decompresses the records of batches. cramjam does the work; the framing and the limits are ours.

What comes from a peer may be a bomb: `decompress` never makes more than `limit` bytes, and finds out by giving the
codec a buffer it cannot leave. Snappy comes in two framings: Java clients send xerial's (a magic, then blocks with
lengths), librdkafka sends one raw block; both are read, xerial's is written.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Final

from ottla.core.errors import CorruptMessage, UnsupportedCompressionType

DECOMPRESSED_BYTES_MAX = 24 << 20
"""Maximum size of a decompressed batch: far above what clients build. zstd may hold as much again as its window."""
_RATIO_MAX, _ABSOLUTE_MAX = 8, 256 << 20  # large batches, for which a topic's max.message.bytes was raised, hold more

_FIRST_GUESS_BYTES = 64 << 10
_FIRST_GUESS_RATIO, _GROWTH = 8, 4
_MAPPED_BYTES: Final = 256 << 10
_PRIVATE: Final[int] = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS if hasattr(mmap, "MAP_ANONYMOUS") else 0
_FULL = "failed to write whole buffer"
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, oldest version that can read it
_XERIAL_BLOCK_BYTES = 32 << 10
_LENGTH = struct.Struct(">i")
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_HEADER_BYTES = 7  # magic, flags, block size, checksum of the header
_LZ4_SIZED_HEADER_BYTES: Final = _LZ4_HEADER_BYTES + 8
_GZIP_BYTES_MIN: Final = 18  # header and trailer
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_HEADER_BYTES_MAX: Final = 18
_ZSTD_SINGLE_SEGMENT: Final = 0x20
_LZ4_INDEPENDENT, _LZ4_BLOCK_CHECKSUM, _LZ4_CONTENT_SIZE, _LZ4_CONTENT_CHECKSUM = 0x20, 0x10, 0x08, 0x04


def _cramjam() -> Any:
    """Import the library with the first compressed batch: a broker that sees none starts earlier, in 1.6 MiB less."""
    import cramjam

    return cramjam


class TooMuch(Exception):
    """It holds more than the limit. Raised by `decompress_within` alone."""


class Codec(IntEnum):
    """The number in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODECS: Final = {codec.name.lower(): codec.value for codec in Codec}
"""The numbers by their names in clients' options."""


def codec_named(name: str) -> Codec:
    """Return the codec that a `compression.type` names: none, gzip, snappy, lz4 or zstd.

    >>> codec_named("lz4")
    <Codec.LZ4: 3>
    """
    try:
        return Codec[name.upper()]
    except KeyError:
        raise UnsupportedCompressionType(f"there is no codec {name!r}") from None


def decompressed_max(compressed_bytes: int) -> int:
    """Return the most that so many bytes may decompress to, where the caller has no limit of its own.

    24 MiB, or eight times as much as came, up to 256 MiB: what costs a peer little never costs us much.

    >>> decompressed_max(1000) >> 20, decompressed_max(10 << 20) >> 20, decompressed_max(1 << 30) >> 20
    (24, 80, 256)
    """
    return min(max(DECOMPRESSED_BYTES_MAX, _RATIO_MAX * compressed_bytes), _ABSOLUTE_MAX)


def compress(codec: int, data: bytes | bytearray | memoryview, *, level: int | None = None) -> bytes:
    """Compress `data` under a codec, as every Kafka client can read it.

    `level` is Kafka's (`compression.<codec>.level`); None, and -1 for gzip, is the codec's own choice. Snappy has none.
    """
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return bytes(_cramjam().gzip.compress(data, level=None if level == -1 else level))
        case Codec.SNAPPY:
            return _xerial_compress(memoryview(data))
        case Codec.LZ4:
            # Java's reader refuses frames whose blocks lean on one another, which is what cramjam makes by default.
            compressor = _cramjam().lz4.Compressor(level=level, block_linked=False)
            compressor.compress(bytes(data))
            return bytes(compressor.finish())
        case Codec.ZSTD:
            return bytes(_cramjam().zstd.compress(data, level=level))
        case _:
            raise UnsupportedCompressionType(f"there is no codec {codec}")


def decompress(codec: int, data: bytes | bytearray | memoryview, *, limit: int | None = None) -> bytes:
    """Decompress `data`. Raises CorruptMessage if it is not of that codec, or holds more than `limit` bytes.

    Without a limit `decompressed_max` sets it.
    """
    try:
        return decompress_within(codec, data, decompressed_max(len(data)) if limit is None else limit)
    except TooMuch as error:
        raise CorruptMessage(str(error)) from error


def decompress_within(codec: int, data: bytes | bytearray | memoryview, limit: int) -> bytes:
    """Decompress `data` as `decompress` does, but raise TooMuch if the result exceeds `limit` bytes."""
    return bytes(decompress_view(codec, data, limit))


def decompress_view(codec: int, data: bytes | bytearray | memoryview, limit: int) -> memoryview:
    """Decompress `data` within `limit` bytes, without a copy of the result, for what is read and dropped at once."""
    match codec:
        case Codec.NONE:
            if len(data) > limit:
                raise TooMuch(f"{len(data)} bytes of records; the limit is {limit}")
            return memoryview(data)
        case Codec.GZIP:
            return _within(codec, _cramjam().gzip, data, limit)
        case Codec.SNAPPY:
            return _snappy_decompress(memoryview(data), limit)
        case Codec.LZ4:
            return _within(codec, _cramjam().lz4, data, limit)
        case Codec.ZSTD:
            return _within(codec, _cramjam().zstd, data, limit)
        case _:
            raise UnsupportedCompressionType(f"there is no codec {codec}")


def release(view: memoryview) -> None:
    """Return the memory of what was decompressed if it is large: without the interpreter's lock, which dropping has."""
    mapping = view.obj
    if isinstance(mapping, mmap.mmap):
        with contextlib.suppress(BufferError):  # an error refers to a part of it: freed with the error
            view.release()
            mapping.close()


def _stated_bytes(codec: int, data: bytes | bytearray | memoryview) -> int:
    """Return the size that a peer says its data decompresses to; 0 if it does not say. It may lie."""
    size = len(data)
    if codec == Codec.GZIP and size >= _GZIP_BYTES_MIN:
        return int.from_bytes(data[-4:], "little")  # of the last member
    if (
        codec == Codec.LZ4
        and size >= _LZ4_SIZED_HEADER_BYTES
        and bytes(data[:4]) == _LZ4_MAGIC
        and data[4] & _LZ4_CONTENT_SIZE
    ):
        return int.from_bytes(data[6:14], "little")
    if codec == Codec.ZSTD and size >= _ZSTD_HEADER_BYTES_MAX and bytes(data[:4]) == _ZSTD_MAGIC:
        flags = data[4]
        at = 5 + (not flags & _ZSTD_SINGLE_SEGMENT) + (0, 1, 2, 4)[flags & 3]  # after the window and the dictionary
        width = (1 if flags & _ZSTD_SINGLE_SEGMENT else 0, 2, 4, 8)[flags >> 6]
        return int.from_bytes(data[at : at + width], "little") + (256 if width == 2 else 0)
    return 0


def _within(codec: int, module: Any, data: bytes | bytearray | memoryview, limit: int) -> memoryview:
    """Decompress into a buffer of the stated size, or into buffers of growing size.

    A size above the limit is refused at once: data whose size is stated wrongly is not valid, whatever it is.
    """
    stated = _stated_bytes(codec, data)
    if stated > limit:
        raise TooMuch(f"decompresses to {stated} bytes; the limit is {limit}")
    size = min(limit, max(_FIRST_GUESS_BYTES, len(data) * _FIRST_GUESS_RATIO, stated))
    while True:
        out = _new_buffer(size)
        try:
            written = module.decompress_into(data, out)
        except _cramjam().DecompressionError as error:
            # cramjam has one class for a full buffer and for bad bytes; only the words differ. Were they to change, a
            # test would see large batches refused; trying more room for bad bytes would let a peer burn our time.
            release(out)  # before the next is made
            del out  # no error may keep it
            if _FULL not in str(error):
                raise CorruptMessage(f"not decompressed: {error}") from None
            if size == limit:
                raise TooMuch(f"decompresses to more than {limit} bytes") from None
            size = min(limit, size * _GROWTH)
        else:
            return out[:written]


def _new_buffer(size: int) -> memoryview:
    """Return zeros to decompress into.

    Python fills a bytearray while it has the interpreter's lock, and a new page costs most of that time: 20 ms for 24
    MiB, in which the event loop waits. A mapping gets its pages from the codec, which has released the lock.
    """
    if size < _MAPPED_BYTES or not _PRIVATE:
        return memoryview(bytearray(size))
    return memoryview(mmap.mmap(-1, size, flags=_PRIVATE))


def _xerial_compress(data: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(_cramjam().snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _snappy_decompress(data: memoryview, limit: int) -> memoryview:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        out = _new_buffer(_snappy_length(data, limit))
        _snappy_block(data, out)
        return out
    blocks = list(_xerial_blocks(data))
    lengths, left = [], limit
    for block in blocks:
        length = _snappy_length(block, left)
        lengths.append(length)
        left -= length
    out, at = _new_buffer(limit - left), 0
    for block, length in zip(blocks, lengths, strict=True):
        _snappy_block(block, out[at : at + length])
        at += length
    return out


def _xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    at = len(_XERIAL_HEADER)
    if len(data) < at:
        raise CorruptMessage("a xerial header that ends early")
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise CorruptMessage("a snappy block's length that ends early")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if not 0 < length <= len(data) - at:
            raise CorruptMessage(f"a snappy block of {length} bytes with {len(data) - at} left")
        yield data[at : at + length]
        at += length


def _snappy_length(block: memoryview, limit: int) -> int:
    """Return the decompressed length that a raw block begins with.

    It is compared with the limit before memory is spent.
    """
    if not len(block):
        raise CorruptMessage("snappy: no bytes at all")
    try:
        length = int(_cramjam().snappy.decompress_raw_len(block))
    except _cramjam().DecompressionError as error:
        raise CorruptMessage(f"snappy: {error}") from None
    if length > limit:
        raise TooMuch(f"a snappy block of {length} bytes; {limit} are allowed")
    return length


def _snappy_block(block: memoryview, out: memoryview) -> None:
    """Decompress one raw block into a buffer of its length."""
    if not len(out):
        return
    try:
        written = _cramjam().snappy.decompress_raw_into(block, out)
    except _cramjam().DecompressionError as error:
        raise CorruptMessage(f"snappy: {error}") from None
    if written != len(out):
        raise CorruptMessage(f"snappy: a block of {written} bytes that begins with the length {len(out)}")


def check_lz4_frame(data: memoryview) -> None:
    """Refuse an LZ4 frame that Kafka's own reader refuses. Raises CorruptMessage.

    It reads one frame, of version 1, with independent blocks and without a dictionary. cramjam reads more than that,
    and so do some clients: what they write would be unreadable to Java consumers.
    """
    if len(data) < _LZ4_HEADER_BYTES or bytes(data[:4]) != _LZ4_MAGIC:
        raise CorruptMessage("lz4: no frame")
    flags, block_size = data[4], data[5]
    if flags & 0xC3 != 0x40:
        raise CorruptMessage("lz4: a frame of another version than 1, or with a dictionary")
    if not flags & _LZ4_INDEPENDENT:
        raise CorruptMessage("lz4: a frame with linked blocks, which Java clients cannot read")
    if block_size & 0x8F or block_size >> 4 < 4:
        raise CorruptMessage("lz4: a frame with an unknown block size")
    at = _LZ4_HEADER_BYTES + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    checksum_bytes = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    while at + 4 <= len(data):
        length = int.from_bytes(data[at : at + 4], "little") & 0x7FFFFFFF
        at += 4
        if not length:
            at += 4 if flags & _LZ4_CONTENT_CHECKSUM else 0
            break
        at += length + checksum_bytes
    if at != len(data):
        raise CorruptMessage("lz4: a frame that ends early, or bytes after it")
