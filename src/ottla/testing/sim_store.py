"""Simulates the connection of brokers to a shared metadata store: late answers, late watches, lost sessions.

All brokers share one `EmbeddedMetadataStore` in memory, which runs in a process of its own. Each `StoreLink` belongs to
one host and gives its broker sessions. While a link is cut its session is suspended: reads and commits wait. After the
session timeout the store ends the session, and the broker learns of it once the link is whole again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, TypeVar

from ottla.coordination.embedded import EmbeddedMetadataStore, Session
from ottla.coordination.store import Node, Op, SessionLost
from ottla.testing.sim_loop import SimLoop, SimProcess

T = TypeVar("T")


class StoreLink:
    """The connection of one host to the store."""

    def __init__(
        self, loop: SimLoop, store: EmbeddedMetadataStore, store_process: SimProcess, host: str, *, timeout_s: float
    ) -> None:
        self.loop, self.store, self.timeout_s = loop, store, timeout_s
        self.process = store_process
        self.rng = loop.rng_for(f"store/{host}")
        self.delay_s = 0.001
        self.is_cut = False
        self.expired = 0
        """The number of sessions that the store has ended."""
        self.session: SimSession | None = None
        self._whole: list[asyncio.Future[None]] = []
        self._cuts = 0

    async def open(self) -> SimSession:
        """Open a session. What the last session of this host owned lives until its timeout."""
        await self.arrive()
        self.session = SimSession(self, self.store.session())
        return self.session

    def cut(self) -> None:
        """Suspend the session; it expires after the timeout."""
        if not self.is_cut:
            self.is_cut = True
            self._cuts += 1
            if self.session is not None:
                self.loop.run_in(self.process, self._expire_later(self.session, self._cuts))

    def join(self) -> None:
        """Make the link whole again."""
        self.is_cut = False
        self._cuts += 1
        waiting, self._whole = self._whole, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def process_ended(self) -> None:
        """The broker is gone: its session expires after the timeout."""
        if self.session is not None:
            self.loop.run_in(self.process, self._expire_later(self.session, None))
            self.session = None
        self._whole.clear()
        self.is_cut = False
        self._cuts += 1

    async def expire(self) -> None:
        """End the session now."""
        if self.session is not None:
            await self.in_store(self._expire(self.session))

    async def _expire_later(self, session: SimSession, cut: int | None) -> None:
        await asyncio.sleep(self.timeout_s)
        if cut is None or cut == self._cuts:
            await self._expire(session)

    async def _expire(self, session: SimSession) -> None:
        if not session.is_over:
            self.expired += 1
            session.is_over = True
            await session.inner.expire()

    async def arrive(self) -> None:
        """Wait as long as a message to the store takes, or one from it."""
        await asyncio.sleep(self.rng.random() * self.delay_s)
        while self.is_cut:
            whole: asyncio.Future[None] = self.loop.create_future()
            self._whole.append(whole)
            await whole

    async def in_store(self, work: Coroutine[Any, Any, T]) -> T:
        """Run in the store's process: it goes on if the caller is killed."""
        return await asyncio.shield(self.loop.run_in(self.process, work))


class SimSession:
    """The `MetadataStore` of one broker."""

    def __init__(self, link: StoreLink, inner: Session) -> None:
        self._link, self.inner = link, inner
        self.is_over = False
        self._lost: list[asyncio.Future[None]] = []

    async def get(self, path: str) -> Node | None:
        """Return the node, or None if there is none."""
        await self._link.arrive()
        found = await self.inner.get(path)
        await self._link.arrive()
        return found

    async def children(self, path: str) -> frozenset[str]:
        """Return the names of the children."""
        await self._link.arrive()
        return await self.inner.children(path)

    async def commit(self, ops: Sequence[Op]) -> list[int]:
        """Commit all of `ops` or none."""
        await self._link.arrive()
        done = await self._link.in_store(self.inner.commit(ops))
        await self._link.arrive()
        return done

    async def watch(self, path: str) -> AsyncIterator[frozenset[str]]:
        """Yield every path at or below `path`, then the paths that change, late."""
        async for paths in self.inner.watch(path):
            await self._link.arrive()
            if self.is_over:
                raise SessionLost(path)
            yield paths

    async def lost(self) -> None:
        """Return when the broker learns that the session is over."""
        await self.inner.lost()
        await self._link.arrive()

    async def close(self) -> None:
        """End the session."""
        self.is_over = True
        await self._link.in_store(self.inner.close())
