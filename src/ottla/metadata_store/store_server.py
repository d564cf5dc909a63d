"""Serves a metadata store to other processes of this machine over a unix socket.

Each connection is a session with the store, which ends with the connection: the system closes the connections of a
killed process, so its ephemeral nodes are deleted at once. A process that is stopped sends no pings and loses its
session after `SESSION_TIMEOUT_S`; time in which this process itself was stopped or late does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ottla.core.errors import StorageError
from ottla.core.unix_sockets import socket_address
from ottla.metadata_store.store import MetadataStore, Op, SessionLost, SessionStatus, StoreError, Watch
from ottla.metadata_store.store_frames import (
    PUSHED,
    SESSION_TIMEOUT_S,
    VERSION,
    decode_op,
    encode_changes,
    encode_error,
    encode_node,
    encode_nodes,
    frame,
    read_frame,
)

OpenSession = Callable[[], Awaitable[MetadataStore]]

_TICK_S = 0.5
_FLUSH_S = 1.0
_MODE = 0o600
"""The socket is for this user alone: who can connect can change everything."""

logger = logging.getLogger(__name__)


class StoreServer:
    """Accepts connections and opens a session for each."""

    def __init__(self, path: Path, open_session: OpenSession, *, timeout_s: float = SESSION_TIMEOUT_S) -> None:
        self._path, self._open_session, self._timeout_s = path, open_session, timeout_s
        self._server: asyncio.Server | None = None
        self._connections: dict[_StoreConnection, asyncio.Task[None]] = {}
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen at the path; what an earlier process left there is replaced. Raises OSError."""
        self._path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(listening.fileno(), _MODE)
            with socket_address(self._path) as address:
                listening.bind(address)
            self._path.chmod(_MODE)
            self._server = await asyncio.start_unix_server(self._accept, sock=listening)
        except BaseException:
            listening.close()
            raise
        self._ticking = asyncio.get_running_loop().create_task(self._tick(), name="store sessions")

    async def close(self) -> None:
        """End all sessions and stop listening."""
        if self._ticking is not None:
            self._ticking.cancel()
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.abort()
        if self._connections:
            await asyncio.wait(tuple(self._connections.values()))
        self._path.unlink(missing_ok=True)

    def expire(self, node_id: int) -> None:
        """End the sessions of one participant. For tests."""
        for connection in tuple(self._connections):
            if connection.node_id == node_id:
                connection.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _StoreConnection(reader, writer, self._open_session)
        task = asyncio.current_task()
        assert task is not None
        self._connections[connection] = task
        try:
            await connection.serve()
        finally:
            del self._connections[connection]

    async def _tick(self) -> None:
        """End the sessions that were not heard of for too long."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(_TICK_S)
            now = loop.time()
            late_s = now - last - _TICK_S
            last = now
            for connection in tuple(self._connections):
                if late_s > _TICK_S:  # this process was stopped: what others sent meanwhile is not read yet
                    connection.heard_at += late_s
                if now - connection.heard_at > self._timeout_s:
                    logger.warning("node %d was not heard of for %.1f s", connection.node_id, self._timeout_s)
                    connection.abort()


class _StoreConnection:
    """Serves one session."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, open_session: OpenSession) -> None:
        self._reader, self._writer, self._open_session = reader, writer, open_session
        self._session: MetadataStore | None = None
        self._watches: dict[int, Watch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.heard_at = asyncio.get_running_loop().time()
        self.node_id = -1

    async def serve(self) -> None:
        """Answer until the connection ends, then end the session."""
        try:
            await self._serve_requests()
        except (OSError, EOFError):
            pass
        except (StoreError, StorageError) as error:
            logger.warning("the session of node %d has ended: %r", self.node_id, error)
        except (ValueError, TypeError):
            logger.exception("node %d sent a malformed request", self.node_id)
        finally:
            self.abort()
            for watch in self._watches.values():
                watch.end()
            if self._session is not None:
                await self._session.close()
            for task in tuple(self._tasks):
                task.cancel()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_FLUSH_S):
                    await self._writer.wait_closed()
            self._writer.transport.abort()

    def abort(self) -> None:
        """Close the connection at once: the session ends."""
        if not self._writer.is_closing():
            self._send([PUSHED, "lost"])
            self._writer.close()
            self._reader.feed_eof()  # the transport ends only once the other side has read everything

    async def _serve_requests(self) -> None:
        number, name, version, node_id = await read_frame(self._reader)
        if name != "hello" or version != VERSION:
            self._send([number, "error", "StorageError", f"the store speaks version {VERSION} of its protocol"])
            return
        self.node_id = node_id
        self._session = session = await self._open_session()
        self._start(self._end_with(session))
        self._send([number, "ok", VERSION])
        while True:
            number, name, *arguments = await read_frame(self._reader)
            self.heard_at = asyncio.get_running_loop().time()
            if name == "watch":
                watch_id, prefix = arguments
                self._watches[watch_id] = watch = session.watch(prefix)
                self._start(self._push(watch_id, watch))
            elif name == "unwatch":
                self._watches.pop(arguments[0]).end()
            else:
                self._start(self._answer(session, number, name, arguments))

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end_with(self, session: MetadataStore) -> None:
        """Close the connection when the store itself ends the session."""
        state = session.state
        while state.status is not SessionStatus.LOST:
            state = await session.next_state(state)
        self.abort()

    async def _push(self, watch_id: int, watch: Watch) -> None:
        while await watch.wait():
            self._flush(watch_id, watch)

    def _flush(self, watch_id: int, watch: Watch) -> None:
        is_complete, changes = watch.is_complete, watch.take()
        if changes or is_complete:
            self._send([PUSHED, "changes", watch_id, is_complete, encode_changes(changes)])

    async def _answer(self, session: MetadataStore, number: int, name: str, arguments: list[Any]) -> None:
        answer: list[Any]
        try:
            answer = ["ok", await _result(session, name, arguments)]
        except Exception as error:  # noqa: BLE001 - the other side raises it
            answer = ["error", *encode_error(error)]
        for watch_id, watch in self._watches.items():  # who committed, or waited for others' commits, has them
            self._flush(watch_id, watch)
        self._send([number, *answer])
        if name == "close":
            self.abort()

    def _send(self, content: list[Any]) -> None:
        if not self._writer.is_closing():
            self._writer.write(frame(content))


async def _result(session: MetadataStore, name: str, arguments: list[Any]) -> Any:
    match name, arguments:
        case "ping", []:
            return None
        case "get", [path]:
            return encode_node(await session.get(path))
        case "children", [path]:
            return sorted(await session.children(path))
        case "list", [prefix]:
            return encode_nodes(await session.list_nodes(prefix))
        case "commit", [ops]:
            decoded: list[Op] = [decode_op(op) for op in ops]
            return await session.commit(decoded)
        case "sync", []:
            return await session.sync()
        case "close", []:
            return await session.close()
        case _:
            raise SessionLost(f"unknown request {name}")
