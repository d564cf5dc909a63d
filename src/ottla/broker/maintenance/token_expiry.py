"""Removes delegation tokens that have expired, on the controller's broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ottla.controller.security_changes import RemoveToken
from ottla.core.clock import Clock
from ottla.core.errors import KafkaError
from ottla.metadata_store.cluster_view import ClusterView
from ottla.metadata_store.store import StoreError

log = logging.getLogger(__name__)

_TOKENS_AT_ONCE = 2_000
"""After so many tokens the event loop serves others."""


async def remove_expired_tokens(
    remove: Callable[[RemoveToken], Awaitable[int]],
    *,
    is_controller: Callable[[], bool],
    view: Callable[[], ClusterView],
    clock: Clock,
    interval_s: float,
) -> None:
    """Remove expired tokens from time to time, until this is cancelled."""
    while True:
        await asyncio.sleep(interval_s)
        if not is_controller():
            continue
        now_ms = clock.wall_ms()
        expired = []
        for looked_at, stored in enumerate(view().delegation_tokens.values(), start=1):
            if stored.information.is_expired(now_ms):
                expired.append(stored.information)
            if looked_at % _TOKENS_AT_ONCE == 0:
                await asyncio.sleep(0)
        try:
            for token in expired:
                await remove(RemoveToken(token.token_id, now_ms))
                log.info("the delegation token %s of %s has expired", token.token_id, token.owner)
        except (KafkaError, StoreError) as error:
            log.warning("expired delegation tokens could not be removed; trying again later: %r", error)
        except Exception:
            log.exception("unexpected error while expired delegation tokens were removed; trying again later")
