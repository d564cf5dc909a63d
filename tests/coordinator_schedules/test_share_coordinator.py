"""The share coordinator under random schedules: its state is that of its log, after every step.

Requests for a few share partitions come at the same time; writes are slow and fail, topics are deleted, redundant
records too, and the coordinator restarts or is led in the next epoch.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable

import pytest

from ottla.core.errors import ErrorCode, KafkaError
from ottla.share_coordinator.config import ShareCoordinatorConfig
from ottla.share_coordinator.coordinator import ShareCoordinator
from ottla.share_coordinator.machine import ShareCoordinatorMachine, StateResult, StateWrite
from ottla.share_coordinator.records import SharePartitionKey, decode
from ottla.share_coordinator.states import RecordState, StateBatch
from ottla.testing.sim_loop import SimClock, simulate
from tests.coordinator_schedules.schedules import seeds
from tests.support.topic_logs import SlowTopicLog

ROUNDS = 30
TOPICS = tuple(uuid.UUID(int=number) for number in range(1, 4))
EXPECTED = {
    ErrorCode.NONE,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.FENCED_STATE_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}


class ShareCoordinatorSimulation:
    """A share coordinator, its log, and those who use it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.log = SlowTopicLog(rng, rng.choice((0.0, 0.1)))
        self.config = ShareCoordinatorConfig(
            cold_snapshot_interval_ms=1_000, snapshot_update_records=rng.choice((0, 1, 3))
        )
        self.topics = set(TOPICS)
        self.epochs = dict.fromkeys(TOPICS, 0)
        self.coordinator = self._new()

    def exists(self, topic_id: uuid.UUID, partition: int) -> bool:
        return topic_id in self.topics and partition < 2

    def _new(self) -> ShareCoordinator:
        coordinator = ShareCoordinator(self.config, clock=SimClock(), log=self.log, node_id=1, exists=self.exists)
        coordinator.led.lead(0, self.log.epoch)
        return coordinator

    async def restart(self) -> None:
        await self.coordinator.close()
        self.log.epoch += 1
        self.coordinator = self._new()

    # ---- Requests

    def request(self) -> Awaitable[StateResult]:
        rng = self.rng
        key = SharePartitionKey("team", rng.choice(TOPICS), rng.choice((0, 0, 0, 1)))
        leader_epoch = rng.randrange(3)
        kinds: list[Callable[[], Awaitable[StateResult]]] = [
            *([lambda: self.coordinator.write(key, self.change(leader_epoch))] * 6),
            *([lambda: self.coordinator.read(key, leader_epoch)] * 2),
            *([lambda: self.coordinator.initialize(key, rng.randrange(2), rng.choice((-1, 0, 5)))] * 2),
            lambda: self.coordinator.delete(key),
        ]
        return rng.choice(kinds)()

    def change(self, leader_epoch: int) -> StateWrite:
        first = self.rng.randrange(50)
        batch = StateBatch(first, first + self.rng.randrange(5), RecordState.ACKNOWLEDGED, self.rng.randrange(1, 4))
        return StateWrite(0, leader_epoch, self.rng.choice((-1, -1, first)), self.rng.choice((-1, 3)), (batch,))

    async def answer(self, request: Awaitable[StateResult]) -> None:
        await asyncio.sleep(self.rng.random() * 0.1)
        try:
            result = await request
        except KafkaError:
            return
        assert result.error in EXPECTED, result

    # ---- What must hold

    async def check(self) -> None:
        """Once nothing is being written: the state is that which would be loaded."""
        await self.coordinator.led.wait_until_loaded()
        for shard in self.coordinator.led.ready_shards():
            replayed = ShareCoordinatorMachine(self.config.snapshot_update_records, self.exists)
            async for batch in self.log.read_all(0, self.log.end_offset(0)):
                for key, value in batch.records:
                    replayed.apply(decode(key, value), batch.base_offset)
            assert shard.machine.states() == replayed.states(), "a restart would change the state"
            live, needed = shard.machine.first_needed_offset, replayed.first_needed_offset
            assert live is None or (needed is not None and live <= needed), "a record that is needed may be deleted"


async def schedule(rng: random.Random) -> None:
    simulation = ShareCoordinatorSimulation(rng)
    for _ in range(ROUNDS):
        requests = [simulation.request() for _ in range(rng.randrange(1, 6))]
        await asyncio.gather(*(simulation.answer(request) for request in requests))
        luck = rng.random()
        if luck < 0.1:
            await simulation.restart()
        elif luck < 0.3:
            await simulation.coordinator.maintain()
        elif luck < 0.4:
            simulation.topics = set(rng.sample(TOPICS, rng.randrange(1, 4)))
        await simulation.check()
        await asyncio.sleep(rng.choice((0, 1)))
    await simulation.coordinator.close()


@pytest.mark.parametrize("seed", seeds(100))
def test_the_state_of_a_share_coordinator_is_that_of_its_log(seed: int) -> None:
    simulate(schedule, seed=seed)
