"""Follows the metadata store: holds the current snapshot of the cluster and reports each new one to its subscribers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ottla.coordination.store import Change, MetadataStore, Watch
from ottla.coordination.view import ClusterView
from ottla.coordination.view_builder import ViewBuilder

Subscriber = Callable[[ClusterView, ClusterView], Awaitable[None] | None]
"""Called with the old and the new snapshot; `new.changes_since(old)` lists what differs. If it returns an awaitable,
the change completes only after it."""

logger = logging.getLogger(__name__)


class Cluster:
    """Holds the current snapshot and updates it."""

    def __init__(self, store: MetadataStore) -> None:
        self.current = ClusterView()
        self._store = store
        self._builder = ViewBuilder()
        self._subscribers: list[Subscriber] = []
        self._updating = asyncio.Lock()
        self._watch: Watch | None = None
        self._pending: list[Change] = []  # taken from the watch; kept if a caller is cancelled
        self._is_complete = False
        self._is_loaded = False

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber` after each change; after `load` also at once with the current snapshot."""
        self._subscribers.append(subscriber)
        if self._is_loaded:
            waiting = subscriber(ClusterView(), self.current)
            assert waiting is None, "an asynchronous subscriber must subscribe before the load"

    async def load(self) -> ClusterView:
        """Read the whole cluster and begin to follow it. Raises `layout.MalformedNode`.

        Call it again for a session that was renewed: the snapshot has then all that changed meanwhile.
        """
        async with self._updating:
            watch = self._watch = self._store.watch("/")
            self._pending.clear()
            self._is_complete = False
        await watch.wait()
        view = await self.refresh()
        self._is_loaded = True
        return view

    async def follow(self) -> None:
        """Apply the changes of other brokers until the session ends. Run as a task after each `load`."""
        watch = self._watch
        assert watch is not None, "load comes first"
        while await watch.wait():
            await self.refresh()

    async def sync(self) -> ClusterView:
        """Return a snapshot with everything that was committed before the call. Raises `SessionLost`."""
        await self._store.sync()
        return await self.refresh()

    async def refresh(self) -> ClusterView:
        """Apply what this broker has committed and has learned of others' commits.

        Returns once the snapshot and every subscriber are up to date with it.
        """
        async with self._updating:
            watch = self._watch
            assert watch is not None, "load comes first"
            self._is_complete = self._is_complete or watch.is_complete
            self._pending += watch.take()
            if self._pending or self._is_complete:
                old = self.current
                new = await self._builder.build(old, self._pending, is_complete=self._is_complete)
                self._pending.clear()
                self._is_complete = False
                if new is not old:
                    self.current = new
                    for subscriber in self._subscribers:
                        await self._notify(subscriber, old, new)
            return self.current

    async def _notify(self, subscriber: Subscriber, old: ClusterView, new: ClusterView) -> None:
        """Report a snapshot. The error of one subscriber keeps the others, and later snapshots, from nothing."""
        try:
            waiting = subscriber(old, new)
            if waiting is not None:
                await waiting
        except Exception:
            if not self._is_loaded:
                raise  # the broker does not start
            logger.exception("unexpected error while a change of the cluster was applied; restart the broker")
