"""Sends responses: bytes and file regions, in order, without a copy of the file regions in Python.

`SocketOutbound`: bytes leave by `send`, file regions by `sendfile`, straight on the socket. When the kernel's buffer is
full the rest waits here until the transport has sent what it got, and meanwhile the connection begins no requests.
`TlsOutbound`: file regions are read a piece at a time, on the loop if the piece is in memory and else in a thread, and
encrypted. `TransportOutbound` is for transports without a socket of their own: simulated networks, and brokers as
clients with TLS.

Step 9 of 9 on the path of a batch (ARCHITECTURE.md).
Before: broker/fetch/delayed_fetch.py, broker/delayed_produce.py.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from ottla.core.files import FileRegion
from ottla.net.borrowed_socket import BorrowedSocket
from ottla.net.tls import TlsStream

SENDFILE_BYTES_MAX: Final = 1 << 20  # one connection may hold the loop for that, then the others have their turn
_NONBLOCK: Final[int] = socket.SOCK_NONBLOCK if hasattr(socket, "SOCK_NONBLOCK") else 0  # without a system call
_MORE: Final[int] = socket.MSG_MORE if hasattr(socket, "MSG_MORE") else 0  # macOS has none: smaller packets

HANDED_OVER_BYTES: Final = 4096
"""Bytes for the transport of a full socket, which reports when they have left; what follows is sent by `sendfile`."""

ENCRYPTED_BYTES_MAX: Final = 1 << 18  # in one turn of the loop by one connection
PIECE_BYTES: Final = 1 << 16  # of a region, read and encrypted at once
READ_AHEAD_BYTES: Final = 1 << 18  # of a region, if it comes from the disk
NOWAIT: int = os.RWF_NOWAIT if hasattr(os, "RWF_NOWAIT") else 0
"""The flag of a read that fails instead of waiting for the disk. Without one (0), all reads are in threads."""

Part = bytes | bytearray | memoryview | FileRegion


class Outbound:
    """The sending half of one connection."""

    __slots__ = ("is_blocked",)

    def __init__(self) -> None:
        self.is_blocked = False  # the peer reads slower than responses are sent

    def send(self, parts: Sequence[Part]) -> None:
        """Send one response. What cannot leave now is queued and follows."""
        raise NotImplementedError

    def writable(self) -> None:
        """Continue: the transport's queue is empty again after `is_blocked` was set."""
        raise NotImplementedError

    def close(self) -> None:
        """Discard what has not been sent."""
        raise NotImplementedError


class TransportOutbound(Outbound):
    """The sending half of an asyncio transport, which has its own queue."""

    __slots__ = ("_on_drained", "_transport")

    def __init__(self, transport: asyncio.WriteTransport, *, on_drained: Callable[[], None]) -> None:
        super().__init__()
        self._transport = transport
        self._on_drained = on_drained

    def send(self, parts: Sequence[Part]) -> None:
        """Hand one response to the transport. Regions are read: there is no `sendfile`."""
        if self._transport.is_closing():
            return
        whole: list[bytes | bytearray | memoryview] = []
        for part in parts:
            if not isinstance(part, FileRegion):
                whole.append(part)
                continue
            read = part.read()
            if len(read) < part.size:  # the file is shorter than the region: the response would never be complete
                self._transport.abort()
                return
            whole.append(read)
        self._transport.writelines([part for part in whole if part])  # asyncio keeps an empty one from 3.12 on

    def writable(self) -> None:
        """Continue: the transport's queue is short again."""
        self.is_blocked = False
        self._on_drained()

    def close(self) -> None:
        """Leave the queue to the transport, which drops it when it is aborted."""


class SocketOutbound(Outbound):
    """The sending half of one plaintext socket.

    It has no descriptor of its own: it writes to the transport's, from `connection_made` until `connection_lost`, which
    every loop calls before it closes the descriptor. When the kernel takes no more, the transport gets the next bytes:
    it calls the protocol when the kernel has taken them.
    """

    __slots__ = ("_closed", "_on_drained", "_on_error", "_queue", "_socket", "_transport")

    def __init__(
        self,
        transport: asyncio.Transport,
        inner: Any,
        *,
        on_drained: Callable[[], None],
        on_error: Callable[[OSError], None],
    ) -> None:
        super().__init__()
        self._transport = transport
        self._socket = BorrowedSocket(inner.family, inner.type | _NONBLOCK, inner.proto, inner.fileno())
        if not _NONBLOCK:
            self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=0)  # `pause_writing` for every byte that the kernel did not take
        self._queue: deque[bytes | bytearray | memoryview | _RegionProgress] | None = None  # made when it is needed
        self._closed = False
        self._on_drained = on_drained
        self._on_error = on_error

    def send(self, parts: Sequence[Part]) -> None:
        """Send one response. What the kernel does not take now is queued and follows."""
        if self._closed:
            return
        queue = self._queue
        if len(parts) == 1 and not queue:
            part = parts[0]
            if not isinstance(part, FileRegion):  # the usual case
                try:
                    sent = self._socket.send(part)
                except (BlockingIOError, InterruptedError):
                    sent = 0
                except OSError as error:
                    self.close()
                    self._on_error(error)
                    return
                if sent == len(part):
                    return
                parts = (memoryview(part)[sent:],)
        if queue is None:
            queue = self._queue = deque()
        for part in parts:
            if isinstance(part, FileRegion):
                if part.size:
                    queue.append(_RegionProgress(part))
            elif len(part):
                queue.append(part)
        if queue and not self.is_blocked:
            self._push()

    def writable(self) -> None:
        """Continue: the kernel has taken what the transport had, or the other connections had their turn."""
        if self._closed or not self.is_blocked:
            return
        self.is_blocked = False
        self._push()
        if not self.is_blocked and not self._closed:
            self._on_drained()

    def close(self) -> None:
        """Discard what has not been sent."""
        if self._closed:
            return
        self._closed = True
        self.is_blocked = False
        self._queue = None
        self._socket.detach()

    def _push(self) -> None:
        """Hand the kernel what it takes. Afterwards the queue is empty, or `writable` will be called."""
        queue = self._queue
        try:
            while queue and not self.is_blocked:
                head = queue[0]
                try:
                    if isinstance(head, _RegionProgress):
                        if not head.push(self._socket):
                            queue.popleft()
                        elif head.yields:
                            self.is_blocked = True
                            asyncio.get_running_loop().call_soon(self.writable)
                    else:
                        sent = self._socket.send(head, _MORE if len(queue) > 1 else 0)
                        if sent == len(head):
                            queue.popleft()
                        else:
                            queue[0] = memoryview(head)[sent:]
                except (BlockingIOError, InterruptedError):
                    self._wait_for_kernel(queue)
        except OSError as error:
            self.close()
            self._on_error(error)

    def _wait_for_kernel(self, queue: deque[bytes | bytearray | memoryview | _RegionProgress]) -> None:
        """Give the transport the next bytes; it calls `pause_writing` before this returns unless they leave at once."""
        head = queue[0]
        if isinstance(head, _RegionProgress):
            self._transport.write(head.take(HANDED_OVER_BYTES))
            if head.is_done:
                queue.popleft()
        else:
            self._transport.write(bytes(memoryview(head)[:HANDED_OVER_BYTES]))
            if len(head) > HANDED_OVER_BYTES:
                queue[0] = memoryview(head)[HANDED_OVER_BYTES:]
            else:
                queue.popleft()


class TlsOutbound(Outbound):
    """The sending half of one encrypted connection."""

    __slots__ = ("_closed", "_is_reading", "_on_drained", "_on_error", "_queue", "_stream")

    def __init__(
        self, stream: TlsStream, *, on_drained: Callable[[], None], on_error: Callable[[OSError], None]
    ) -> None:
        super().__init__()
        self._stream = stream
        stream.set_write_buffer_limits(high=0)  # `pause_writing` for every byte that the kernel did not take
        self._queue: deque[bytes | bytearray | memoryview | _RegionProgress] = deque()
        self._closed = self._is_reading = False
        self._on_drained = on_drained
        self._on_error = on_error

    def send(self, parts: Sequence[Part]) -> None:
        """Encrypt and send one response. What the kernel does not take now is queued and follows."""
        if self._closed:
            return
        for part in parts:
            if isinstance(part, FileRegion):
                if part.size:
                    self._queue.append(_RegionProgress(part))
            elif len(part):
                self._queue.append(part)
        if self._queue and not self.is_blocked:
            self._push()

    def writable(self) -> None:
        """Continue: the kernel has taken what the transport had, or the other connections had their turn."""
        if self._closed or self._is_reading or self._stream.is_full or not self.is_blocked:
            return
        self.is_blocked = False
        self._push()
        if not self.is_blocked and not self._closed:
            self._on_drained()

    def close(self) -> None:
        """Discard what has not been sent."""
        self._closed = True
        self.is_blocked = False
        self._queue.clear()

    def _push(self) -> None:
        """Encrypt and send what the kernel takes. Afterwards the queue is empty, or `writable` will be called."""
        queue, stream = self._queue, self._stream
        encrypted_bytes = 0
        try:
            while queue and not self.is_blocked:
                if encrypted_bytes >= ENCRYPTED_BYTES_MAX:
                    self.is_blocked = True
                    asyncio.get_running_loop().call_soon(self.writable)
                    break
                head = queue[0]
                if isinstance(head, _RegionProgress):
                    piece = head.take_cached(PIECE_BYTES)
                    if piece is None:
                        self._read_ahead(head)
                        break
                    is_done = head.is_done
                else:
                    piece = memoryview(head)[:PIECE_BYTES]
                    is_done = len(head) <= PIECE_BYTES
                    if not is_done:
                        queue[0] = memoryview(head)[PIECE_BYTES:]
                if is_done:
                    queue.popleft()
                stream.encrypt(piece)
                encrypted_bytes += len(piece)
                if stream.unsent >= PIECE_BYTES or not queue:
                    stream.flush()
            if stream.unsent:
                stream.flush()
        except OSError as error:
            self.close()
            self._on_error(error)

    def _read_ahead(self, region: _RegionProgress) -> None:
        """Read the next piece of a region in a thread; it comes before the rest of the region."""
        self.is_blocked = self._is_reading = True
        self._stream.disk.submit(_RegionRead(self, region))

    def read_ahead_done(self, read: bytes | OSError, *, is_region_done: bool) -> None:
        """Continue with what was read."""
        self._is_reading = False
        if self._closed:
            return
        if isinstance(read, OSError):
            self.close()
            self._on_error(read)
            return
        if is_region_done:
            self._queue.popleft()
        self._queue.appendleft(read)
        self.writable()


class _RegionRead:
    """Reads the next piece of a region off the loop."""

    def __init__(self, outbound: TlsOutbound, region: _RegionProgress) -> None:
        self._outbound, self._region = outbound, region
        self._read: bytes | OSError = b""

    def run(self) -> None:
        """Read."""
        try:
            self._read = self._region.take(READ_AHEAD_BYTES)
        except OSError as error:
            self._read = error

    def finished(self) -> None:
        """Send it."""
        self._outbound.read_ahead_done(self._read, is_region_done=self._region.is_done)


def outbound_for(
    transport: asyncio.Transport | TlsStream, *, on_drained: Callable[[], None], on_error: Callable[[OSError], None]
) -> Outbound:
    """Return the sending half of a connection. The protocol passes `pause_writing` and `resume_writing` on to it.

    Raises OSError if the connection is gone already.
    """
    inner = transport.get_extra_info("socket")
    if isinstance(transport, TlsStream):
        if inner is not None:
            inner.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return TlsOutbound(transport, on_drained=on_drained, on_error=on_error)
    if inner is None or transport.get_extra_info("sslcontext") is not None:  # a client's TLS is the loop's
        return TransportOutbound(transport, on_drained=on_drained)
    return SocketOutbound(transport, inner, on_drained=on_drained, on_error=on_error)


class _RegionProgress:
    """Tracks how much of a file region has been sent."""

    __slots__ = ("_left", "_position", "_region", "yields")

    def __init__(self, region: FileRegion) -> None:
        self._region = region  # a reference, because it keeps the file open
        self._position = region.position
        self._left: int = region.size
        self.yields = False  # a whole piece was sent: other connections have their turn

    def push(self, sock: socket.socket) -> bool:
        """Send the next piece; False once all of it is sent. Raises BlockingIOError when the socket is full."""
        self.yields = False
        descriptor = self._region.descriptor()
        if descriptor is None:  # a simulated disk has no descriptors
            sent = sock.send(self._region.read()[-self._left :])
        else:
            sent = os.sendfile(sock.fileno(), descriptor, self._position, min(self._left, SENDFILE_BYTES_MAX))
        if sent == 0:
            raise ConnectionAbortedError("the file is shorter than the region to be sent")
        self._position += sent
        self._left = self._left - sent
        self.yields = sent >= SENDFILE_BYTES_MAX
        return self._left > 0

    @property
    def is_done(self) -> bool:
        """Return whether all of it has been sent or taken."""
        return self._left == 0

    def take_cached(self, bytes_max: int) -> memoryview | None:
        """Return the next bytes if they are in memory; None if they would have to come from the disk."""
        descriptor = self._region.descriptor()
        if descriptor is None:  # a simulated disk
            return memoryview(self.take(bytes_max))
        if not NOWAIT:
            return None
        buffer = bytearray(min(self._left, bytes_max))
        try:
            size = os.preadv(descriptor, [buffer], self._position, NOWAIT)
        except OSError:  # not in memory, or a file system without this: the read in a thread shows what is wrong
            return None
        if size == 0:
            return None
        self._position += size
        self._left = self._left - size
        return memoryview(buffer)[:size]

    def take(self, bytes_max: int) -> bytes:
        """Return the next bytes, which the caller sends."""
        taken = FileRegion(self._region.file, self._position, min(self._left, bytes_max)).read()
        if not taken:
            raise ConnectionAbortedError("the file is shorter than the region to be sent")
        self._position += len(taken)
        self._left = self._left - len(taken)
        return taken
