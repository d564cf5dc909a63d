"""Echoes frames in place of a broker, for tests of connections over real sockets."""

import asyncio
import struct
from dataclasses import dataclass, field

from ottla.core.files import FileRegion
from ottla.net.connection import PendingResponse, ServerConnection
from ottla.net.outbound import Part

LENGTH = struct.Struct(">i")


def framed(payload: bytes) -> bytes:
    return LENGTH.pack(len(payload)) + payload


@dataclass
class Echo:
    """Echoes each request: `later` on demand, `file` as a file region, `none` not at all."""

    held: list[tuple[bytes, PendingResponse]] = field(default_factory=list)
    region: FileRegion | None = None
    begun: list[bytes] = field(default_factory=list)

    def __call__(self, connection: ServerConnection, frame: memoryview, response: PendingResponse) -> None:
        payload = bytes(frame)
        self.begun.append(payload[:20])
        if payload.endswith(b"of a follower"):
            connection.is_busy_polled = False
        if payload.startswith(b"later"):
            response.is_pipelined = payload.startswith(b"later pipelined")
            self.held.append((payload, response))
        elif payload.startswith(b"file"):
            assert self.region is not None
            head: list[Part] = [LENGTH.pack(self.region.size), self.region]
            response.send(head)
        else:
            response.send(() if payload.startswith(b"none") else (framed(payload),))

    def release(self) -> None:
        payload, answer = self.held.pop(0)
        answer.send((framed(payload),))


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = LENGTH.unpack(await reader.readexactly(4))
    return await reader.readexactly(length)
