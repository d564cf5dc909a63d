"""Proposals of leaders on their way to the controller: what is sent again, what goes back, what waits."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Sequence

import pytest

from ottla.core.errors import FencedLeaderEpoch, IneligibleReplica, NetworkException, NotController, StaleBrokerEpoch
from ottla.core.ids import TopicPartition
from ottla.metadata_store.store import SessionLost
from ottla.replication.isr_proposal_queue import (
    CHANGES_MAX,
    COLLECT_SECONDS,
    AlteredPartition,
    IsrChange,
    IsrChanges,
    Outcome,
)

pytestmark = pytest.mark.simulated_time

DONE = AlteredPartition(1, 5, (1, 2), is_recovering=False, partition_epoch=9)


def change(partition: int) -> IsrChange:
    return IsrChange(uuid.UUID(int=7), partition, 5, 8, ((1, 0), (2, 0)), is_recovering=False)


class Proposals:
    """Proposes changes of partitions, and notes what was decided."""

    def __init__(self, changes: IsrChanges) -> None:
        self.changes = changes
        self.decided: dict[int, list[Outcome]] = defaultdict(list)

    def propose(self, *partitions: int) -> None:
        for partition in partitions:
            self.changes.propose(TopicPartition("t", partition), change(partition), self._decided)

    def withdraw(self, partition: int) -> None:
        self.changes.withdraw(TopicPartition("t", partition))

    def _decided(self, change: IsrChange, outcome: Outcome) -> None:
        self.decided[change.partition].append(outcome)


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


async def test_proposals_of_ten_milliseconds_go_together_and_one_request_is_in_flight() -> None:
    controller, changes = Controller([DONE, DONE], [DONE]), IsrChanges()
    proposals = Proposals(changes)
    proposals.propose(0)
    changes.start(controller)
    await asyncio.sleep(0.005)
    proposals.propose(1)
    await asyncio.sleep(0.0055)
    proposals.propose(2)
    await asyncio.sleep(1)
    assert controller.requests == [[0, 1], [2]]
    assert proposals.decided == {0: [DONE], 1: [DONE], 2: [DONE]}
    await changes.close()


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
async def test_a_request_without_an_answer_is_sent_again_after_50_ms(error: Exception) -> None:
    controller, changes = Controller(error, error, [DONE]), IsrChanges()
    proposals = Proposals(changes)
    changes.start(controller)
    proposals.propose(0)
    await asyncio.sleep(1)
    assert controller.requests == [[0]] * 3
    assert controller.times[1] - controller.times[0] >= 0.05
    assert proposals.decided == {0: [DONE]}


async def test_only_partitions_with_a_transient_error_are_sent_again() -> None:
    refused, stale = IneligibleReplica(), FencedLeaderEpoch()
    answers: list[Outcome] = [DONE, refused, stale, NotController()]
    controller, changes = Controller(answers, [DONE]), IsrChanges()
    proposals = Proposals(changes)
    changes.start(controller)
    proposals.propose(0, 1, 2, 3)
    await asyncio.sleep(1)
    assert controller.requests == [[0, 1, 2, 3], [3]]
    assert proposals.decided == {0: [DONE], 1: [refused], 2: [stale], 3: [DONE]}


async def test_many_proposals_go_in_several_requests_without_a_pause() -> None:
    count = 2 * CHANGES_MAX + 1
    controller = Controller([DONE] * CHANGES_MAX, [DONE] * CHANGES_MAX, [DONE])
    changes = IsrChanges()
    proposals = Proposals(changes)
    changes.start(controller)
    proposals.propose(*range(count))
    await asyncio.sleep(1)
    assert [len(request) for request in controller.requests] == [CHANGES_MAX, CHANGES_MAX, 1]
    assert [number for request in controller.requests for number in request] == list(range(count))
    assert controller.times[1] - controller.times[0] < COLLECT_SECONDS
    assert proposals.decided == {number: [DONE] for number in range(count)}


async def test_a_withdrawn_proposal_is_neither_sent_nor_decided() -> None:
    controller, changes = Controller([DONE], [DONE]), IsrChanges()
    proposals = Proposals(changes)
    changes.start(controller)
    proposals.propose(0)
    proposals.withdraw(0)
    proposals.propose(1)
    await asyncio.sleep(0.0105)
    proposals.withdraw(1)  # while it is in flight
    await asyncio.sleep(1)
    assert controller.requests == [[1]]
    assert not proposals.decided
