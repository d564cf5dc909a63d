"""Sends responses: bytes and file regions, in order, without a copy of the file regions in Python.

`SocketOutbound`: bytes leave by `send`, file regions by `sendfile`, straight on the socket. When the kernel's buffer is
full the rest waits here until the socket is writable again, and the connection begins no further requests meanwhile.
`TransportOutbound` is for transports without a socket of their own: simulated networks.

Step 9 of 9 on the path of a batch (ARCHITECTURE.md).
Before: broker/fetch/delayed_fetch.py, broker/delayed_produce.py.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ottla.core.files import FileRegion

SENDFILE_BYTES_MAX: Final = 1 << 20  # one connection may hold the loop for that, then the others have their turn
_MORE: Final[int] = socket.MSG_MORE if hasattr(socket, "MSG_MORE") else 0  # macOS has none: smaller packets

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
        """Continue: the transport takes data again after `is_blocked` was set for it. Sockets watch themselves."""

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
    """The sending half of one plaintext socket."""

    __slots__ = ("_closed", "_loop", "_on_drained", "_on_error", "_queue", "_socket")

    def __init__(
        self, sock: socket.socket, *, on_drained: Callable[[], None], on_error: Callable[[OSError], None]
    ) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        # A duplicate, so that the loop's transport (which reads) and we (who write) each register their own descriptor.
        self._socket = sock
        self._queue: deque[bytes | bytearray | memoryview | _RegionProgress] = deque()
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
        for part in parts:
            if isinstance(part, FileRegion):
                if part.size:
                    queue.append(_RegionProgress(part))
            elif len(part):
                queue.append(part)
        if queue and not self.is_blocked:
            self._push()

    def close(self) -> None:
        """Discard what has not been sent."""
        if self._closed:
            return
        self._closed = True
        if self.is_blocked:
            self._loop.remove_writer(self._socket.fileno())
            self.is_blocked = False
        self._queue.clear()
        self._socket.close()

    def _push(self) -> None:
        """Hand the kernel what it takes. Afterwards the queue is empty or the loop watches the socket."""
        queue = self._queue
        try:
            while queue:
                head = queue[0]
                if isinstance(head, _RegionProgress):
                    if not head.push(self._socket):
                        queue.popleft()
                    elif head.yields:
                        break
                    continue
                more = _MORE if len(queue) > 1 else 0
                sent = self._socket.send(head, more)
                if sent == len(head):
                    queue.popleft()
                else:
                    queue[0] = memoryview(head)[sent:]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self.close()
            self._on_error(error)
            return
        self._watch_or_rest()

    def _watch_or_rest(self) -> None:
        if self._queue and not self.is_blocked:
            self.is_blocked = True
            self._loop.add_writer(self._socket.fileno(), self._push)
        elif not self._queue and self.is_blocked:
            self.is_blocked = False
            self._loop.remove_writer(self._socket.fileno())
            self._on_drained()


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
