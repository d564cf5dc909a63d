"""Sends a follower's Fetch requests on a connection to the leader, and cuts the responses out of the bytes that arrive.

The bytes of a response stay in one buffer, which is used again and again: the records go from there to the log's file.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ottla.core.errors import NetworkException
from ottla.net.outbound import outbound_for
from ottla.wire.frame import FRAME_BYTES_MAX, LENGTH_BYTES, FrameRefused, frame_length

if TYPE_CHECKING:
    from ottla.client.connection import Connection

BUFFER_BYTES = 32 << 10
SMALL_FRAMES_MAX = 64
"""Frames in a row that a small buffer can hold, after which a large buffer is released."""


class FetchListener:
    """Processes the responses of a channel."""

    def answered(self, frame: memoryview) -> None:
        """Process a response. The frame is valid until this returns. Must not raise."""
        raise NotImplementedError

    def disconnected(self, error: Exception) -> None:
        """Take the error, once, when no response can come any more."""
        raise NotImplementedError


class FetchChannel(asyncio.BufferedProtocol):
    """One connection, from the moment when its owner has negotiated the versions."""

    def __init__(self, connection: Connection, listener: FetchListener) -> None:
        self._listener = listener
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0  # the bytes that have arrived and are not processed are [start, end)
        self._small_frames = 0  # in a row, while the buffer is large
        self._is_over = False
        self._peer = connection.address
        transport, self._before = connection.hand_over(self)
        self._transport = transport
        self._outbound = outbound_for(transport, on_drained=self._nothing, on_error=self._end_with)

    def _nothing(self) -> None:
        """Do nothing: requests are few and small, none waits until the socket takes them."""

    def send(self, frame: bytearray) -> None:
        """Send a request."""
        self._outbound.send((frame,))

    def close(self) -> None:
        """Call the listener no more. The connection is closed by its owner."""
        self._is_over = True
        self._outbound.close()

    # ---- Callbacks of asyncio

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return the free part of the buffer, for the next bytes of the socket."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._buffer):
            held = self._end - self._start
            self._view[:held] = bytes(self._view[self._start : self._end])
            self._start, self._end = 0, held
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Process `nbytes` that have arrived."""
        self._end += nbytes
        try:
            while not self._is_over and self._start < self._end:
                start, end = self._start, self._end
                length = frame_length(self._buffer, start, end, FRAME_BYTES_MAX)
                whole = LENGTH_BYTES + length
                if length < 0 or end - start < whole:
                    if length >= 0 and whole > len(self._buffer):
                        self._grow(whole)
                    return
                self._start = start + whole
                self._listener.answered(self._view[start + LENGTH_BYTES : self._start])
                if len(self._buffer) > BUFFER_BYTES:
                    self._shrink(whole)
        except FrameRefused as error:
            self._end_with(NetworkException(f"{self._peer} sent no response of Kafka's protocol: {error}"))

    def eof_received(self) -> bool:
        """Return False, so that the connection closes: the leader has closed it."""
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the channel because the connection is gone; its owner waits for this, too."""
        self._before.connection_lost(exc if isinstance(exc, Exception) else None)
        why = f": {exc}" if exc is not None else ""
        self._end_with(NetworkException(f"the connection to {self._peer} was closed{why}"))

    def pause_writing(self) -> None:
        """Inform the protocol that had the connection before that the transport's queue is long."""
        self._outbound.is_blocked = True
        self._before.pause_writing()

    def resume_writing(self) -> None:
        """Inform the protocol that had the connection before that the transport's queue is short again."""
        self._before.resume_writing()
        self._outbound.writable()

    def _end_with(self, error: Exception) -> None:
        if not self._is_over:
            self.close()
            self._listener.disconnected(error)

    # ---- The buffer

    def _grow(self, size_bytes: int) -> None:
        """Make space for a response that the buffer cannot hold."""
        held = self._end - self._start
        buffer = bytearray(size_bytes)
        buffer[:held] = self._view[self._start : self._end]
        self._use(buffer, held)

    def _shrink(self, frame_bytes: int) -> None:
        """Release a large buffer that has not been needed for a while."""
        self._small_frames = self._small_frames + 1 if frame_bytes <= BUFFER_BYTES else 0
        held = self._end - self._start
        if self._small_frames >= SMALL_FRAMES_MAX and held <= BUFFER_BYTES:
            buffer = bytearray(BUFFER_BYTES)
            buffer[:held] = self._view[self._start : self._end]
            self._use(buffer, held)

    def _use(self, buffer: bytearray, held: int) -> None:
        self._buffer, self._view = buffer, memoryview(buffer)
        self._start, self._end = 0, held
        self._small_frames = 0
