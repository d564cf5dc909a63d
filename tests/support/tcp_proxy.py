"""A proxy between a client and a server that can lose bytes in one direction, and whole connections."""

from __future__ import annotations

import asyncio
import contextlib


class TcpProxy:
    """Forwards connections to one server. Lifecycle: `start`, then the attributes may change at any time, `close`."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.drops_requests = False  # bytes of clients vanish
        self.drops_answers = False  # bytes of the server vanish
        self.refuses = False  # new connections are closed at once
        self.dropped = bytearray()  # what clients sent and the server did not get
        self.refused = 0  # connections

    async def start(self) -> TcpProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Close all connections."""
        for writer in tuple(self._writers):
            writer.close()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            self.refused += 1
            writer.close()
            return
        try:
            upstream_reader, upstream = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, upstream}
        await asyncio.gather(
            self._forward(reader, upstream, is_request=True), self._forward(upstream_reader, writer, is_request=False)
        )
        self._writers -= {writer, upstream}

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_request: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if not (self.drops_requests if is_request else self.drops_answers):
                    writer.write(data)
                    await writer.drain()
                elif is_request:
                    self.dropped += data
        writer.close()
