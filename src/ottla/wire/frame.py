"""Frames: a four-byte big-endian length, then that many bytes. No I/O: whoever owns the socket feeds and takes.

Station 2 of 9 on a batch's journey. Before: net/connection.py, which received the bytes. After: broker/dispatch.py.

A length is judged when its four bytes are there, before memory is spent on what they announce. The limit is an argument
of each step because it rises when a connection has signed in.
"""

from __future__ import annotations

import struct

_LENGTH = struct.Struct(">i")
LENGTH_BYTES = _LENGTH.size


class FrameRefused(Exception):
    """The peer announced a frame that we refuse to hold, or no length at all. The stream is lost: close it."""

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(f"a frame of {length} bytes is announced; the limit is {limit}")
        self.length = length
        self.limit = limit


def frame_length(buffer: bytes | bytearray | memoryview, at: int, end: int, *, frame_bytes_max: int) -> int | None:
    """How many bytes the frame at `at` has after its prefix; None if the prefix is not all there (`end` is exclusive).

    >>> frame_length(bytes([0, 0, 0, 9]), 0, 4, frame_bytes_max=1024)
    9
    """
    if end - at < LENGTH_BYTES:
        return None
    (length,) = _LENGTH.unpack_from(buffer, at)
    if not 0 <= length <= frame_bytes_max:
        raise FrameRefused(length, frame_bytes_max)
    return int(length)


def with_length(*parts: bytes | bytearray | memoryview) -> bytes:
    """One frame of the parts.

    >>> with_length(b"he", b"ad").hex(" ")
    '00 00 00 04 68 65 61 64'
    """
    return b"".join((length_prefix(sum(len(part) for part in parts)), *parts))


def length_prefix(size: int) -> bytes:
    """The four bytes before a frame of `size` bytes."""
    return _LENGTH.pack(size)


class FrameDecoder:
    """Cuts a byte stream into frames; for clients and tests. A server cuts its receive buffer with `frame_length`.

    >>> decoder = FrameDecoder(frame_bytes_max=1024)
    >>> decoder.receive_data(length_prefix(9) + b"half")
    >>> decoder.next_frame() is None        # come back with more bytes
    True
    >>> decoder.receive_data(b" of a")
    >>> decoder.next_frame()
    b'half of a'
    """

    __slots__ = ("_buffer", "_frame_bytes_max")

    def __init__(self, *, frame_bytes_max: int) -> None:
        assert frame_bytes_max > 0
        self._buffer = bytearray()
        self._frame_bytes_max = frame_bytes_max

    def receive_data(self, data: bytes | memoryview) -> None:
        """Remember `data`. Parsing, and every error, belongs to `next_frame`."""
        self._buffer += data

    def next_frame(self) -> bytes | None:
        """Take one whole frame, or None when more bytes are needed; FrameRefused if it cannot be held."""
        length = frame_length(self._buffer, 0, len(self._buffer), frame_bytes_max=self._frame_bytes_max)
        if length is None or len(self._buffer) < LENGTH_BYTES + length:
            return None
        end = LENGTH_BYTES + length
        frame = bytes(memoryview(self._buffer)[LENGTH_BYTES:end])
        del self._buffer[:end]  # amortised O(1): CPython moves the start, not the bytes
        return frame
