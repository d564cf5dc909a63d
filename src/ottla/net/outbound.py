"""What leaves a connection: header parts and file regions, in order, without a copy in Python.

Bytes go out by `send`, file regions by `sendfile`, straight on the socket. When the kernel's buffer is full the rest
waits here until the socket is writable again, and the connection stops taking requests meanwhile.

Station 9 of 9 on a batch's journey. Before: broker/handlers/fetch.py, broker/dispatch.py.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

SENDFILE_BYTES_MAX = 1 << 20  # one connection may hold the loop for one such piece, then others have their turn


class SendableRegion(Protocol):
    """A stretch of a file (storage's FileRegion): what wire/region.py promises, and how to send it."""

    @property
    def position(self) -> int:
        """Where it begins in the file."""
        ...

    @property
    def size(self) -> int:
        """Bytes to send."""
        ...

    def descriptor(self) -> int | None:
        """For sendfile; None where there is no kernel below."""
        ...

    def read(self) -> bytes:
        """The bytes themselves, where there is no descriptor."""
        ...


Part = bytes | bytearray | memoryview | SendableRegion


def part_size(part: Part) -> int:
    """How many bytes of an answer a part will be."""
    return len(part) if isinstance(part, bytes | bytearray | memoryview) else part.size


class Outbound:
    """The sending half of one plaintext socket."""

    __slots__ = ("_closed", "_loop", "_on_drained", "_on_error", "_queue", "_socket", "_writing")

    def __init__(
        self, sock: socket.socket, *, on_drained: Callable[[], None], on_error: Callable[[OSError], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        # A duplicate, so that the loop's transport (which reads) and we (who write) each register their own descriptor.
        self._socket = sock
        self._queue: deque[bytes | memoryview | _Sending] = deque()
        self._writing = False  # registered with the loop, waiting for the socket
        self._closed = False
        self._on_drained = on_drained
        self._on_error = on_error

    @property
    def blocked(self) -> bool:
        """Whether the peer reads slower than we answer."""
        return self._writing

    def send(self, parts: Sequence[Part]) -> None:
        """Send one answer. What the kernel does not take now is kept and follows."""
        if self._closed:
            return
        queue = self._queue
        if len(parts) == 1 and not queue and type(parts[0]) is bytes:  # the usual case, and nothing in its way
            parts = self._send_now(parts[0])
        for part in parts:
            if isinstance(part, (bytes, bytearray, memoryview)):
                queue.append(part if isinstance(part, bytes) else memoryview(part))
            elif part.size:
                queue.append(_Sending(part))
        if queue and not self._writing:
            self._push()

    def _send_now(self, part: bytes) -> Sequence[Part]:
        """Send without a queue. Returns what the kernel did not take."""
        try:
            sent = self._socket.send(part)
        except (BlockingIOError, InterruptedError):
            return (part,)
        except OSError as error:
            self.close()
            self._on_error(error)
            return ()
        return () if sent == len(part) else (memoryview(part)[sent:],)

    def close(self) -> None:
        """Forget what has not left."""
        if self._closed:
            return
        self._closed = True
        if self._writing:
            self._loop.remove_writer(self._socket.fileno())
            self._writing = False
        self._queue.clear()
        self._socket.close()

    def _push(self) -> None:
        """Hand the kernel what it takes. Afterwards either the queue is empty or we wait for the socket."""
        queue = self._queue
        try:
            while queue:
                head = queue[0]
                if isinstance(head, _Sending):
                    if not head.push(self._socket):
                        queue.popleft()
                    elif head.turn_over:
                        break
                    continue
                more = socket.MSG_MORE if len(queue) > 1 else 0
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
        self._wait_or_rest()

    def _wait_or_rest(self) -> None:
        if self._queue and not self._writing:
            self._writing = True
            self._loop.add_writer(self._socket.fileno(), self._push)
        elif not self._queue and self._writing:
            self._writing = False
            self._loop.remove_writer(self._socket.fileno())
            self._on_drained()


class _Sending:
    """How far a file region has got."""

    __slots__ = ("_left", "_position", "_region", "turn_over")

    def __init__(self, region: SendableRegion) -> None:
        self._region = region  # kept, because it keeps the file open
        self._position = region.position
        self._left: int = region.size
        self.turn_over = False

    def push(self, sock: socket.socket) -> bool:
        """Send the next piece; False once all of it has left. Raises BlockingIOError when the socket is full."""
        self.turn_over = False
        descriptor = self._region.descriptor()
        if descriptor is None:  # a simulated disk has no kernel below it
            sent = sock.send(self._region.read()[-self._left :])
        else:
            sent = os.sendfile(sock.fileno(), descriptor, self._position, min(self._left, SENDFILE_BYTES_MAX))
        if sent == 0:
            raise ConnectionAbortedError("the file is shorter than the region to be sent")
        self._position += sent
        self._left = self._left - sent
        self.turn_over = sent >= SENDFILE_BYTES_MAX
        return self._left > 0
