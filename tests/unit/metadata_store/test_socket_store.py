"""Tests the store over a socket: how sessions end, stall and resume; the contract suite has the rest."""

from __future__ import annotations

import asyncio
import contextlib
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from ottla.core.errors import StorageError
from ottla.metadata_store import socket_store, store_server
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore, EmbeddedSession
from ottla.metadata_store.socket_store import SocketStore
from ottla.metadata_store.store import (
    Create,
    MetadataStore,
    Op,
    OutcomeUnknown,
    SessionLost,
    SessionState,
    SessionStatus,
)
from ottla.metadata_store.store_frames import VERSION, frame, read_frame
from ottla.metadata_store.store_server import StoreServer


class HangingSession(EmbeddedSession):
    """Commits and does not answer."""

    async def commit(self, ops: Sequence[Op]) -> list[int]:
        await super().commit(ops)
        await asyncio.Event().wait()
        return []


class CountingStore(SocketStore):
    """Counts its attempts to connect."""

    attempts = 0

    async def _connect(self) -> None:
        self.attempts += 1
        await super()._connect()


@contextlib.asynccontextmanager
async def served(
    path: Path, tree: EmbeddedMetadataStore, *, timeout_s: float = 6.0, session: type[EmbeddedSession] = EmbeddedSession
) -> AsyncIterator[StoreServer]:
    async def open_session() -> MetadataStore:
        return session(tree)

    server = StoreServer(path, open_session, timeout_s=timeout_s)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def until_lost(store: MetadataStore) -> None:
    async with asyncio.timeout(5):
        state = store.state
        while state.status is not SessionStatus.LOST:
            state = await store.next_state(state)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 - the store has no event for it
            await asyncio.sleep(0.005)


async def until_gone(tree: EmbeddedMetadataStore, path: str) -> None:
    await until(lambda: path not in tree.nodes)


async def test_the_socket_is_for_its_user_alone_wherever_it_is(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-directory-with-a-long-name"] * 8)
    deep.mkdir(parents=True)
    path = deep / "store.sock"
    path.write_bytes(b"")  # left by a killed process
    async with served(path, EmbeddedMetadataStore()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        store = await SocketStore.open(path, 1)
        await store.commit([Create("/a")])
        await store.close()
    assert not path.exists()


async def test_the_end_of_a_connection_ends_the_session_at_once(tmp_path: Path) -> None:
    tree = EmbeddedMetadataStore()
    async with served(tmp_path / "s", tree):
        store = await SocketStore.open(tmp_path / "s", 1)
        await store.commit([Create("/alive", ephemeral=True)])
        assert store._writer is not None
        store._writer.transport.abort()  # as the system does for a killed process
        await until_gone(tree, "/alive")
        await until_lost(store)
        await store.renew()
        assert store.state == SessionState(2, SessionStatus.CONNECTED)
        await store.commit([Create("/alive", ephemeral=True)])
        await store.close()
        assert "/alive" not in tree.nodes


async def test_a_process_that_sends_no_pings_loses_its_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_server, "_TICK_S", 0.05)

    tree = EmbeddedMetadataStore()
    async with served(tmp_path / "s", tree, timeout_s=0.3):
        heard = await SocketStore.open(tmp_path / "s", 2, ping_s=0.02)  # the older one: without pings the first to go
        await heard.commit([Create("/heard", ephemeral=True)])
        silent = await SocketStore.open(tmp_path / "s", 1, ping_s=3600)
        await silent.commit([Create("/silent", ephemeral=True)])
        await until_lost(silent)
        await until_gone(tree, "/silent")
        await heard.sync()
        assert "/heard" in tree.nodes
        await heard.close()
        await silent.close()


def test_time_in_which_the_store_itself_was_stopped_ends_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the whole machine is suspended: the pings of the others are not read yet."""

    async def scenario() -> None:
        tree, loop = EmbeddedMetadataStore(), asyncio.get_running_loop()
        async with served(tmp_path / "s", tree, timeout_s=1.0):
            store = await SocketStore.open(tmp_path / "s", 1, ping_s=0.1)
            await store.commit([Create("/alive", ephemeral=True)])
            time = loop.time
            monkeypatch.setattr(loop, "time", lambda: time() + 3600)
            await asyncio.sleep(0)  # the server's timers are due in this turn, before a ping can be read
            await store.sync()
            assert "/alive" in tree.nodes
            await store.close()

    asyncio.run(scenario())


async def test_a_commit_whose_answer_never_came_has_an_unknown_outcome_and_a_read_has_none(tmp_path: Path) -> None:
    tree = EmbeddedMetadataStore()
    async with served(tmp_path / "s", tree, session=HangingSession):
        store = await SocketStore.open(tmp_path / "s", 1)
        commit = asyncio.ensure_future(store.commit([Create("/made")]))
        await until(lambda: "/made" in tree.nodes)
        assert store._writer is not None
        store._writer.transport.abort()
        with pytest.raises(OutcomeUnknown) as unknown:
            await commit
        assert unknown.value.path == "/made"
        for attempt in (store.get("/made"), store.sync(), store.list_nodes("/"), store.commit([Create("/b")])):
            with pytest.raises(SessionLost):
                await attempt
        with pytest.raises(SessionLost):
            store.watch("/")
        await store.close()


async def test_a_session_is_suspended_while_the_store_does_not_answer(tmp_path: Path) -> None:
    answers = asyncio.Event()
    answers.set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                number, *_ = await read_frame(reader)
                await answers.wait()
                writer.write(frame([number, "ok", VERSION]))
        writer.close()

    server = await asyncio.start_unix_server(answer, tmp_path / "s")
    store = await SocketStore.open(tmp_path / "s", 1, ping_s=0.05)
    answers.clear()
    connected = SessionState(1, SessionStatus.CONNECTED)
    async with asyncio.timeout(5):
        suspended = await store.next_state(connected)
        assert suspended == SessionState(1, SessionStatus.SUSPENDED)
        answers.set()
        assert await store.next_state(suspended) == connected
    await store.close()
    server.close()


async def test_errors_of_the_disk_reach_the_other_process(tmp_path: Path) -> None:
    class FailingSession(EmbeddedSession):
        async def commit(self, ops: Sequence[Op]) -> list[int]:
            raise StorageError("the disk is full")

    async with served(tmp_path / "s", EmbeddedMetadataStore(), session=FailingSession):
        store = await SocketStore.open(tmp_path / "s", 1)
        with pytest.raises(StorageError, match="the disk is full"):
            await store.commit([Create("/a")])
        await store.close()


def test_without_a_store_there_no_session_is_opened(tmp_path: Path) -> None:
    with pytest.raises(SessionLost):
        asyncio.run(SocketStore.open(tmp_path / "s", 1))


async def test_a_session_is_renewed_as_soon_as_the_store_is_served_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_store, "_RECONNECT_S", 0.01)

    async with served(tmp_path / "s", EmbeddedMetadataStore()):
        store = await CountingStore.open(tmp_path / "s", 1)
    assert isinstance(store, CountingStore)
    await until_lost(store)
    renewing = asyncio.ensure_future(store.renew())
    await until(lambda: store.attempts == 3)
    assert not renewing.done()
    async with served(tmp_path / "s", EmbeddedMetadataStore()):
        await asyncio.wait_for(renewing, 5)
        await store.commit([Create("/a")])
    await until_lost(store)
    renewing = asyncio.ensure_future(store.renew())
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(SessionLost):
        await asyncio.wait_for(renewing, 5)


async def test_a_watch_that_its_reader_ends_costs_the_store_nothing_more(tmp_path: Path) -> None:
    async with served(tmp_path / "s", EmbeddedMetadataStore()) as server:
        store = await SocketStore.open(tmp_path / "s", 1)
        watch = store.watch("/")
        await watch.wait()
        (connection,) = server._connections
        assert len(connection._watches) == 1
        watch.end()
        await store.sync()
        assert len(connection._watches) == 0
        await store.commit([Create("/a")])
        await store.close()


async def test_any_bytes_are_values(tmp_path: Path) -> None:
    async with served(tmp_path / "s", EmbeddedMetadataStore()):
        store = await SocketStore.open(tmp_path / "s", 1)
        value = bytes(range(256)) + "é€".encode()
        await store.commit([Create("/é", value)])
        node = await store.get("/é")
        assert node is not None
        assert node.value == value
        await store.close()
