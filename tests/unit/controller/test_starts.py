"""The start of a broker: it is in the first snapshot, whatever happens to its session meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ottla.metadata_store import broker_registration, znodes
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore, EmbeddedSession
from ottla.metadata_store.logged_wait import LOG_AFTER_S, LoggedWait
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.metadata_store.store import Op, SessionLost, Watch
from tests.unit.controller.test_controller import Node

pytestmark = pytest.mark.simulated_time


class LostWhenRegistered(EmbeddedSession):
    """Is lost once the broker is registered."""

    async def commit(self, ops: Sequence[Op]) -> list[int]:
        versions = await super().commit(ops)
        if self.state.ordinal == 1 and any(op.path == znodes.broker_path(1) for op in ops):
            await self.expire()
        return versions


class LostWhenWatched(EmbeddedSession):
    """Is lost when the broker begins to read the first snapshot."""

    def watch(self, prefix: str) -> Watch:
        watch = super().watch(prefix)
        if self.state.ordinal == 1:
            asyncio.get_running_loop().create_task(self.expire())
            watch.take()
        return watch


@pytest.mark.parametrize("kind", [LostWhenRegistered, LostWhenWatched])
async def test_a_broker_whose_session_is_lost_before_the_first_snapshot_registers_again(
    kind: type[EmbeddedSession],
) -> None:
    node = Node(EmbeddedMetadataStore())
    node.store.__class__ = kind
    await node.start()
    assert node.store.state.ordinal == 2
    assert 1 in node.cluster.current.brokers
    assert node.cluster.current.controller_id == 1
    await node.controller.create_topic("t")
    await node.stop()


async def test_a_snapshot_is_not_loaded_in_a_session_that_ends_meanwhile() -> None:
    session = EmbeddedMetadataStore().session()
    session.__class__ = LostWhenWatched
    await broker_registration.join_cluster(session, "c")
    with pytest.raises(SessionLost):
        await MetadataCache(session).load()


@pytest.mark.parametrize("seconds", [LOG_AFTER_S / 2, LOG_AFTER_S * 3])
async def test_a_long_wait_is_logged_when_it_becomes_long_and_when_it_ends(
    seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with LoggedWait("a friend") as waiting:
        waiting.reason = "it rains"
        await asyncio.sleep(seconds)
    is_long = seconds > LOG_AFTER_S
    assert caplog.messages == (["waiting for a friend: it rains", "waited 3.0 s for a friend"] if is_long else [])
