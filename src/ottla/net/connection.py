"""Reads whole request frames from one client's socket and sends the responses back in request order.

Bytes arrive in a buffer that all connections of a loop share; the body of a request is a view into it, valid only until
`dispatch` returns. A connection has a buffer of its own only from the moment when it has to keep bytes, until it is
quiet: an idle one has none. Requests of one connection begin one at a time, as in Kafka; only those whose handler marks
them as pipelined (Produce) begin while earlier ones still wait for the disk: that keeps a producer's batches in order
and fast.

Step 1 of 9 on the path of a batch (ARCHITECTURE.md). Next: wire/frame.py.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from ottla.core.security_protocols import SecurityProtocol
from ottla.net.busy_poll import BusyPoller
from ottla.net.identity import ANONYMOUS, ConnectionIdentity
from ottla.net.malformed_requests import MalformedRequestLog, foreign_protocol
from ottla.net.outbound import Outbound, Part, outbound_for
from ottla.net.tls import NO_TLS, TlsClient, TlsStream
from ottla.wire.errors import AnswerTooLarge, MalformedRequest
from ottla.wire.frame import LENGTH_BYTES, FrameRefused, frame_length

log = logging.getLogger(__name__)

BUFFER_BYTES: Final = 32 * 1024  # enough for every request but large batches
_FILE_ERRORS: Final = frozenset({errno.EIO, errno.ESTALE, errno.EBADMSG})
UNANSWERED_MAX: Final = 64  # pipelined requests begun and not answered; clients use 5 (librdkafka up to 1,000,000)


NO_FETCH: Final = -1
"""In place of the bytes of records in a response, where its throttle time is set: the request is no Fetch."""


class Budget(Protocol):
    """Limits the memory of large requests (limits/budget.py)."""

    def try_reserve(self, size_bytes: int) -> bool: ...  # noqa: D102

    def release(self, size_bytes: int) -> None: ...  # noqa: D102

    def call_when_free(self, retry: Callable[[], None]) -> None: ...  # noqa: D102


class ReceiveBuffer:
    """Holds the bytes of a socket from their arrival until the callback that processes them returns."""

    __slots__ = ("bytes", "view")

    def __init__(self) -> None:
        self.bytes = bytearray(BUFFER_BYTES)
        self.view = memoryview(self.bytes)


class PendingResponse:
    """Holds the place of one request's response in its connection's order, from the request's first byte on.

    It is the one way to respond, at once or later: the code that serves the request calls `send`, `fail` or `abandon`,
    once.
    """

    __slots__ = (
        "connection",
        "correlation_id",
        "is_pipelined",
        "on_completed",
        "parts",
        "throttle",
        "throttle_time_ms",
    )

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self.correlation_id = 0
        self.parts: Sequence[Part] | None = None
        self.is_pipelined = False  # whether the connection's next request may begin before this response is sent
        self.throttle_time_ms = (
            0  # the time that the client has to wait afterwards; the encoder of the response writes it
        )
        self.throttle: Callable[[int], int] | None = None  # sets that time, before the response is encoded
        self.on_completed: Callable[[PendingResponse], None] | None = None  # called once, whatever the outcome

    def send(self, parts: Sequence[Part]) -> None:
        """Send the response as soon as those before it are sent. No parts: the request has no response."""
        assert self.parts is None, "a request is answered once"
        self.parts = parts
        if self.on_completed is not None:
            on_completed, self.on_completed = self.on_completed, None  # both refer to this response
            self.throttle = None
            on_completed(self)
        self.connection.send_completed()

    def fail(self, error: Exception) -> None:
        """Log the client's error, or with its traceback an unexpected one (a bug of ours); close the connection."""
        if isinstance(error, MalformedRequest | AnswerTooLarge):
            self.connection.log_malformed(type(error).__name__, str(error))
        else:
            log.error("unexpected error while serving a request from %s", self.connection.host, exc_info=error)
        self.abandon()

    def abandon(self) -> None:
        """Close the connection: without this response requests and responses are out of step."""
        self.connection.close()
        if self.parts is None:
            self.send(())


class Dispatch(Protocol):
    """Serves the requests of a connection (broker/requests/driver.py)."""

    def __call__(self, connection: ServerConnection, frame: memoryview, pending: PendingResponse, /) -> None:
        """Begin one request. Sets `pending.is_pipelined`; completes `pending` now or later, exactly once."""
        ...


class ServerConnection(asyncio.BufferedProtocol):
    """The protocol object of one accepted socket."""

    def __init__(
        self,
        *,
        dispatch: Dispatch,
        on_open: Callable[[ServerConnection], bool],
        on_close: Callable[[ServerConnection], None],
        shared: ReceiveBuffer,
        budget: Budget,
        busy_poller: BusyPoller | None,
        frame_bytes_max: int,
        sign_in_frame_bytes_max: int | None = None,
        sign_in_budget: Budget | None = None,
        now: Callable[[], float],
        listener: str,
        security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT,
        malformed: MalformedRequestLog,
    ) -> None:
        self.listener, self.security_protocol = listener, security_protocol
        self.host = ""
        self.identity = ANONYMOUS  # who the client is, once it is known
        self.is_signed_in = not security_protocol.uses_sasl
        self.is_handshaking = security_protocol.uses_tls
        self.allowed: object = None  # of the broker: what the client may do, so far as it is known
        self.authentication: object = None  # of the broker: the sign-in by SASL, and a session that has an end
        self.cipher: tuple[str, str] | None = None  # the version of TLS and the cipher suite, after the handshake
        self.software: tuple[str, str] | None = None  # name and version of the client's library, if it named them
        self.is_busy_polled = True  # after a response the client soon sends the next request
        self.last_active = self.frame_began = now()
        self.dispatch = dispatch  # that of the sign-in first, on a listener with SASL
        self._on_open, self._on_close = on_open, on_close
        self._malformed = malformed
        self._busy_poller, self._now = busy_poller, now
        self._signed_in_frame_bytes_max, self._signed_in_budget = frame_bytes_max, budget
        if not self.is_signed_in:  # clients that have not signed in share a memory of their own
            frame_bytes_max = min(frame_bytes_max, sign_in_frame_bytes_max or frame_bytes_max)
            budget = sign_in_budget or budget
        self._frame_bytes_max, self._budget = frame_bytes_max, budget
        self._shared = shared
        self._buffer, self._view = shared.bytes, shared.view
        self._start = self._end = 0  # the bytes received and not yet begun are [start, end)
        self._reserved_bytes = 0  # of the budget, for a larger buffer
        self._waits_for_budget = False
        self._responses: list[PendingResponse] = []  # at most UNANSWERED_MAX; an empty deque takes 700 bytes
        self.spare_request: object = None  # of the driver: what described the last request, for the next one
        self._blocking: PendingResponse | None = (
            None  # not pipelined, not answered: no other request begins before it is
        )
        self._mute: asyncio.TimerHandle | None = None  # no request begins and nothing is read before it
        self._transport: asyncio.Transport | TlsStream | None = None
        self._outbound: Outbound | None = None
        self._paused = self._processing = self._closing = False
        self._tasks: dict[asyncio.Task[None], None] = {}  # to be cancelled when the client disconnects
        self._is_lost = False
        self._when_lost: dict[str, Callable[[], None]] = {}

    # ---- Callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept, unless there are too many."""
        self._transport = transport if isinstance(transport, TlsStream) else cast("asyncio.Transport", transport)
        host: str = (self._transport.get_extra_info("peername") or ("unknown",))[0]
        self.host = host.removeprefix("::ffff:")  # of an IPv4 client of a socket for both families
        try:
            self._outbound = outbound_for(self._transport, on_drained=self._process_rest, on_error=self._peer_gone)
        except OSError as error:  # the client has left already
            self._peer_gone(error)
            return
        if not self._on_open(self):
            self.close()

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Release the client's resources; responses that are still to come are discarded."""
        self._closing = True
        if self._outbound is not None:
            self._outbound.close()
            self._outbound = None  # it refers to this connection: without the cycle both are released at once
        self.spare_request = None  # the same
        if self._mute is not None:
            self._mute.cancel()
            self._mute = None
        self._release_budget()
        for task in self._tasks:
            task.cancel()
        self._is_lost = True
        callbacks, self._when_lost = self._when_lost, {}
        for callback in callbacks.values():
            callback()
        self._on_close(self)
        self._transport = None  # a stream of TLS refers to this connection: the collector may never look at the cycle

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return the free part of the buffer, for the next bytes of the socket."""
        if self._start == self._end:
            self._start = self._end = 0
            return self._view
        if self._end == len(self._buffer):
            self._compact()
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Process `nbytes` that have arrived."""
        now = self._now()
        if self._start == self._end:
            self.frame_began = now
        self._end += nbytes
        self._process(now)

    def pause_writing(self) -> None:
        """Begin no further request until the transport's queue, which is long, is short again."""
        if self._outbound is not None:
            self._outbound.is_blocked = True

    def resume_writing(self) -> None:
        """Continue with requests, because the transport's queue is short again."""
        if self._outbound is not None:
            self._outbound.writable()

    def eof_received(self) -> bool:
        """Return False, so that the connection closes: Kafka's clients stop sending only to leave."""
        return False

    def handshake_finished(self, client: TlsClient) -> None:
        """Begin to serve a client with TLS. Without SASL its certificate says who it is."""
        self.is_handshaking = False
        self.cipher = client.version, client.cipher
        self.last_active = self._now()
        if client.identity is not None and not self.security_protocol.uses_sasl:
            self.sign_in(client.identity)

    def handshake_refused(self, kind: str, why: str) -> None:
        """Log why a client is not served with TLS, or count it; the stream closes the connection."""
        if kind == NO_TLS:
            why = (
                f"it does not use TLS; listener {self.listener} does. "
                f"Set security.protocol={self.security_protocol.name} in the client."
            )
        self.log_malformed(kind, why)

    def sign_in(self, identity: ConnectionIdentity) -> None:
        """Note who the client is, by SASL or by its certificate; from now on its requests may be large."""
        self.identity = identity
        self.is_signed_in = True
        self._frame_bytes_max = self._signed_in_frame_bytes_max
        if self._budget is not self._signed_in_budget:
            self.shrink()
            if self._reserved_bytes:  # for more than the sign-in, which was not complete
                self.log_malformed("requests before the sign-in", "it sent requests before it had signed in")
                self.close()
                self._release_budget()
            self._budget = self._signed_in_budget

    # ---- Requests and responses

    def _process(self, now: float) -> None:
        """Begin every whole request that may begin now; then decide whether to read on."""
        if self._processing or self._closing:
            return
        self._processing = True
        try:
            while self._start != self._end and self._may_begin() and (frame := self._next_frame()) is not None:
                self.last_active = self.frame_began = now
                response = PendingResponse(self)
                self._responses.append(response)
                self.dispatch(self, frame, response)
                if response.parts is None and not response.is_pipelined:
                    self._blocking = response
        except FrameRefused as error:
            self._refuse_frame(error)
        finally:
            self._processing = False
            if self._start != self._end and self._buffer is self._shared.bytes:
                self._keep_rest()
        if self._paused or self._waits_for_budget or self._end == len(self._buffer):
            self._pause_or_resume_reading()

    def _refuse_frame(self, error: FrameRefused) -> None:
        """Log that no frame begins here, and close; another protocol's client is recognised by its first bytes."""
        first_bytes = bytes(self._view[self._start : self._end][:8])
        foreign = foreign_protocol(first_bytes, self.listener, self.security_protocol.name)
        self.log_malformed(foreign or "no frame", foreign or str(error))
        self.close()

    def log_malformed(self, kind: str, message: str) -> None:
        """Log a malformed request of this client, or count it."""
        self._malformed.record(self.host, kind, message, self._now())

    def _may_begin(self) -> bool:
        return (
            self._blocking is None
            and self._mute is None
            and not self._closing
            and len(self._responses) < UNANSWERED_MAX
            and not (self._outbound is not None and self._outbound.is_blocked)
        )

    def _next_frame(self) -> memoryview | None:
        """Cut the next whole frame out of the buffer, or grow the buffer until the frame fits."""
        start, end = self._start, self._end
        length = frame_length(self._buffer, start, end, self._frame_bytes_max)
        if length < 0:
            return None
        whole = LENGTH_BYTES + length
        if end - start < whole:
            if whole > len(self._buffer):
                self._grow(whole)
            return None
        self._start = start + whole
        return self._view[start + LENGTH_BYTES : self._start]

    def send_completed(self) -> None:
        """Send the responses whose turn it is, then begin the requests that waited for them."""
        responses = self._responses
        while responses and (parts := responses[0].parts) is not None:
            first = responses.pop(0)
            first.parts = ()  # nothing else releases them before the next request
            if first is self._blocking:
                self._blocking = None
            if parts and self._outbound is not None:
                self._outbound.send(parts)
                if self._busy_poller is not None and self.is_busy_polled:
                    self._busy_poller.extend()
        if self._start != self._end or self._paused:
            self._process(self._now())

    def _process_rest(self) -> None:
        if self._start != self._end or self._paused:
            self._process(self._now())

    def _pause_or_resume_reading(self) -> None:
        """Pass back-pressure to the socket: a full buffer that may not be emptied is not read into."""
        if self._closing or self._transport is None:
            return
        full = self._start == 0 and self._end == len(self._buffer)
        pause = self._waits_for_budget or self._mute is not None or (full and not self._may_begin())
        if pause and not self._paused:
            self._transport.pause_reading()
        elif self._paused and not pause:
            self._transport.resume_reading()
        self._paused = pause

    def mute(self, seconds: float) -> None:
        """Read nothing and begin no request for this long, as Kafka does with a throttled client.

        Responses to requests that have begun are sent.
        """
        if self._closing:
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        if self._mute is not None:
            if self._mute.when() >= until:
                return
            self._mute.cancel()
        self._mute = loop.call_at(until, self._unmute)
        self._pause_or_resume_reading()

    def _unmute(self) -> None:
        self._mute = None
        if self._closing:
            return
        self._process(self._now())
        self._pause_or_resume_reading()

    # ---- The buffer

    def _keep_rest(self) -> None:
        """Copy what may not begin yet into a buffer of this connection's own: others use the shared one next."""
        held = self._end - self._start
        buffer = bytearray(BUFFER_BYTES)
        buffer[:held] = self._view[self._start : self._end]
        self._buffer, self._view = buffer, memoryview(buffer)
        self._start, self._end = 0, held

    def _compact(self) -> None:
        """Move the unfinished request to the front of the buffer."""
        held = self._end - self._start
        self._view[:held] = bytes(self._view[self._start : self._end])
        self._start, self._end = 0, held

    def _grow(self, size_bytes: int) -> None:
        """Make a larger buffer for a larger request if the budget allows it; otherwise stop reading until it does."""
        wanted = size_bytes - self._reserved_bytes
        if not self._budget.try_reserve(wanted):
            if not self._waits_for_budget:
                self._waits_for_budget = True
                self._budget.call_when_free(self._budget_is_free)
            return
        self._reserved_bytes += wanted
        held = self._end - self._start
        buffer = bytearray(size_bytes)  # zero pages until bytes arrive: announcing a size costs a client nothing
        buffer[:held] = self._view[self._start : self._end]
        self._buffer, self._view = buffer, memoryview(buffer)
        self._start, self._end = 0, held

    def _budget_is_free(self) -> None:
        self._waits_for_budget = False
        self._process_rest()

    def _release_budget(self) -> None:
        if self._reserved_bytes:
            reserved, self._reserved_bytes = self._reserved_bytes, 0
            self._budget.release(reserved)

    def shrink(self) -> None:
        """Release what an idle connection does not need; the server calls this for quiet connections."""
        if self._start == self._end and not self._processing:
            self._buffer, self._view = self._shared.bytes, self._shared.view
            self._start = self._end = 0
            self._release_budget()
            self.spare_request = None

    def call_when_lost(self, name: str, callback: Callable[[], None]) -> None:
        """Call this when the client has disconnected, which may be now. It must not raise.

        A later callback of the same name replaces it, so that a client cannot make a connection hold many.
        """
        if self._is_lost:
            callback()
        else:
            self._when_lost[name] = callback

    def cancel_when_lost(self, task: asyncio.Task[None]) -> None:
        """Cancel the task if the client disconnects before `keep` is called."""
        self._tasks[task] = None

    def keep(self, task: asyncio.Task[None]) -> None:
        """Undo `cancel_when_lost`."""
        self._tasks.pop(task, None)

    # ---- Closing

    @property
    def peer_port(self) -> int | None:
        """Return the client's port; None if there is none any more."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return None if not name or isinstance(name, str) else int(name[1])

    @property
    def receiving(self) -> bool:
        """Whether a request has begun to arrive and is not whole."""
        return self._end > self._start and self._may_begin()

    @property
    def answering(self) -> bool:
        """Whether some request has not been answered."""
        return bool(self._responses) or (self._outbound is not None and self._outbound.is_blocked)

    def stop_requests(self) -> None:
        """Begin no further request; those that have begun are answered."""
        self._closing = True
        if self._transport is not None and not self._paused:
            self._transport.pause_reading()
            self._paused = True

    def close_when_sent(self) -> None:
        """End the connection once the responses are sent that the transport has; begin no further request."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def close(self) -> None:
        """End the connection now."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def _peer_gone(self, error: OSError) -> None:
        is_from_file = error.errno in _FILE_ERRORS  # sendfile reads and sends: a socket has no such errors
        level = logging.ERROR if is_from_file else logging.DEBUG
        log.log(level, "connection from %s ended while a response was sent: %s", self.host, error)
        self.close()
