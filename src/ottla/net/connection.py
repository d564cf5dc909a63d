"""One client's connection: bytes in, whole frames out to the dispatcher, answers back in request order.

Bytes arrive in a buffer of this connection that is used again and again; a request's body is a view into it, good
only until `dispatch` returns. Requests of one connection are begun one at a time, as in Kafka; only those that the
dispatcher calls pipelined (Produce) may be begun while earlier ones still wait for the disk: that keeps a producer's
batches in order and fast.

Station 1 of 9 on a batch's journey. After: wire/frame.py.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from ottla.net.alert import Alert
from ottla.net.outbound import Outbound, Part
from ottla.wire.frame import LENGTH_BYTES, FrameRefused, frame_length

log = logging.getLogger(__name__)

BUFFER_BYTES = 32 * 1024  # a connection's own, enough for every request but large batches
_ERRORS_OF_FILES = frozenset({errno.EIO, errno.ESTALE, errno.EBADMSG})
UNANSWERED_MAX = 64  # pipelined requests begun and not answered; clients use 5 (librdkafka up to 1,000,000)


class Budget(Protocol):
    """Where memory for large requests comes from (quotas/budget.py)."""

    def take(self, size_bytes: int) -> bool: ...  # noqa: D102

    def give(self, size_bytes: int) -> None: ...  # noqa: D102

    def call_when_free(self, retry: Callable[[], None]) -> None: ...  # noqa: D102


class Answer:
    """The place of one request's answer in its connection's order."""

    __slots__ = ("_connection", "parts", "pipelined")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.parts: Sequence[Part] | None = None
        self.pipelined = False

    def send(self, parts: Sequence[Part]) -> None:
        """The answer is ready; it leaves when those before it have left. No parts: the request has no answer."""
        assert self.parts is None, "a request is answered once"
        self.parts = parts
        self._connection.answer_ready()


class Dispatch(Protocol):
    """What the connection needs of broker/dispatch.py."""

    def __call__(self, connection: Connection, frame: memoryview, answer: Answer) -> None:
        """Begin one request. Sets `answer.pipelined`; calls `answer.send` now or later, always exactly once."""
        ...


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one accepted socket."""

    def __init__(
        self,
        *,
        dispatch: Dispatch,
        on_open: Callable[[Connection], bool],
        on_close: Callable[[Connection], None],
        budget: Budget,
        alert: Alert,
        frame_bytes_max: int,
        now: Callable[[], float],
        listener: str,
    ) -> None:
        self.listener = listener
        self.host = ""
        self.state: dict[str, object] = {}  # what handlers remember of this client (software name, ...)
        self.last_active = self.frame_began = now()
        self._dispatch, self._on_open, self._on_close = dispatch, on_open, on_close
        self._budget, self._alert, self._frame_bytes_max, self._now = budget, alert, frame_bytes_max, now
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0  # the bytes received and not yet begun are [start, end)
        self._drawn_bytes = 0  # drawn from the budget for a larger buffer
        self._waits_for_budget = False
        self._answers: deque[Answer] = deque()
        self.context: object = None  # the dispatcher's: what is the same from one request of this client to the next
        self._blocking: Answer | None = None  # begun, not pipelined, not answered: nothing is begun before it is
        self._transport: asyncio.Transport | None = None
        self._outbound: Outbound | None = None
        self._paused = self._processing = self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()  # work that is in vain once the client has gone

    # ---- asyncio calls these -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept, unless there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        inner = self._transport.get_extra_info("socket")
        self.host = (self._transport.get_extra_info("peername") or ("unknown",))[0]
        inner.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            own = socket.fromfd(inner.fileno(), inner.family, inner.type)
        except OSError as error:  # no file handle left: this client has to come again
            self._peer_gone(error)
            return
        own.setblocking(False)
        self._outbound = Outbound(own, on_drained=self._go_on, on_error=self._peer_gone)
        if not self._on_open(self):
            self.close()

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Forget the client; handlers that still work for it answer into the void."""
        self._closing = True
        if self._outbound is not None:
            self._outbound.close()
        self._give_back()
        for task in self._tasks:
            task.cancel()
        self._on_close(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Where the next bytes go."""
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._buffer):
            self._make_room()
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """`nbytes` have arrived."""
        if self._start == self._end:
            self.frame_began = self._now()
        self._end += nbytes
        self._process()

    def eof_received(self) -> bool:
        """The client has stopped sending: Kafka's clients do so only to leave."""
        return False

    # ---- Taking requests ---------------------------------------------------------------------------------------

    def _process(self) -> None:
        """Begin every whole request that may be begun now; then decide whether to read on."""
        if self._processing or self._closing:
            return
        self._processing = True
        try:
            while self._may_begin() and (frame := self._next_frame()) is not None:
                self._begin(frame)
        except FrameRefused as error:
            log.warning("closing the connection from %s: %s", self.host, error)
            self.close()
        finally:
            self._processing = False
        self._read_or_pause()

    def _may_begin(self) -> bool:
        return (
            self._blocking is None
            and not self._closing
            and len(self._answers) < UNANSWERED_MAX
            and not (self._outbound is not None and self._outbound.blocked)
        )

    def _next_frame(self) -> memoryview | None:
        """Cut the next whole frame out of the buffer, or see to it that there is room for it."""
        start, end = self._start, self._end
        length = frame_length(self._buffer, start, end, frame_bytes_max=self._frame_bytes_max)
        if length is None:
            return None
        whole = LENGTH_BYTES + length
        if end - start < whole:
            if whole > len(self._buffer):
                self._grow(whole)
            return None
        self._start = start + whole
        return self._view[start + LENGTH_BYTES : self._start]

    def _begin(self, frame: memoryview) -> None:
        now = self.last_active = self._now()
        self.frame_began = now
        answer = Answer(self)
        self._answers.append(answer)
        self._dispatch(self, frame, answer)
        if answer.parts is not None:
            self._alert.stay()
        elif not answer.pipelined:
            self._blocking = answer

    def answer_ready(self) -> None:
        """Send the answers whose turn it is, then begin what waited for them."""
        answers = self._answers
        while answers and answers[0].parts is not None:
            first = answers.popleft()
            if first is self._blocking:
                self._blocking = None
            if first.parts and self._outbound is not None:
                self._outbound.send(first.parts)
        self._go_on()

    def _go_on(self) -> None:
        if self._start != self._end or self._paused:
            self._process()

    def _read_or_pause(self) -> None:
        """Back-pressure goes to the socket: a full buffer that nobody may empty is not read into."""
        if not self._paused and not self._waits_for_budget and self._end < len(self._buffer):
            return  # the usual case
        if self._closing or self._transport is None:
            return
        full = self._start == 0 and self._end == len(self._buffer)
        pause = self._waits_for_budget or (full and not self._may_begin())
        if pause and not self._paused:
            self._transport.pause_reading()
        elif self._paused and not pause:
            self._transport.resume_reading()
        self._paused = pause

    # ---- The buffer --------------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Move what is unfinished to the front."""
        held = self._end - self._start
        self._view[:held] = bytes(self._view[self._start : self._end])
        self._start, self._end = 0, held

    def _grow(self, size_bytes: int) -> None:
        """A larger buffer for a larger request, if the budget allows; otherwise stop reading until it does."""
        wanted = size_bytes - self._drawn_bytes
        if not self._budget.take(wanted):
            if not self._waits_for_budget:
                self._waits_for_budget = True
                self._budget.call_when_free(self._budget_is_free)
            return
        self._drawn_bytes += wanted
        held = self._end - self._start
        buffer = bytearray(size_bytes)  # zero pages until bytes arrive: announcing a size costs a client nothing
        buffer[:held] = self._view[self._start : self._end]
        self._buffer, self._view = buffer, memoryview(buffer)
        self._start, self._end = 0, held

    def _budget_is_free(self) -> None:
        self._waits_for_budget = False
        self._go_on()

    def _give_back(self) -> None:
        if self._drawn_bytes:
            drawn, self._drawn_bytes = self._drawn_bytes, 0
            self._budget.give(drawn)

    def shrink(self) -> None:
        """Give a large buffer back when nothing is in it; the server asks this of quiet connections."""
        if self._drawn_bytes and self._start == self._end and not self._processing:
            self._buffer = bytearray(BUFFER_BYTES)
            self._view = memoryview(self._buffer)
            self._start = self._end = 0
            self._give_back()

    def cancel_when_lost(self, task: asyncio.Task[None]) -> None:
        """Cancel the task if the client goes before `keep` is called."""
        self._tasks.add(task)

    def keep(self, task: asyncio.Task[None]) -> None:
        """The reverse of `cancel_when_lost`."""
        self._tasks.discard(task)

    # ---- Ending ------------------------------------------------------------------------------------------------

    @property
    def receiving(self) -> bool:
        """Whether a request has begun to arrive and is not whole."""
        return self._end > self._start and self._may_begin()

    @property
    def answering(self) -> bool:
        """Whether some request has not been answered."""
        return bool(self._answers) or (self._outbound is not None and self._outbound.blocked)

    def stop_requests(self) -> None:
        """Begin no further request; what has begun is answered."""
        self._closing = True
        if self._transport is not None and not self._paused:
            self._transport.pause_reading()
            self._paused = True

    def close(self) -> None:
        """End the connection now."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def _peer_gone(self, error: OSError) -> None:
        of_a_file = error.errno in _ERRORS_OF_FILES  # sendfile reads and sends: a socket has no such errors
        level = logging.ERROR if of_a_file else logging.DEBUG
        log.log(level, "connection from %s ended while answering: %s", self.host, error)
        self.close()
