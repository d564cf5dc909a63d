"""Detects that this process was stopped for so long that its session with the metadata store may be over.

Others may coordinate then what this broker coordinated, and the store reports it only a little after the process goes
on: until it has, answers from memory would be those of the past.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ottla.core.clock import Clock
from ottla.metadata_store.store import SessionLost, StoreError

log = logging.getLogger(__name__)

GAP_SHARE = 0.5
"""Part of the session timeout without a turn of the loop that counts: the last sign of life was sent a while before."""

RETRY_S = 0.05


class SessionCheck:
    """Watches the turns of the loop, and confirms the session after a gap.

    `confirm` returns once the snapshot of the cluster has all that was committed before the call. Lifecycle: `start`,
    `close`.
    """

    def __init__(self, clock: Clock, session_timeout_s: float, confirm: Callable[[], Awaitable[object]]) -> None:
        self._clock, self._confirm = clock, confirm
        self._limit_s = session_timeout_s * GAP_SHARE
        self._seen_s = clock.monotonic()
        self._gaps = 0
        self._confirming: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name="watch the turns of the loop")

    async def close(self) -> None:
        """Stop watching."""
        tasks = [task for task in (self._watching, self._confirming) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def is_confirmed(self) -> bool:
        """Return whether this process ran all the time, or the session was confirmed since it goes on."""
        now_s = self._clock.monotonic()
        gap_s, self._seen_s = now_s - self._seen_s, now_s
        if gap_s > self._limit_s:
            self._gaps += 1
            log.warning(
                "this process did not run for %.1f s; it coordinates again once its session is confirmed", gap_s
            )
            if self._confirming is None:
                self._confirming = asyncio.get_running_loop().create_task(
                    self._confirm_session(), name="confirm the session"
                )
        return self._confirming is None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._limit_s / 4)
            self.is_confirmed()

    async def _confirm_session(self) -> None:
        """Confirm the session, or another one after it; again if there was another gap meanwhile."""
        try:
            confirmed = 0
            while confirmed < self._gaps:
                gaps = self._gaps
                try:
                    await self._confirm()
                except SessionLost:
                    await asyncio.sleep(RETRY_S)  # there will be another one
                except StoreError as error:
                    log.warning("the session could not be confirmed yet; trying again: %r", error)
                    await asyncio.sleep(RETRY_S)
                else:
                    confirmed = gaps
        finally:
            self._confirming = None
