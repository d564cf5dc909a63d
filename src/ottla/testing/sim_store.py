"""Simulates the connection of brokers to a shared metadata store: late answers, late watches, lost sessions.

All brokers share one `EmbeddedMetadataStore` in memory, which runs in a process of its own. Each `StoreLink` belongs to
one host and gives its broker sessions. While a link is cut its session is suspended: reads and commits wait. After the
session timeout the store ends the session, and the broker learns of it once the link is whole again. While the watches
of a link are held its session goes on, but the broker does not learn what others commit: its part of the store lags.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from ottla.metadata_store.embedded_store import EmbeddedMetadataStore, EmbeddedSession
from ottla.metadata_store.store import (
    Node,
    NodeChange,
    Op,
    OutcomeUnknown,
    SessionLost,
    SessionState,
    SessionStatus,
    Watch,
)
from ottla.testing.sim_loop import SimLoop, SimProcess

T = TypeVar("T")
_STATE_SECONDS = 0.01  # each waiter learns of another state within this time
_LOST_BEFORE_SHARE = 0.5  # of the commits whose answer is lost: they had no effect


class StoreLink:
    """The connection of one host to the store."""

    def __init__(
        self, loop: SimLoop, store: EmbeddedMetadataStore, store_process: SimProcess, host: str, *, timeout_s: float
    ) -> None:
        self.loop, self.store, self.timeout_s = loop, store, timeout_s
        self.process = store_process
        self.rng = loop.rng_for(f"store/{host}")
        self.delay_s = 0.001
        self.unknown_share = 0.0  # of the commits whose answer is lost
        self.unknown = 0
        self.is_cut = False
        self.is_held = False
        """Whether watches deliver nothing, unless the broker commits or asks for a `sync`."""
        self.on_commit: Callable[[int, Sequence[Op]], object] | None = None
        """Called after each commit with the number of its session in the store."""
        self.expired = 0
        """The number of sessions that the store has ended."""
        self.session: SimSession | None = None
        self._last: SimSession | None = None
        self._kept: SimSession | None = None
        self._whole: list[asyncio.Future[None]] = []
        self._cuts = 0
        self._has_gap = False
        self._state_waiters: list[asyncio.Future[None]] = []
        self.hidden: str | None = None  # watches do not deliver the nodes at or below this path

    async def open(self) -> SimSession:
        """Open a session, which ends the one before it of this host: its broker may be starting before the timeout."""
        await self.arrive()
        if self._last is not None:
            await self.in_store(self._expire(self._last))
        self.session = self._last = SimSession(self, self.store.session())
        return self.session

    def cut(self) -> None:
        """Suspend the session; it expires after the timeout."""
        if not self.is_cut:
            self.is_cut = True
            self._cuts += 1
            self.state_changed()
            if self.session is not None:
                self.loop.run_in(self.process, self._expire_later(self.session, self._cuts))

    def cut_with_gap(self) -> None:
        """Suspend the session; the changes until the link is whole are lost, and all nodes are read again then."""
        self._has_gap = True
        self.cut()

    def join(self) -> None:
        """Make the link whole again."""
        self.is_cut = False
        self._cuts += 1
        if self._has_gap:
            self._has_gap = False
            if self.session is not None:
                self.session.lose_changes()
        waiting, self._whole = self._whole, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
        self.state_changed()

    def hold(self) -> None:
        """Deliver no changes to watches."""
        self.is_held = True

    def release(self) -> None:
        """Deliver what was held."""
        self.is_held = False
        if self.session is not None:
            self.session.flush()

    def release_to(self, path: str) -> None:
        """Deliver what was held up to the first change of a node. The rest stays held."""
        if self.session is not None:
            self.session.flush_to(path)

    def state_changed(self) -> None:
        """Wake those who wait for another state of the session, each after a while of its own."""
        waiters, self._state_waiters = self._state_waiters, []
        for future in waiters:
            self.loop.call_later(self.rng.random() * _STATE_SECONDS, _wake, future)

    async def next_change(self) -> None:
        """Return after the state may have changed."""
        waiter: asyncio.Future[None] = self.loop.create_future()
        self._state_waiters.append(waiter)
        await waiter

    def reveal(self) -> None:
        """Deliver the nodes that were hidden."""
        hidden, self.hidden = self.hidden, None
        if self.session is not None and hidden is not None:
            self.session.reveal(hidden)

    def process_ended(self) -> None:
        """Leave the session of a broker that is gone: it expires after the timeout."""
        if self.session is not None:
            self.loop.run_in(self.process, self._expire_later(self.session, None))
            self.session = None
        self._whole.clear()
        self._state_waiters.clear()
        self.is_cut = self._has_gap = self.is_held = False
        self._cuts += 1

    def keep_session(self) -> None:
        """Keep the session of a broker that is gone until `expire`, or until its next start."""
        self._kept = self._last

    async def expire(self) -> None:
        """End the session now, also that of a broker that is gone."""
        if self._last is not None:
            await self.in_store(self._expire(self._last))

    async def _expire_later(self, session: SimSession, cut: int | None) -> None:
        await asyncio.sleep(self.timeout_s)
        if session is not self._kept and (cut is None or cut == self._cuts):
            await self._expire(session)

    async def _expire(self, session: SimSession) -> None:
        if not session.is_over:
            self.expired += 1
            await session.inner.expire()
            self.state_changed()

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


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class _Feed:
    """Carries the changes of one watch to its reader, late and in order. It runs in the store's process."""

    def __init__(self, link: StoreLink, inner: Watch) -> None:
        self.outer = Watch()
        self._link, self._inner = link, inner
        self._pending: list[tuple[tuple[NodeChange, ...], bool]] = []
        link.loop.run_in(link.process, self._carry())

    def flush(self) -> None:
        """Deliver what has changed up to now."""
        self._take()
        pending, self._pending = self._pending, []
        for changes, is_complete in pending:
            self.outer.publish(changes, is_complete=is_complete)

    def flush_to(self, path: str) -> None:
        """Deliver what has changed up to the first change of a node."""
        self._take()
        count = next((at for at, (found, _) in enumerate(self._pending, 1) if any(x.path == path for x in found)), 0)
        delivered, self._pending = self._pending[:count], self._pending[count:]
        for changes, is_complete in delivered:
            self.outer.publish(changes, is_complete=is_complete)

    def lose(self, nodes: tuple[NodeChange, ...]) -> None:
        """Lose what was not delivered; deliver all nodes in its place."""
        self._take()
        self._pending = [(nodes, True)]

    def add(self, nodes: tuple[NodeChange, ...]) -> None:
        """Deliver these nodes as changes."""
        self._pending.append((nodes, False))
        self.flush()

    def _take(self) -> None:
        is_complete = self._inner.is_complete
        changes = self._inner.take()
        if (hidden := self._link.hidden) is not None:
            changes = tuple(change for change in changes if not f"{change.path}/".startswith(f"{hidden}/"))
        if changes or is_complete:
            self._pending.append((changes, is_complete))

    async def _carry(self) -> None:
        is_loaded = False
        while await self._inner.wait():
            self._take()
            await self._link.arrive()
            if not (self._link.is_held and is_loaded):
                self.flush()
            is_loaded = True
        await self._link.arrive()
        self.outer.end()


class SimSession:
    """The `MetadataStore` of one broker."""

    def __init__(self, link: StoreLink, inner: EmbeddedSession) -> None:
        self._link, self.inner = link, inner
        self._feeds: list[tuple[str, _Feed]] = []
        self._is_closed = False

    # ---- The session

    @property
    def is_over(self) -> bool:
        """Whether the store has ended the session."""
        return self.inner.state.status is SessionStatus.LOST

    @property
    def state(self) -> SessionState:
        """Return the state as the broker knows it."""
        ordinal = self.inner.state.ordinal
        if self._is_closed or (self.is_over and not self._link.is_cut):
            return SessionState(ordinal, SessionStatus.LOST)
        return SessionState(ordinal, SessionStatus.SUSPENDED if self._link.is_cut else SessionStatus.CONNECTED)

    async def next_state(self, known: SessionState) -> SessionState:
        """Return the state as soon as it differs from `known`."""
        while (state := self.state) == known:
            await self._link.next_change()
        return state

    async def renew(self) -> None:
        """Open another session in place of a lost one."""
        await self._link.arrive()
        await self._link.in_store(self.inner.renew())
        self._link.state_changed()

    async def close(self) -> None:
        """End the session."""
        self._is_closed = True
        self._link.state_changed()
        await self._link.in_store(self.inner.close())

    # ---- Reads, writes, watches

    async def get(self, path: str) -> Node | None:
        """Return the node, or None if there is none."""
        await self._link.arrive()
        node = await self.inner.get(path)
        await self._link.arrive()
        return node

    async def children(self, path: str) -> frozenset[str]:
        """Return the names of the children."""
        await self._link.arrive()
        return await self.inner.children(path)

    async def list_nodes(self, prefix: str) -> dict[str, Node]:
        """Return all nodes at or below `prefix`."""
        await self._link.arrive()
        return await self.inner.list_nodes(prefix)

    async def commit(self, ops: Sequence[Op]) -> list[int]:
        """Commit all of `ops` or none. Raises OutcomeUnknown, with or without an effect, as the seed decides.

        A commit belongs to the session in which it was called, also if another one was opened before it arrives.
        """
        link = self._link
        path, session = ops[0].path if ops else "/", self.inner.number
        await link.arrive()
        is_lost = link.rng.random() < link.unknown_share
        if is_lost and link.rng.random() < _LOST_BEFORE_SHARE:
            link.unknown += 1
            raise OutcomeUnknown(path)
        done = await link.in_store(self._commit(session, ops))
        was_cut = link.is_cut
        if is_lost or (was_cut and link.rng.random() < _LOST_BEFORE_SHARE):
            link.unknown += 1
            raise OutcomeUnknown(path)
        await link.arrive()
        self.flush()
        return done

    async def _commit(self, session: int, ops: Sequence[Op]) -> list[int]:
        if session != self.inner.number:
            raise SessionLost(ops[0].path if ops else "/")
        done = await self.inner.commit(ops)
        if self._link.on_commit is not None:
            self._link.on_commit(session, ops)
        return done

    def watch(self, prefix: str) -> Watch:
        """Watch all nodes at or below `prefix`."""
        feed = _Feed(self._link, self.inner.watch(prefix))
        self._feeds.append((prefix, feed))
        return feed.outer

    async def sync(self) -> None:
        """Return once the watches have all that was committed before."""
        await self._link.arrive()
        if self.is_over:
            raise SessionLost("/")
        self.flush()

    def lose_changes(self) -> None:
        """Lose the changes that were not delivered: every watch receives all nodes in their place."""
        if not self.is_over:
            for prefix, feed in self._feeds:
                watch = self._link.store.add_watch(prefix)
                feed.lose(watch.take())
                self._link.store.end_watch(watch)

    def reveal(self, prefix: str) -> None:
        """Deliver the nodes at or below a path to the watches of the whole tree."""
        for _, feed in self._feeds:
            watch = self._link.store.add_watch(prefix)
            feed.add(watch.take())
            self._link.store.end_watch(watch)

    def flush(self) -> None:
        """Deliver to all watches what has changed up to now."""
        for _, feed in self._feeds:
            feed.flush()

    def flush_to(self, path: str) -> None:
        """Deliver to all watches what has changed up to the first change of a node."""
        for _, feed in self._feeds:
            feed.flush_to(path)
