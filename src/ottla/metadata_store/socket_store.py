"""Implements the metadata store as a client of another process of this machine, which serves it (store_server.py).

The connection is the session. While the other process does not answer, the session is suspended; once the connection
has ended it is lost, and a commit whose answer had not come has an unknown outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ottla.core.unix_sockets import socket_address
from ottla.metadata_store.store import (
    Node,
    Op,
    OutcomeUnknown,
    SessionLost,
    SessionState,
    SessionStates,
    SessionStatus,
    StoreError,
    Watch,
)
from ottla.metadata_store.store_frames import (
    PING_S,
    PUSHED,
    VERSION,
    decode_changes,
    decode_error,
    decode_node,
    decode_nodes,
    encode_op,
    frame,
    read_frame,
)

_SUSPENDED_AFTER_PINGS = 2
_RECONNECT_S = 0.1


class _RemoteWatch(Watch):
    """Ends in the store too if its reader ends it."""

    __slots__ = ("_client", "_number")

    def __init__(self, client: SocketStore, number: int) -> None:
        super().__init__()
        self._client, self._number = client, number

    def end(self) -> None:
        if not self.is_over:
            super().end()
            self._client.end_watch(self._number)


class SocketStore(SessionStates):
    """Implements the `MetadataStore` port over a connection."""

    def __init__(self, path: Path, node_id: int, *, ping_s: float = PING_S) -> None:
        super().__init__(SessionState(0, SessionStatus.LOST))
        self._path, self._node_id, self._ping_s = path, node_id, ping_s
        self._writer: asyncio.StreamWriter | None = None
        self._requests: dict[int, tuple[asyncio.Future[Any], StoreError]] = {}
        self._numbers = itertools.count(PUSHED + 1)
        self._watches: dict[int, Watch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @classmethod
    async def open(cls, path: Path, node_id: int, *, ping_s: float = PING_S) -> SocketStore:
        """Connect and open a session. Raises `SessionLost` if no store is served there."""
        store = cls(path, node_id, ping_s=ping_s)
        await store._connect()
        return store

    # ---- The session

    async def renew(self) -> None:
        """Connect again in place of a lost session, once the store is served. Raises `SessionLost` after `close`."""
        while self._state.status is SessionStatus.LOST:
            if self._is_closed:
                raise SessionLost("/")
            try:
                await self._connect()
            except SessionLost:
                await asyncio.sleep(_RECONNECT_S)

    async def _connect(self) -> None:
        """Connect and open a session. Raises `SessionLost` if no store is served there."""
        try:
            with socket_address(self._path) as address:
                reader, writer = await asyncio.open_unix_connection(address)
        except OSError as error:
            raise SessionLost(str(self._path)) from error
        self._writer = writer
        self._start(self._read(reader, writer))
        try:
            await self._request("hello", VERSION, self._node_id)
        except BaseException:
            self._lose(writer)
            raise
        self._enter(SessionState(self._state.ordinal + 1, SessionStatus.CONNECTED))
        self._start(self._ping(writer))

    async def close(self) -> None:
        """End the session and delete its ephemeral nodes."""
        self._is_closed = True
        writer = self._writer
        if writer is not None:
            with contextlib.suppress(StoreError):
                await self._request("close")
            writer.close()
            self._lose(writer)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- Requests

    async def get(self, path: str) -> Node | None:
        """Return the node, or None if there is none."""
        return decode_node(await self._request("get", path))

    async def children(self, path: str) -> frozenset[str]:
        """Return the names of the children."""
        return frozenset(await self._request("children", path))

    async def list_nodes(self, prefix: str) -> dict[str, Node]:
        """Return all nodes at or below `prefix`."""
        return decode_nodes(await self._request("list", prefix))

    async def commit(self, ops: Sequence[Op]) -> list[int]:
        """Commit all of `ops` or none. Raises `OutcomeUnknown` if the connection ends before the answer."""
        path = ops[0].path if ops else "/"
        versions: list[int] = await self._request(
            "commit", [encode_op(op) for op in ops], unanswered=OutcomeUnknown(path)
        )
        return versions

    async def sync(self) -> None:
        """Return once this session's reads and watches have every commit that was made before the call."""
        await self._request("sync")

    def watch(self, prefix: str) -> Watch:
        """Watch all nodes at or below `prefix`."""
        if self._writer is None:
            raise SessionLost(prefix)
        number = next(self._numbers)
        watch = self._watches[number] = _RemoteWatch(self, number)
        self._writer.write(frame([number, "watch", number, prefix]))
        return watch

    def end_watch(self, number: int) -> None:
        """Stop a watch of this session. For the watch."""
        if self._watches.pop(number, None) is not None and self._writer is not None:
            self._writer.write(frame([PUSHED, "unwatch", number]))

    async def _request(self, name: str, *arguments: Any, unanswered: StoreError | None = None) -> Any:
        first = arguments[0] if arguments else "/"
        lost = SessionLost(first if isinstance(first, str) else "/")
        if self._writer is None:
            raise lost
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._requests[number] = answer, unanswered or lost
        self._writer.write(frame([number, name, *arguments]))
        try:
            return await answer
        finally:
            self._requests.pop(number, None)

    # ---- The connection

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                number, kind, *content = await read_frame(reader)
                if self._state.status is SessionStatus.SUSPENDED:
                    self._enter(self._state._replace(status=SessionStatus.CONNECTED))
                if kind == "lost":
                    return
                if number == PUSHED:
                    watch_id, is_complete, changes = content
                    watch = self._watches.get(watch_id)
                    if watch is not None:
                        watch.publish(decode_changes(changes), is_complete=is_complete)
                    continue
                answer, _ = self._requests.get(number, (None, None))
                if answer is None or answer.done():
                    continue
                if kind == "ok":
                    answer.set_result(content[0])
                else:
                    answer.set_exception(decode_error(*content))
        except (OSError, EOFError, json.JSONDecodeError):
            pass
        finally:
            self._lose(writer)

    def _lose(self, writer: asyncio.StreamWriter) -> None:
        """End the session of a connection that has ended."""
        writer.close()
        if self._writer is not writer:
            return
        self._writer = None
        for answer, error in self._requests.values():
            if not answer.done():
                answer.set_exception(error)
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            watch.end()
        if self._state.status is not SessionStatus.LOST:
            self._enter(self._state._replace(status=SessionStatus.LOST))

    async def _ping(self, writer: asyncio.StreamWriter) -> None:
        """Show that this process lives, and learn whether the other one answers."""
        while self._writer is writer:
            with contextlib.suppress(TimeoutError, StoreError):
                async with asyncio.timeout(self._ping_s * _SUSPENDED_AFTER_PINGS):
                    await self._request("ping")
                    await asyncio.sleep(self._ping_s)
                    continue
            if self._writer is writer and self._state.status is SessionStatus.CONNECTED:
                self._enter(self._state._replace(status=SessionStatus.SUSPENDED))
