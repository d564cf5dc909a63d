"""Bounds the age of the snapshot: what others have committed longer ago than `age_max_s` is in it, or it is too old.

The store delivers changes as they come, but a broker that is cut off from it learns of nothing, and not even of that:
its session may be over, or the store's server that it is connected to may lag. So the snapshot is confirmed again and
again by a `sync`, which returns once it has everything that was committed before the call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ottla.core.clock import Clock
from ottla.metadata_store.store import StoreError

log = logging.getLogger(__name__)

_SYNCS = 4
"""Times that the snapshot is confirmed within its greatest age."""
RETRY_S = 0.5


class SnapshotAge:
    """Confirms the snapshot. Lifecycle: made before the snapshot is loaded, then `start`, `close`."""

    def __init__(self, clock: Clock, age_max_s: float, sync: Callable[[], Awaitable[object]]) -> None:
        self._now, self._age_max_s, self._sync = clock.monotonic, age_max_s, sync
        self._confirmed_s = clock.monotonic()  # what was committed before this is in the snapshot
        self.holds_until_s = self._confirmed_s + age_max_s  # by the monotonic clock; what came before need not ask
        self._is_reported = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to confirm it."""
        self._task = asyncio.get_running_loop().create_task(self._confirm(), name="confirm the snapshot")

    async def close(self) -> None:
        """Confirm it no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def is_too_old(self) -> bool:
        """Return whether something may be missing that was committed longer ago than the greatest age.

        By the clock and not by a timer: a process that was stopped for a while may serve a request before its timers.
        """
        age_s = self._now() - self._confirmed_s
        if age_s <= self._age_max_s:
            return False
        if not self._is_reported:
            self._is_reported = True
            log.error(
                "the metadata store has confirmed nothing for %.0f s: ACLs and credentials may have changed meanwhile. "
                "Clients are disconnected until it does (ottla.security.metadata.max.age.ms)",
                age_s,
            )
        return True

    async def _confirm(self) -> None:
        interval_s = self._age_max_s / _SYNCS
        while True:
            began_s = self._now()
            try:
                await self._sync()
            except StoreError as error:  # such as SessionLost: there will be another session
                log.debug("the snapshot could not be confirmed yet: %r", error)
                await asyncio.sleep(min(RETRY_S, interval_s))
                continue
            except Exception:
                log.exception("unexpected error while the snapshot was confirmed; trying again")
                await asyncio.sleep(min(RETRY_S, interval_s))
                continue
            self._confirmed_s = began_s
            self.holds_until_s = began_s + self._age_max_s
            if self._is_reported and not self.is_too_old():
                self._is_reported = False
                log.warning("the metadata store has confirmed the ACLs and credentials; clients are served again")
            await asyncio.sleep(max(interval_s - (self._now() - began_s), 0))
