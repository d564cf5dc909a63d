"""Tests the simulated connection to the metadata store: held watches, and commits that belong to a session."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from ottla.metadata_store.embedded_store import EmbeddedMetadataStore
from ottla.metadata_store.store import Create, Put, SessionLost, SessionStatus
from ottla.testing.sim_loop import SimLoop
from ottla.testing.sim_store import StoreLink


def simulate(main: Callable[[StoreLink, StoreLink], Awaitable[None]]) -> None:
    loop = SimLoop(random.Random(1), limit_s=100, seed=1)
    store, process = EmbeddedMetadataStore(), loop.process("store")
    one, other = (StoreLink(loop, store, process, host, timeout_s=6.0) for host in ("one", "other"))
    loop.run_until_complete(main(one, other))


def test_a_held_watch_delivers_up_to_a_node() -> None:
    async def main(one: StoreLink, other: StoreLink) -> None:
        writer, reader = await one.open(), await other.open()
        watch = reader.watch("/")
        await watch.wait()
        watch.take()
        other.hold()
        for path in ("/a", "/b", "/c"):
            await writer.commit([Create(path, b"")])
            await asyncio.sleep(1)
        assert watch.take() == ()
        other.release_to("/b")
        assert [each.path for each in watch.take()] == ["/a", "/b"]
        await asyncio.sleep(1)
        assert watch.take() == ()
        other.release()
        assert [each.path for each in watch.take()] == ["/c"]

    simulate(main)


def test_a_sync_delivers_what_is_held() -> None:
    async def main(one: StoreLink, other: StoreLink) -> None:
        writer, reader = await one.open(), await other.open()
        watch = reader.watch("/")
        await watch.wait()
        watch.take()
        other.hold()
        await writer.commit([Create("/a", b"")])
        await reader.sync()
        assert [each.path for each in watch.take()] == ["/a"]

    simulate(main)


def test_a_commit_belongs_to_the_session_in_which_it_was_called() -> None:
    async def main(one: StoreLink, _: StoreLink) -> None:
        session = await one.open()
        await session.commit([Create("/a", b"")])
        one.cut()
        late = asyncio.ensure_future(session.commit([Put("/a", b"late")]))
        await asyncio.sleep(7)
        one.join()
        assert session.state.status is SessionStatus.LOST
        await session.renew()
        with pytest.raises(SessionLost):
            await late
        node = await session.get("/a")
        assert node is not None
        assert node.value == b""

    simulate(main)
