"""What the writer of markers makes of partitions that refuse, that are slow, and of a group coordinator that loads."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.transaction_markers import TIMEOUT_S, TransactionMarkerWriter
from ottla.core.errors import (
    CoordinatorLoadInProgress,
    ErrorCode,
    KafkaError,
    NotLeaderOrFollower,
    StorageError,
    UnknownTopicOrPartition,
)
from ottla.core.ids import OFFSETS_TOPIC, TopicPartition
from ottla.records.batch import split
from ottla.replication.waiters import OffsetWaiters
from ottla.storage.state.transactions import Marker, MarkerType, read_marker
from ottla.testing.sim_loop import SimClock, simulate
from ottla.transactions.markers import TransactionMarker
from ottla.transactions.metadata import TransactionVersion

MARKER = TransactionMarker(7, 1, True, 3, TransactionVersion.TV_2)
WEB, OFFSETS = TopicPartition("web", 0), TopicPartition(OFFSETS_TOPIC, 2)


def waiters(high_watermark: int) -> OffsetWaiters:
    return OffsetWaiters(SimpleNamespace(high_watermark=high_watermark))


class Replicas:
    """Partitions that accept every marker at once, or are slow, or raise."""

    def __init__(self) -> None:
        self.waiters = {WEB: waiters(5), OFFSETS: waiters(5)}
        self.errors: dict[TopicPartition, KafkaError] = {}
        self.appended: list[tuple[TopicPartition, Marker | None]] = []
        self.with_epoch_bump: list[tuple[int, int]] = []

    def partition(self, where: TopicPartition) -> Any:
        if where in self.errors:
            raise self.errors[where]

        def append(records: memoryview, **given: Any) -> Any:
            ((_, header),) = split(records)
            assert (header.producer_id, header.producer_epoch) == (7, 1)
            self.appended.append((where, read_marker(records)))
            return SimpleNamespace(first_offset=4, last_offset=4)

        producers = SimpleNamespace(check_epoch_bump=lambda *producer: self.with_epoch_bump.append(producer))
        log = SimpleNamespace(producers=producers)
        return SimpleNamespace(is_serving=True, log=log, append_as_leader=append, waiters=self.waiters[where])


class Offsets:
    def __init__(self) -> None:
        self.noted: list[tuple[int, int]] = []
        self.completed: list[tuple[int, int, bool]] = []
        self.error: KafkaError | None = None

    def marker_appended(self, partition: int, offset: int) -> None:
        self.noted.append((partition, offset))

    async def complete_transaction(self, partition: int, producer_id: int, *, commit: bool) -> None:
        if self.error is not None:
            raise self.error
        self.completed.append((partition, producer_id, commit))


def sent(
    arrange: Callable[[Replicas, Offsets], None],
) -> tuple[dict[TopicPartition, ErrorCode], Replicas, Offsets, float]:
    replicas, offsets = Replicas(), Offsets()
    arrange(replicas, offsets)

    async def main(rng: random.Random) -> tuple[dict[TopicPartition, ErrorCode], float]:
        clock = SimClock()
        writer = TransactionMarkerWriter(cast("Any", replicas), offsets, clock)
        return dict(await writer.send(MARKER, [WEB, OFFSETS])), clock.monotonic()

    results, took_s = simulate(main, seed=1)
    return results, replicas, offsets, took_s


def test_a_marker_goes_to_each_partition_and_ends_the_offsets_of_the_transaction() -> None:
    results, replicas, offsets, _ = sent(lambda replicas, offsets: None)
    assert results == {WEB: ErrorCode.NONE, OFFSETS: ErrorCode.NONE}
    assert [where for where, _ in replicas.appended] == [WEB, OFFSETS]
    assert replicas.appended[0][1] == Marker(MarkerType.COMMIT, 3)
    assert replicas.with_epoch_bump == [(7, 1), (7, 1)], "as in version 2 of transactions"
    assert offsets.noted == [(2, 4)], "the group coordinator learns the place in its log at once"
    assert offsets.completed == [(2, 7, True)]


@pytest.mark.parametrize("error", [NotLeaderOrFollower(), UnknownTopicOrPartition(), StorageError("the disk")])
def test_a_partition_that_refuses_does_not_affect_the_others(error: KafkaError) -> None:
    results, replicas, offsets, _ = sent(lambda replicas, offsets: replicas.errors.update({WEB: error}))
    assert results == {WEB: error.code, OFFSETS: ErrorCode.NONE}
    assert len(replicas.appended) == len(offsets.completed) == 1


def test_a_marker_that_is_not_replicated_in_time_is_reported() -> None:
    results, _, _, took_s = sent(lambda replicas, offsets: replicas.waiters.update({WEB: waiters(0)}))
    assert results == {WEB: ErrorCode.REQUEST_TIMED_OUT, OFFSETS: ErrorCode.NONE}
    assert took_s == pytest.approx(TIMEOUT_S, abs=0.1)


def test_markers_that_are_given_up_leave_no_unread_error() -> None:
    replicas = Replicas()
    replicas.waiters.update({WEB: waiters(0), OFFSETS: waiters(0)})

    async def main(rng: random.Random) -> None:
        loop = asyncio.get_running_loop()
        writer = TransactionMarkerWriter(cast("Any", replicas), Offsets(), SimClock())
        sending = loop.create_task(writer.send(MARKER, [WEB, OFFSETS]))
        await asyncio.sleep(1)
        sending.cancel()  # the connection of the coordinator was closed
        await asyncio.wait([sending])
        replicas.waiters[OFFSETS].fail(StorageError("the disk"))
        replicas.waiters.clear()
        del sending
        gc.collect()

    simulate(main, seed=1)  # raises what was not read


def test_a_group_coordinator_that_loads_is_tried_again() -> None:
    def arrange(_: Replicas, offsets: Offsets) -> None:
        offsets.error = CoordinatorLoadInProgress()

    assert sent(arrange)[0] == {WEB: ErrorCode.NONE, OFFSETS: ErrorCode.NOT_LEADER_OR_FOLLOWER}
