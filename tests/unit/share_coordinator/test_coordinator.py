"""The share coordinator on its topic: what it answers is durable, and a failed write is forgotten."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla.core.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    ErrorCode,
    NotCoordinator,
    StorageError,
)
from ottla.internal_topics.writer import QUEUE_BYTES_MAX
from ottla.share_coordinator.config import ShareCoordinatorConfig
from ottla.share_coordinator.coordinator import ShareCoordinator
from ottla.share_coordinator.machine import StateWrite
from ottla.share_coordinator.records import SharePartitionKey
from ottla.share_coordinator.states import RecordState, StateBatch
from ottla.testing.sim_loop import SimClock
from tests.support.topic_logs import MemoryTopicLog

pytestmark = pytest.mark.simulated_time

KEY = SharePartitionKey("team", uuid.UUID(int=3), 0)
DONE = StateWrite(0, 0, -1, 10, (StateBatch(0, 9, RecordState.ACKNOWLEDGED, 1),))


class ShareCoordinatorHarness:
    """A log and the coordinator on it, which may be started again."""

    def __init__(self) -> None:
        self.log = MemoryTopicLog()
        self.config = ShareCoordinatorConfig(
            prune_interval_ms=1_000, cold_snapshot_interval_ms=1_000, snapshot_update_records=2
        )
        self.coordinator = self.new()

    def new(self) -> ShareCoordinator:
        coordinator = ShareCoordinator(
            self.config, clock=SimClock(), log=self.log, node_id=1, exists=lambda _topic, _partition: True
        )
        coordinator.led.lead(0)
        return coordinator

    async def restart(self) -> None:
        await self.coordinator.close()
        self.coordinator = self.new()
        await self.coordinator.led.wait_until_loaded()


async def test_a_state_survives_a_restart() -> None:
    harness = ShareCoordinatorHarness()
    await harness.coordinator.led.wait_until_loaded()
    await harness.coordinator.initialize(KEY, 0, 0)
    await harness.coordinator.write(KEY, DONE)
    await harness.restart()
    found = (await harness.coordinator.read(KEY, 1)).state
    assert found is not None
    assert (found.batches, found.delivery_complete_count) == (DONE.batches, 10)
    await harness.coordinator.close()


async def test_a_failed_write_is_not_seen_afterwards() -> None:
    harness = ShareCoordinatorHarness()
    await harness.coordinator.led.wait_until_loaded()
    await harness.coordinator.initialize(KEY, 0, 0)
    harness.log.failing = StorageError()
    with pytest.raises((StorageError, NotCoordinator)):
        await harness.coordinator.write(KEY, DONE)
    harness.log.failing = None
    await asyncio.sleep(1)
    await harness.coordinator.led.wait_until_loaded()
    found = (await harness.coordinator.read(KEY, 0)).state
    assert found is not None
    assert found.batches == ()
    await harness.coordinator.close()


async def test_while_too_many_writes_wait_no_state_changes_and_nothing_is_loaded_again() -> None:
    harness = ShareCoordinatorHarness()
    await harness.coordinator.led.wait_until_loaded()
    large = [SharePartitionKey("team" * 1000, uuid.UUID(int=3), index) for index in range(2 * QUEUE_BYTES_MAX // 4000)]
    harness.log.replicated.clear()
    waiting = [asyncio.create_task(harness.coordinator.initialize(large[0], 0, 0))]
    await asyncio.sleep(0.1)  # the first batch is being replicated
    waiting += [asyncio.create_task(harness.coordinator.initialize(key, 0, 0)) for key in large[1:]]
    await asyncio.sleep(1)
    shard = harness.coordinator.led.shards()[0]
    with pytest.raises(CoordinatorNotAvailable):
        await harness.coordinator.initialize(KEY, 0, 0)
    await harness.coordinator.maintain()
    harness.log.replicated.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    refused = [each for each in results if isinstance(each, BaseException)]
    assert refused
    assert all(isinstance(each, CoordinatorNotAvailable) for each in refused)
    assert harness.coordinator.led.shards() == [shard], "a refused request changed nothing"
    assert len(shard.machine) == len(results) - len(refused)
    await harness.coordinator.initialize(KEY, 0, 0)
    await harness.coordinator.close()


async def test_redundant_records_are_deleted() -> None:
    harness = ShareCoordinatorHarness()
    await harness.coordinator.led.wait_until_loaded()
    await harness.coordinator.initialize(KEY, 0, 0)
    for _ in range(5):
        assert (await harness.coordinator.write(KEY, DONE)).error is ErrorCode.NONE
    await harness.coordinator.maintain()
    assert harness.log.starts[0] == 3, "initialized, 2 updates, a snapshot, 2 updates"
    await harness.restart()
    found = harness.coordinator.summary(KEY).state
    assert found is not None
    assert found.batches == DONE.batches
    await harness.coordinator.close()


async def test_without_the_lead_there_is_no_coordinator() -> None:
    harness = ShareCoordinatorHarness()
    harness.coordinator.led.resign(0)
    with pytest.raises(NotCoordinator):
        harness.coordinator.summary(KEY)
    await harness.coordinator.close()


class _FailsWhenCounted:
    """A number of updates that fails when it grows: after the state was changed."""

    def __lt__(self, other: object) -> bool:
        return True

    def __add__(self, other: object) -> object:
        raise RuntimeError("planted")


OTHER = SharePartitionKey("team", uuid.UUID(int=3), 1)


@pytest.mark.parametrize("request_name", ["initialize", "write", "read", "delete", "maintain"])
async def test_a_state_is_loaded_again_after_a_failed_step(request_name: str, caplog: pytest.LogCaptureFixture) -> None:
    harness = ShareCoordinatorHarness()
    coordinator = harness.coordinator
    await coordinator.led.wait_until_loaded()
    for key in (KEY, OTHER):
        await coordinator.initialize(key, 0, 0)
    await coordinator.write(KEY, DONE)
    machine: Any = coordinator.led.shard_of(KEY.text).machine
    if request_name in ("write", "read"):
        machine._kept[KEY] = machine._kept[KEY]._replace(updates=_FailsWhenCounted())
    elif request_name == "delete":
        machine._exists = lambda _topic, _partition: 1 / 0
    else:
        machine._kept[KEY] = machine._kept[KEY]._replace(state=None)
    requests: dict[str, Callable[[], Awaitable[object]]] = {
        "initialize": lambda: coordinator.initialize(KEY, 1, 0),
        "write": lambda: coordinator.write(KEY, StateWrite(0, 3, 7, -1, ())),
        "read": lambda: coordinator.read(KEY, 3),
        "delete": lambda: coordinator.delete(KEY),
        "maintain": coordinator.maintain,
    }
    try:
        await requests[request_name]()
        coordinator.led.shard_of(KEY.text)
    except CoordinatorLoadInProgress:
        pass
    else:
        pytest.fail("it is not loaded again")
    await asyncio.sleep(0.1)
    await coordinator.led.wait_until_loaded()
    found = coordinator.summary(KEY).state
    assert found is not None
    assert (found.start_offset, found.leader_epoch, found.batches) == (0, 0, DONE.batches)
    assert (await coordinator.write(OTHER, DONE)).error is ErrorCode.NONE
    assert (await coordinator.write(KEY, DONE)).error is ErrorCode.NONE
    await coordinator.close()
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
