"""Tests a session with ZooKeeper against a connection in memory that fails as the test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from ottla.metadata_store import znodes
from ottla.metadata_store.commit_feed import FEED
from ottla.metadata_store.store import Create, Delete, Node, NodeExists, Op, SessionStatus
from ottla.metadata_store.zookeeper_connection import ZooKeeperConnection, ZooKeeperNode
from ottla.metadata_store.zookeeper_session import CHECK_INTERVAL_S, RETRY_S, ZooKeeperSession


class MemoryConnection:
    """Implements what a session uses of a connection, on a dictionary. `failures` are raised by the next reads."""

    session_id, session_timeout_s = 7, 6.0

    def __init__(self) -> None:
        self.values = {"/": b""}
        self.failures: list[Exception] = []
        self._created: dict[str, int] = {}
        self._deleted = 0
        self._watches: dict[str, list[Callable[[], None]]] = {}

    async def open(self, timeout_s: float) -> None:
        del timeout_s

    async def close(self) -> None:
        pass

    def abandon(self) -> None:
        pass

    async def sync(self, path: str) -> None:
        del path

    async def commit(self, ops: Sequence[Op]) -> list[str | int | None]:
        answers: list[str | int | None] = []
        for op in ops:
            path = op.path
            if isinstance(op, Delete):
                del self.values[path]
                self._deleted += 1
                answers.append(None)
                continue
            assert isinstance(op, Create), "the test creates and deletes only"
            if op.sequential:
                path = f"{path}{len(self._children(FEED)) + self._deleted:010d}"
            if path in self.values:
                raise NodeExists(path)
            self.values[path] = op.value
            self._created[path] = len(self._created) + 1
            answers.append(path)
            for wake in self._watches.pop(path, []):
                wake()
        return answers

    async def get(self, path: str, watch: Callable[[], None] | None = None) -> ZooKeeperNode | None:
        del watch
        if self.failures:
            raise self.failures.pop()
        return self._found(path)

    async def exists(self, path: str, watch: Callable[[], None] | None = None) -> ZooKeeperNode | None:
        if watch is not None:
            self._watches.setdefault(path, []).append(watch)
        return self._found(path)

    async def children(self, path: str) -> list[str]:
        return self._children(path)

    def _children(self, path: str) -> list[str]:
        start = path.rstrip("/") + "/"
        below = (each.removeprefix(start) for each in self.values if each.startswith(start))
        return [name for name in below if name and "/" not in name]

    def _found(self, path: str) -> ZooKeeperNode | None:
        if path not in self.values:
            return None
        below, created = len(self._children(path)), self._created.get(path, 0)
        changes = below + 2 * self._deleted if path == FEED else below  # all that is deleted was in the feed
        owner = self.session_id if path == znodes.CONTROLLER else 0
        return ZooKeeperNode(self.values[path], 0, created, created, owner, below, changes, 0)


async def opened(connection: MemoryConnection, on_changes: Callable[[int, Mapping[str, Node | None]], None]) -> Any:
    """Open a session."""

    def connect(_on_status: Callable[[SessionStatus], None]) -> ZooKeeperConnection:
        return cast("ZooKeeperConnection", cast("Any", connection))

    session = ZooKeeperSession(connect, on_changes=on_changes, on_status=lambda _status: None)
    await session.open(1)
    return session


@pytest.mark.simulated_time
async def test_the_feed_is_trimmed_although_commits_never_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TRIM_ABOVE": 10, "_TRIM_OPS": 5}.items():
        monkeypatch.setattr(f"ottla.metadata_store.zookeeper_session.{name}", value)
    connection = MemoryConnection()
    session = await opened(connection, lambda _number, _changes: None)
    await session.commit([Create("/controller", b"", ephemeral=True)])
    for number in range(100):
        await session.commit([Create(f"/node-{number}")])
        await asyncio.sleep(CHECK_INTERVAL_S / 10)
    await session.close()
    assert len(await connection.children(FEED)) < 80
    assert len(session.nodes) == 101


@pytest.mark.simulated_time
@pytest.mark.parametrize("failures", [1, 3])
async def test_a_session_is_followed_after_an_unexpected_error(failures: int, caplog: pytest.LogCaptureFixture) -> None:
    connection, seen, changed = MemoryConnection(), dict[str, Node | None](), asyncio.Event()

    def note(_number: int, changes: Mapping[str, Node | None]) -> None:
        seen.update(changes)
        changed.set()

    session = await opened(connection, note)
    await asyncio.sleep(RETRY_S)  # it waits for the next commit
    connection.failures += [RuntimeError("a defect")] * failures
    await session.commit([Create("/after", b"x")])
    while "/after" not in seen:
        changed.clear()
        await changed.wait()
    assert session.nodes["/after"].value == b"x"
    assert caplog.text.count("unexpected error while ZooKeeper was followed") == failures
    await session.close()
