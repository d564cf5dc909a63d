"""Proposals of leaders on their way to the controller: what is sent again, what goes back, what waits."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Sequence

import pytest

from ottla.coordination.store import SessionLost
from ottla.core.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    KafkaError,
    NetworkException,
    NotController,
    StaleBrokerEpoch,
)
from ottla.replication.isr_changes import CHANGES_MAX, COLLECT_SECONDS, AlteredPartition, IsrChange, IsrChanges, Outcome
from ottla.testing.sim_loop import simulate

DONE = AlteredPartition(1, 5, (1, 2), is_recovering=False, partition_epoch=9)


def change(partition: int) -> IsrChange:
    return IsrChange(uuid.UUID(int=7), partition, 5, 8, ((1, 0), (2, 0)), is_recovering=False)


class Proposer:
    """A partition that notes what was decided."""

    def __init__(self) -> None:
        self.decided: list[Outcome] = []

    def isr_change_decided(self, change: IsrChange, outcome: Outcome) -> None:
        self.decided.append(outcome)


class Controller:
    """Answers with what a test prepares, one list or error for each request."""

    def __init__(self, *answers: Sequence[Outcome] | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[list[int]] = []
        self.times: list[float] = []

    async def send(self, changes: Sequence[IsrChange]) -> Sequence[Outcome]:
        self.requests.append([each.partition for each in changes])
        self.times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.001)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main(rng: random.Random) -> None:
        await scenario()

    simulate(main, seed=1)


def test_proposals_of_ten_milliseconds_go_together_and_one_request_is_in_flight() -> None:
    async def scenario() -> None:
        controller, changes = Controller([DONE, DONE], [DONE]), IsrChanges()
        partitions = [Proposer() for _ in range(3)]
        changes.propose(partitions[0], change(0))
        changes.start(controller)
        await asyncio.sleep(0.005)
        changes.propose(partitions[1], change(1))
        await asyncio.sleep(0.0055)
        changes.propose(partitions[2], change(2))
        await asyncio.sleep(1)
        assert controller.requests == [[0, 1], [2]]
        assert [each.decided for each in partitions] == [[DONE]] * 3
        await changes.close()

    run(scenario)


@pytest.mark.parametrize(
    "error",
    [
        NetworkException(),
        NotController(),
        StaleBrokerEpoch(),
        OSError("lost"),
        SessionLost("/"),  # of the controller on this broker, while it applied the change
        RuntimeError("a defect"),
    ],
)
def test_a_request_without_an_answer_is_sent_again_after_50_ms(error: Exception) -> None:
    async def scenario() -> None:
        controller, changes, partition = Controller(error, error, [DONE]), IsrChanges(), Proposer()
        changes.start(controller)
        changes.propose(partition, change(0))
        await asyncio.sleep(1)
        assert controller.requests == [[0]] * 3
        assert controller.times[1] - controller.times[0] >= 0.05
        assert partition.decided == [DONE]

    run(scenario)


def test_only_partitions_with_a_transient_error_are_sent_again() -> None:
    async def scenario() -> None:
        refused, stale = IneligibleReplica(), FencedLeaderEpoch()
        answers: list[Outcome] = [DONE, refused, stale, NotController()]
        controller, changes = Controller(answers, [DONE]), IsrChanges()
        partitions = [Proposer() for _ in range(4)]
        changes.start(controller)
        for number, partition in enumerate(partitions):
            changes.propose(partition, change(number))
        await asyncio.sleep(1)
        assert controller.requests == [[0, 1, 2, 3], [3]]
        expected: list[list[AlteredPartition | KafkaError]] = [[DONE], [refused], [stale], [DONE]]
        assert [each.decided for each in partitions] == expected

    run(scenario)


def test_many_proposals_go_in_several_requests_without_a_pause() -> None:
    async def scenario() -> None:
        count = 2 * CHANGES_MAX + 1
        controller = Controller([DONE] * CHANGES_MAX, [DONE] * CHANGES_MAX, [DONE])
        changes, partitions = IsrChanges(), [Proposer() for _ in range(count)]
        changes.start(controller)
        for number, partition in enumerate(partitions):
            changes.propose(partition, change(number))
        await asyncio.sleep(1)
        assert [len(request) for request in controller.requests] == [CHANGES_MAX, CHANGES_MAX, 1]
        assert [number for request in controller.requests for number in request] == list(range(count))
        assert controller.times[1] - controller.times[0] < COLLECT_SECONDS
        assert [each.decided for each in partitions] == [[DONE]] * count

    run(scenario)


def test_a_withdrawn_proposal_is_neither_sent_nor_decided() -> None:
    async def scenario() -> None:
        controller, changes = Controller([DONE], [DONE]), IsrChanges()
        early, late = Proposer(), Proposer()
        changes.start(controller)
        changes.propose(early, change(0))
        changes.withdraw(early)
        changes.propose(late, change(1))
        await asyncio.sleep(0.0105)
        changes.withdraw(late)  # while it is in flight
        await asyncio.sleep(1)
        assert controller.requests == [[1]]
        assert (early.decided, late.decided) == ([], [])

    run(scenario)
