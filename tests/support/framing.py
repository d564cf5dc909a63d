"""A decoder of whole frames for tests that read a socket or a stream of bytes."""

from __future__ import annotations

from ottla.wire.frame import LENGTH_BYTES, frame_length, length_prefix


class FrameDecoder:
    """Cuts a stream into frames by the broker's own `frame_length`."""

    def __init__(self, *, frame_bytes_max: int) -> None:
        self._buffer = bytearray()
        self._frame_bytes_max = frame_bytes_max

    def receive_data(self, data: bytes | memoryview) -> None:
        """Keep `data` until it is whole frames."""
        self._buffer += data

    def next_frame(self) -> bytes | None:
        """Take one whole frame, or None when more bytes are needed. Raises FrameRefused."""
        length = frame_length(self._buffer, 0, len(self._buffer), self._frame_bytes_max)
        if length < 0 or len(self._buffer) < LENGTH_BYTES + length:
            return None
        end = LENGTH_BYTES + length
        frame = bytes(self._buffer[LENGTH_BYTES:end])
        del self._buffer[:end]
        return frame


def framed(*parts: bytes | bytearray | memoryview) -> bytes:
    """One frame of the parts."""
    return b"".join((length_prefix(sum(len(part) for part in parts)), *parts))
