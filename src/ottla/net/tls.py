"""Encrypts and decrypts the bytes of one connection: TLS between a socket's transport and its `ServerConnection`.

A stream is a protocol for the transport and a transport for the connection, which sees decrypted bytes only. It is made
when a socket is accepted, so that a client that does not finish its handshake counts as a connection. What arrives is
copied at once into OpenSSL's memory: all streams of a loop share the buffer that it arrives in.

`Handshakes` has a thread run the steps of all handshakes, one after the other: one takes as long as many requests, and
OpenSSL runs it without the interpreter's lock. After some milliseconds of steps there are none for as long. Before a
client's first bytes nothing of OpenSSL is allocated for it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from ottla.core.executors import Executor
from ottla.net.identity import ConnectionIdentity
from ottla.wire.frame import TLS_HANDSHAKE

log = logging.getLogger(__name__)

CIPHERTEXT_BYTES: Final = 64 * 1024
"""Received at a time."""

HELLO_BYTES: Final = 4096
"""Received at a time during a handshake; the rest waits in the kernel."""

SLICE_SECONDS: Final = 0.002
"""Handshakes take so much time of their thread, and then leave the processor to others for as long."""

UNFINISHED_MAX = 512
"""Handshakes that have begun and are not finished. Another one ends the oldest of them."""


NO_TLS: Final = "no TLS"
"""The kind of refusal of a client whose first bytes are none of TLS."""


class TlsTerms(NamedTuple):
    """Holds what a handshake needs."""

    context: ssl.SSLContext
    identify: Callable[[bytes], ConnectionIdentity]
    """Returns the principal of a certificate (DER). Raises ValueError."""


class ListenerTls:
    """The terms of a listener. They are replaced as a whole when certificates change; connections keep theirs."""

    __slots__ = ("on_handshake", "terms")

    def __init__(self, terms: TlsTerms) -> None:
        self.terms = terms
        self.on_handshake: Callable[[str, ConnectionIdentity | None, str], None] | None = None
        """Called with the host, the principal of the certificate, and the reason if the client was refused."""


class TlsClient(NamedTuple):
    """Describes the client of a finished handshake."""

    identity: ConnectionIdentity | None  # of its certificate; None without one
    version: str
    cipher: str


class _Step:
    """A step of a handshake, for the thread."""

    __slots__ = ("_handshakes", "_stream")

    def __init__(self, handshakes: Handshakes, stream: TlsStream) -> None:
        self._handshakes = handshakes
        self._stream: TlsStream | None = stream

    def run(self) -> None:
        """Run it, off the loop."""
        assert self._stream is not None
        self._stream.step()

    def finished(self) -> None:
        """Go on, on the loop. The thread keeps its last job: it must not keep the stream with it."""
        stream, self._stream = self._stream, None
        assert stream is not None
        self._handshakes.step_finished(stream)


class Handshakes:
    """Runs the handshakes of all listeners of a broker, bounded in time and number."""

    def __init__(self, now: Callable[[], float], executor: Executor) -> None:
        self._now, self._executor = now, executor
        self._first: deque[TlsStream] = deque()  # whose client has sent its first bytes
        self._next: deque[TlsStream] = deque()  # that have begun: they come first, and release memory
        self._begun: dict[TlsStream, None] = {}  # and are not finished, the oldest first
        self._is_scheduled = False  # a step is in the thread, or the pause after others
        self._spent_s = 0.0  # on steps, less the time without any since
        self._began_s = self._ended_s = now()  # the last step

    @property
    def unfinished(self) -> int:
        """Return how many have begun and are not finished."""
        return len(self._begun)

    def close(self) -> None:
        """End the thread: blocks until its step is done."""
        self._executor.close()

    def add(self, stream: TlsStream) -> None:
        """Run the next step of a handshake soon."""
        if stream in self._begun:
            self._next.append(stream)
        else:
            self._first.append(stream)
        if not self._is_scheduled:
            self._schedule()

    def end(self, stream: TlsStream) -> None:
        """Forget a handshake that is finished or has failed."""
        self._begun.pop(stream, None)

    def _schedule(self) -> None:
        """Begin the next step, or wait if those before it took their time."""
        self._is_scheduled = True
        left_s = self._spent_s - (self._now() - self._ended_s)
        if left_s < SLICE_SECONDS:
            self._begin()
        else:
            asyncio.get_running_loop().call_later(left_s, self._begin)

    def _begin(self) -> None:
        self._began_s = self._now()
        self._spent_s = max(self._spent_s - (self._began_s - self._ended_s), 0.0)
        while self._next or self._first:
            if self._next:
                stream = self._next.popleft()
            else:
                stream = self._first.popleft()
                self._begun[stream] = None
            if stream.begin_step():
                self._executor.submit(_Step(self, stream))
                return
            self._begun.pop(stream, None)
        self._is_scheduled = False

    def step_finished(self, stream: TlsStream) -> None:
        """Go on after a step."""
        if not stream.end_step():
            self._begun.pop(stream, None)
        if len(self._begun) > UNFINISHED_MAX:
            oldest = next(iter(self._begun))
            del self._begun[oldest]
            oldest.refuse("handshakes", f"more than {UNFINISHED_MAX} TLS handshakes have begun and are not finished")
        self._ended_s = self._now()
        self._spent_s += self._ended_s - self._began_s
        if self._next or self._first:
            self._schedule()
        else:
            self._is_scheduled = False


_UNEXPECTED: Final = ("", "")
"""In place of a refusal: the step failed for a reason that is logged."""


class TlsStream(asyncio.BufferedProtocol):
    """TLS of one accepted socket.

    `on_secured` is called once after the handshake, `on_refused` with a kind and a reason if there will be none; then
    the connection is closed.
    """

    def __init__(
        self,
        connection: asyncio.BufferedProtocol,
        tls: ListenerTls,
        handshakes: Handshakes,
        shared: memoryview,
        disk: Executor,
        *,
        on_secured: Callable[[TlsClient], None],
        on_refused: Callable[[str, str], None],
    ) -> None:
        self._connection, self._listener_tls, self._handshakes, self._shared = connection, tls, handshakes, shared
        self.disk = disk  # where the outbound half reads what is not in memory
        self.is_full = False  # the socket takes no more now
        self._on_secured, self._on_refused = on_secured, on_refused
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: Any = None  # an SSLObject, since the client's first bytes; its stub has no reading into a buffer
        self._transport: asyncio.Transport | None = None
        self._is_secured = self._is_paused = self._is_closing = self._is_shaking = False
        self._is_stepping = False  # OpenSSL works for this stream in the thread
        self._wants_more = False  # after a step: the client's answer
        self._refusal: tuple[str, str] | None = None

    # ---- For the socket's transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Introduce this stream to the connection as its transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._connection.connection_made(cast("asyncio.BaseTransport", self))

    def connection_lost(self, exc: BaseException | None) -> None:
        """Release everything."""
        self._is_closing = True
        self._handshakes.end(self)
        self._tls = None
        self._connection.connection_lost(cast("Exception | None", exc))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return where the next encrypted bytes are to be put."""
        return self._shared if self._is_secured else self._shared[:HELLO_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt what has arrived, or go on with the handshake."""
        if self._is_closing:
            return
        received = self._shared[:nbytes]
        if self._is_secured:
            self._incoming.write(received)
            self._deliver()
            return
        if self._tls is None and not self._incoming.pending and received[:1] != TLS_HANDSHAKE[:1]:
            self.refuse(NO_TLS, "")
            return
        assert not self._is_stepping, "reading is paused: OpenSSL may be reading here in the thread"
        self._incoming.write(received)
        assert self._transport is not None
        if not self._is_shaking:  # until the step is done, more waits in the kernel
            self._is_shaking = True
            self._transport.pause_reading()
            self._handshakes.add(self)

    def eof_received(self) -> bool:
        """Close, as a connection without TLS does."""
        return False

    def pause_writing(self) -> None:
        """Pass on that the socket takes no more."""
        self.is_full = True
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the socket takes more."""
        self.is_full = False
        self._connection.resume_writing()

    # ---- The handshake

    def begin_step(self) -> bool:
        """Prepare a step of the handshake, on the loop; returns whether there is one to run."""
        if self._is_closing:
            return False
        if self._tls is None:
            try:
                context = self._listener_tls.terms.context
                self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
            except (ssl.SSLError, ValueError) as error:
                self.refuse(*_described(error))
                return False
        self._is_stepping = True
        return True

    def step(self) -> None:
        """Run a step, in a thread. Until `end_step` nothing else touches what OpenSSL has of this stream."""
        tls = self._tls
        if tls is None:  # the connection is lost
            return
        self._wants_more, self._refusal = False, None
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            self._wants_more = True
        except (ssl.SSLError, ValueError) as error:
            self._refusal = _described(error)
        except Exception:
            log.exception("unexpected error in a TLS handshake")
            self._refusal = _UNEXPECTED

    def end_step(self) -> bool:
        """Go on after a step, on the loop; returns whether the handshake is still unfinished."""
        self._is_shaking = self._is_stepping = False
        if self._is_closing or self._tls is None or self._transport is None:
            return False
        if self._refusal is _UNEXPECTED:
            self.abort()
            return False
        if self._refusal is not None:
            self.refuse(*self._refusal)
            return False
        self.flush()
        if self._wants_more:
            self._transport.resume_reading()
            return True
        try:
            self._finish(self._tls, self._listener_tls.terms)
        except Exception:
            log.exception("unexpected error after a TLS handshake")
            self.abort()
        return False

    def _finish(self, tls: ssl.SSLObject, terms: TlsTerms) -> None:
        assert self._transport is not None
        cipher, certificate = tls.cipher(), tls.getpeercert(binary_form=True)
        assert cipher is not None, "the handshake is finished"
        try:
            identity = None if certificate is None else terms.identify(certificate)
        except ValueError as error:
            self.refuse("principal", str(error))
            return
        self._is_secured = True
        self._on_secured(TlsClient(identity, cipher[1], cipher[0]))
        if not self._is_paused:
            self._transport.resume_reading()
        self._deliver()  # the first request may have come with the end of the handshake

    def refuse(self, kind: str, why: str) -> None:
        """Report why there will be no connection, and close it; an alert may say the same to the client."""
        if self._is_closing:
            return
        self._on_refused(kind, why)
        self.flush()
        self._is_closing = True
        if self._transport is not None:
            self._transport.close()

    # ---- Decrypting

    def _deliver(self) -> None:
        """Give the connection what can be decrypted, until it wants no more."""
        incoming, connection = self._incoming, self._connection
        try:
            while self._tls is not None and not (self._is_paused or self._is_closing):
                buffer = cast("memoryview", connection.get_buffer(-1))
                size: int = self._tls.read(len(buffer), buffer)
                if size == 0:  # the client said that nothing follows
                    self.abort()
                    return
                connection.buffer_updated(size)
                if not incoming.pending and self._tls is not None and not self._tls.pending():
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self.refuse(*_described(error))
            return
        if self._outgoing.pending:  # such as the answer to a change of keys
            self.flush()

    # ---- Encrypting

    def encrypt(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt the next bytes; they are sent by `flush`. Raises OSError if the connection is of no use any more."""
        if self._tls is None or self._is_closing:
            raise ConnectionAbortedError("the connection is closed")
        self._tls.write(data)

    @property
    def unsent(self) -> int:
        """Return how many bytes are encrypted and not given to the socket."""
        return self._outgoing.pending

    def flush(self) -> None:
        """Give the socket what is encrypted."""
        if self._is_stepping:  # and writes there
            return
        if self._outgoing.pending and self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._outgoing.read())

    # ---- For the connection: what it uses of a transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the socket."""
        return default if self._transport is None else self._transport.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when `pause_writing` is called."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high, low)

    def is_closing(self) -> bool:
        """Return whether nothing more is sent."""
        return self._is_closing or self._transport is None or self._transport.is_closing()

    def pause_reading(self) -> None:
        """Deliver nothing until `resume_reading`."""
        self._is_paused = True
        if self._is_secured and self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Deliver again, first what has arrived already."""
        self._is_paused = False
        asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        if not self._is_secured or self._is_closing or self._is_paused:
            return
        self._deliver()
        if not (self._is_paused or self._is_closing) and self._transport is not None:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once. The client learns that nothing follows, if the socket takes that."""
        self._end()
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close once everything that is encrypted has been sent."""
        self._end()
        if self._transport is not None:
            self._transport.close()

    def _end(self) -> None:
        if self._is_secured and not self._is_closing and self._tls is not None:
            try:
                self._tls.unwrap()
            except ssl.SSLError:
                pass  # the client has not said the same yet
            self.flush()
        self._is_closing = True


def _described(error: Exception) -> tuple[str, str]:
    """Return the kind and the text of a failed handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        text = f"its certificate is not trusted: {error.verify_message}"
    else:
        reason = error.reason if isinstance(error, ssl.SSLError) else None
        text = (reason or str(error)).lower().replace("_", " ")
    return text, f"the TLS handshake failed: {text}"
