"""Follows the metadata store: holds the current snapshot of the cluster and reports each new one to its subscribers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ottla.metadata_store.cluster_view import ClusterView
from ottla.metadata_store.cluster_view_builder import NODES_AT_ONCE, ViewBuilder
from ottla.metadata_store.store import MetadataStore, NodeChange, SessionLost, Watch

Subscriber = Callable[[ClusterView, ClusterView], Awaitable[None] | None]
"""Called with the old and the new snapshot; `new.changes_since(old)` lists what differs. If it returns an awaitable,
the change completes only after it."""

RETRY_S = 1.0
"""Pause after an unexpected error before the cluster is read again."""

logger = logging.getLogger(__name__)


class MetadataCache:
    """Holds the current snapshot and updates it."""

    def __init__(self, store: MetadataStore) -> None:
        self.current = ClusterView()
        self._store = store
        self._builder = ViewBuilder()
        self._subscribers: list[Subscriber] = []
        self._updating = asyncio.Lock()
        self._refreshes: set[asyncio.Task[ClusterView]] = set()
        self._watch: Watch | None = None
        self._pending: list[NodeChange] = []  # taken from the watch; kept if a caller is cancelled
        self._is_complete = False
        self._is_loaded = False

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber` after each change; after `load` also at once with the current snapshot."""
        self._subscribers.append(subscriber)
        if self._is_loaded:
            waiting = subscriber(ClusterView(), self.current)
            assert waiting is None, "an asynchronous subscriber must subscribe before the load"

    async def load(self) -> ClusterView:
        """Read the whole cluster and begin to follow it. Raises `SessionLost`.

        Call it again for a session that was renewed: the snapshot has then all that changed meanwhile.
        """
        watch = await self._watch_all()
        if not await watch.wait():
            raise SessionLost("/")  # and so nothing was read
        view = await self.refresh()
        self._is_loaded = True
        return view

    async def _watch_all(self) -> Watch:
        """Begin another watch, which first has all nodes."""
        async with self._updating:
            watch = self._watch = self._store.watch("/")
            self._pending.clear()
            self._is_complete = False
            return watch

    async def follow(self) -> None:
        """Apply the changes of other brokers until the session ends. Run as a task after each `load`.

        It follows one watch: what the next `load` begins is another task's. After an unexpected error the whole cluster
        is read again.
        """
        watch = self._watch
        assert watch is not None, "load comes first"
        while True:
            try:
                if not await watch.wait():
                    return
                await self.refresh()
            except Exception:
                logger.exception("unexpected error while changes of the cluster were followed; reading all of it again")
                await asyncio.sleep(RETRY_S)
                if watch is not self._watch or watch.is_over:
                    return  # another session: it is followed by another task
                watch.end()
                watch = await self._watch_all()

    async def sync(self) -> ClusterView:
        """Return a snapshot with everything that was committed before the call. Raises `SessionLost`."""
        await self._store.sync()
        if self._watch is not None and self._watch.is_over:
            raise SessionLost("/")  # the store has another session, which `load` has not read yet
        return await self.refresh()

    async def refresh(self) -> ClusterView:
        """Apply what this broker has committed and has learned of others' commits.

        Returns once the snapshot and every subscriber are up to date with it. What has begun is completed also if the
        caller is cancelled: every subscriber gets every snapshot.
        """
        refresh = asyncio.get_running_loop().create_task(self._refresh(), name="apply changes of the cluster")
        self._refreshes.add(refresh)
        refresh.add_done_callback(self._refreshes.discard)
        return await asyncio.shield(refresh)

    async def close(self) -> None:
        """Apply no more changes. Ends what cancelled callers of `refresh` have begun."""
        for refresh in tuple(self._refreshes):
            refresh.cancel()
        await asyncio.gather(*self._refreshes, return_exceptions=True)

    async def _refresh(self) -> ClusterView:
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
                    is_large = new.delta is not None and len(new.delta.topics) > NODES_AT_ONCE
                    for subscriber in self._subscribers:
                        if is_large:
                            await asyncio.sleep(0)  # each looks at all topics that changed
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
