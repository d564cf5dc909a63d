"""Whatever producers, timers, the log and the markers do, in whatever order: the state is that of the log, replayed.

`TransactionDriver` replays the log after every step and compares. Here a coordinator begins again now and then, every
request is answered, and nothing that is decided stays open.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.core.errors import ErrorCode
from ottla.core.ids import ProducerIdAndEpoch
from ottla.transactions.events import EndTxn, Event, InitProducerId
from ottla.transactions.metadata import BETWEEN_TRANSACTIONS, EPOCH_MAX
from tests.coordinator_schedules.schedules import seeds
from tests.support.examples import examples
from tests.support.transaction_driver import (
    OFFSETS_3,
    TIMEOUT_MS,
    TV_0,
    TV_2,
    WEB_0,
    WEB_1,
    TransactionDriver,
    new_metadata,
)

STEPS = 80


class TransactionSimulation:
    """Drives one transactional id with requests that are mostly those of its producer."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.it = TransactionDriver()
        self.asked: list[int] = []
        if rng.random() < 0.3:  # few epochs are left, after which comes another producer id
            self.it.append(replace(new_metadata(), producer_epoch=rng.choice((EPOCH_MAX - 3, EPOCH_MAX - 1))))

    def act(self) -> None:
        actions: list[Callable[[], None]] = [
            *([self.init] * 2),
            *([self.add] * 4),
            *([self.end] * 3),
            *([self.store] * 6),
            *([self.write_markers] * 4),
            self.fail_to_write,
            self.time_out,
            self.retry,
            self.pass_time,
            self.expire,
            self.restart,
        ]
        self.rng.choice(actions)()

    # ---- Requests

    def ask(self, event: Event) -> None:
        self.asked.append(self.it.ask(event))

    def producer(self) -> ProducerIdAndEpoch:
        """Return the present producer id and epoch, or one of a request that comes late."""
        metadata = self.it.machine.metadata
        epoch = metadata.producer_epoch - self.rng.choice((0, 0, 0, 1, 2))
        earlier = self.rng.random() < 0.1
        return ProducerIdAndEpoch(metadata.previous_producer_id if earlier else metadata.producer_id, max(epoch, 0))

    def init(self) -> None:
        expected = self.producer() if self.rng.random() < 0.5 else None
        self.ask(InitProducerId(timeout_ms=TIMEOUT_MS, expected=expected))

    def add(self) -> None:
        producer = self.producer()
        partitions = self.rng.sample((WEB_0, WEB_1, OFFSETS_3), self.rng.randrange(1, 3))
        version = self.rng.choice((TV_0, TV_2))
        self.ask(self.it.adding(producer.epoch, *partitions, producer_id=producer.producer_id, version=version))

    def end(self) -> None:
        producer = self.producer()
        committed, version = self.rng.random() < 0.6, self.rng.choice((TV_0, TV_2))
        self.ask(
            EndTxn(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                committed=committed,
                client_version=version,
            )
        )

    # ---- The log, the partitions, the time

    def store(self) -> None:
        if self.it.storing:
            self.it.store()
            self.begin_again_if_deleted()

    def fail_to_write(self) -> None:
        if self.it.storing:
            self.it.store(self.rng.choice((ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)))

    def time_out(self) -> None:
        if self.it.storing:
            self.it.time_out()

    def write_markers(self) -> None:
        if self.it.sending:
            late = {"web": ErrorCode.NOT_LEADER_OR_FOLLOWER} if self.rng.random() < 0.3 else {}
            self.it.write_markers(**late)

    def retry(self) -> None:
        if self.it.retries:
            self.it.retry()

    def pass_time(self) -> None:
        self.it.now_ms += self.rng.choice((1, TIMEOUT_MS + 1))
        self.it.check_timeout()

    def expire(self) -> None:
        self.it.expire(self.rng.choice((0, TIMEOUT_MS)))

    def restart(self) -> None:
        """Another coordinator goes on; what was being written is in its log, or is not."""
        if self.it.storing and self.rng.random() < 0.5:
            self.it.append(self.it.storing[0].metadata)
        if self.it.log and not self.it.removed:
            self.it = self.it.reload()
            self.asked.clear()
        else:
            self.begin_again_if_deleted()

    def begin_again_if_deleted(self) -> None:
        if self.it.removed:
            self.it = TransactionDriver(now_ms=self.it.now_ms, next_id=self.it.next_id)
            self.asked.clear()

    def finish(self) -> None:
        """Let everything succeed: every request is answered, and what was decided is complete."""
        while self.it.storing or self.it.sending or self.it.retries:
            self.store()
            self.write_markers()
            self.retry()
        self.pass_time()
        self.it.now_ms += TIMEOUT_MS + 1
        self.it.check_timeout()
        self.it.settle()
        assert not [ticket for ticket in self.asked if ticket not in self.it.answers], "a request has no answer"
        assert self.it.machine.metadata.state in BETWEEN_TRANSACTIONS
        assert self.it.machine.pending is None


def play(rng: random.Random) -> None:
    simulation = TransactionSimulation(rng)
    for _ in range(STEPS):
        simulation.act()
    simulation.finish()


@pytest.mark.parametrize("seed", seeds(250))
def test_the_state_of_a_transactional_id_is_that_of_its_log_after_every_step(seed: int) -> None:
    play(random.Random(seed))


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_no_schedule_that_hypothesis_finds_lets_state_and_log_differ(rng: random.Random) -> None:
    play(rng)
