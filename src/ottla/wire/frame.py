"""Reads and writes frames: a four-byte big-endian length, then that many bytes. No I/O.

Step 2 of 9 on the path of a batch (ARCHITECTURE.md).
Before: net/connection.py, which received the bytes. Next: broker/requests/driver.py.

A length is checked as soon as its four bytes are there, before memory is allocated for the frame. The limit is an
argument of each call because it rises when a connection has authenticated.
"""

from __future__ import annotations

import struct
from typing import Final

_LENGTH: Final = struct.Struct(">i")
_READ_LENGTH: Final = _LENGTH.unpack_from
LENGTH_BYTES: Final = 4
FRAME_BYTES_MAX: Final = 512 << 20
"""No response is larger: a fetch asks for far less. The bytes "HTTP" read as a length are 1.2 GB."""

# The first bytes of TLS where a frame should begin: the type of the record, and the major version since SSL 3.0.
TLS_ALERT: Final = b"\x15\x03"
TLS_HANDSHAKE: Final = b"\x16\x03"


class FrameRefused(Exception):
    """The peer announced a frame above the limit, or no length at all. The stream is out of step: close it."""

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(f"a frame of {length} bytes is announced; the limit is {limit}")
        self.length = length
        self.limit = limit


def frame_length(buffer: bytes | bytearray | memoryview, at: int, end: int, frame_bytes_max: int) -> int:
    """Return the bytes of the frame at `at` after its length; -1 if the length is incomplete (`end` is exclusive).

    Raises FrameRefused.

    >>> frame_length(bytes([0, 0, 0, 9]), 0, 4, 1024)
    9
    """
    if end - at < LENGTH_BYTES:
        return -1
    length: int = _READ_LENGTH(buffer, at)[0]
    if not 0 <= length <= frame_bytes_max:
        raise FrameRefused(length, frame_bytes_max)
    return length


def length_prefix(size: int) -> bytes:
    """Return the four bytes before a frame of `size` bytes.

    >>> length_prefix(4).hex(" ")
    '00 00 00 04'
    """
    return _LENGTH.pack(size)
