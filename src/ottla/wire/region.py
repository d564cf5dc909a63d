"""What may stand in a `records` field of an answer: bytes, or a stretch of a file that never enters Python.

Wire puts a region's size on the wire and hands the region on; net sends it. Neither looks inside.
"""

from __future__ import annotations

from typing import Protocol


class Region(Protocol):
    """A stretch of a file that the connection sends by itself (storage's FileRegion is one)."""

    @property
    def size(self) -> int:
        """Bytes that will be sent."""


RecordBytes = bytes | bytearray | memoryview | Region


def size_of(part: RecordBytes) -> int:
    """How many bytes the part puts on the wire."""
    return len(part) if isinstance(part, (bytes, bytearray, memoryview)) else part.size
