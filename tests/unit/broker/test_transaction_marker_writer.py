"""What the writer of markers makes of partitions that refuse, that are slow, and of a group coordinator that loads."""

from __future__ import annotations

import asyncio
import gc
import random
import uuid
from collections.abc import Callable
from typing import Any, cast

import pytest

from ottla.broker.transaction_marker_writer import TIMEOUT_S, TransactionMarkerWriter
from ottla.core.errors import (
    CoordinatorLoadInProgress,
    ErrorCode,
    KafkaError,
    NotLeaderOrFollower,
    StorageError,
    UnknownTopicOrPartition,
)
from ottla.core.executors import BlockingJob
from ottla.core.ids import OFFSETS_TOPIC, TopicPartition
from ottla.metadata_store.cluster_view import PartitionView
from ottla.records.batch import split
from ottla.replication.config import ReplicationConfig
from ottla.replication.group_commit import GroupCommit
from ottla.replication.partition import Partition
from ottla.replication.replication_context import ReplicationContext
from ottla.storage.config import LogConfig
from ottla.storage.state.end_marker import Marker, MarkerType, read_marker
from ottla.testing.sim_disk import SimDisk
from ottla.testing.sim_loop import SimClock, simulate
from ottla.transactions.marker_port import TransactionMarker
from ottla.transactions.metadata import TransactionVersion
from tests.support.storage import NOW_MS, StillClock, batch, content, open_directory

pytestmark = pytest.mark.simulated_time

MARKER = TransactionMarker(7, 1, True, 3, TransactionVersion.TV_2)
WEB, OFFSETS = TopicPartition("web", 0), TopicPartition(OFFSETS_TOPIC, 2)


class AtOnce:
    """Runs jobs when they are submitted."""

    def submit(self, job: BlockingJob) -> None:
        job.run()
        job.finished()

    def close(self) -> None: ...


class Replicas:
    """Partitions that this broker leads, real ones on a simulated disk, unless one is to raise."""

    def __init__(self) -> None:
        clock = StillClock()
        self.errors: dict[TopicPartition, KafkaError] = {}
        self.directory = open_directory(SimDisk(), LogConfig(), clock)
        commit = GroupCommit(self.directory.health, executor=AtOnce(), clock=clock)
        context = ReplicationContext(clock, ReplicationConfig())
        self.partitions: dict[TopicPartition, Partition] = {}
        for number, where in enumerate((WEB, OFFSETS), start=1):
            log = self.directory.create_log(where, uuid.UUID(int=number), LogConfig())
            self.partitions[where] = Partition(log, led_with(1), node_id=1, commit=commit, context=context)

    def partition(self, where: TopicPartition) -> Partition:
        if where in self.errors:
            raise self.errors[where]
        return self.partitions[where]

    def are_slow(self, *partitions: TopicPartition) -> None:
        """Another replica is in the ISR, and does not fetch."""
        for where in partitions:
            self.partitions[where].apply(led_with(1, 2))

    def appended(self, where: TopicPartition) -> list[Marker | None]:
        log = self.partitions[where].log
        data = content(log.read(0, max_bytes=1 << 20, end_offset=log.end_offset))
        return [read_marker(memoryview(data)[at : at + header.size_bytes]) for at, header in split(data)]


def led_with(*isr: int) -> PartitionView:
    return PartitionView(0, 1, 0, isr, isr, len(isr))


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
    async def main(rng: random.Random) -> tuple[dict[TopicPartition, ErrorCode], Replicas, Offsets, float]:
        replicas, offsets, clock = Replicas(), Offsets(), SimClock()
        arrange(replicas, offsets)
        writer = TransactionMarkerWriter(cast("Any", replicas), offsets, clock)
        return dict(await writer.send(MARKER, [WEB, OFFSETS])), replicas, offsets, clock.monotonic()

    return simulate(main, seed=1)


def test_a_marker_goes_to_each_partition_and_ends_the_offsets_of_the_transaction() -> None:
    results, replicas, offsets, _ = sent(lambda replicas, offsets: None)
    assert results == {WEB: ErrorCode.NONE, OFFSETS: ErrorCode.NONE}
    assert replicas.appended(WEB) == replicas.appended(OFFSETS) == [Marker(MarkerType.COMMIT, 3)]
    assert offsets.noted == [(2, 0)], "the group coordinator learns the place in its log at once"
    assert offsets.completed == [(2, 7, True)]


@pytest.mark.parametrize("error", [NotLeaderOrFollower(), UnknownTopicOrPartition(), StorageError("the disk")])
def test_a_partition_that_refuses_does_not_affect_the_others(error: KafkaError) -> None:
    results, replicas, offsets, _ = sent(lambda replicas, offsets: replicas.errors.update({WEB: error}))
    assert results == {WEB: error.code, OFFSETS: ErrorCode.NONE}
    assert (len(replicas.appended(WEB)), len(replicas.appended(OFFSETS)), len(offsets.completed)) == (0, 1, 1)


def test_in_version_2_of_transactions_the_epoch_of_a_marker_is_above_that_of_the_records() -> None:
    def arrange(replicas: Replicas, _: Offsets) -> None:
        web = replicas.partitions[WEB]
        guard = web.log.producers.begin_verification(7, 0, 1, supports_epoch_bump=True, now_ms=NOW_MS)
        records = batch(b"1", producer_id=7, epoch=1, sequence=0, transactional=True)
        web.append_as_leader(records, acks=-1, now_ms=NOW_MS, guard=guard)

    results, replicas, _, _ = sent(arrange)
    assert results == {WEB: ErrorCode.INVALID_PRODUCER_EPOCH, OFFSETS: ErrorCode.NONE}
    assert replicas.partitions[WEB].log.end_offset == 1, "no marker"


def test_a_marker_that_is_not_replicated_in_time_is_reported() -> None:
    results, _, _, took_s = sent(lambda replicas, offsets: replicas.are_slow(WEB))
    assert results == {WEB: ErrorCode.REQUEST_TIMED_OUT, OFFSETS: ErrorCode.NONE}
    assert took_s == pytest.approx(TIMEOUT_S, abs=0.1)


async def test_markers_that_are_given_up_leave_no_unread_error() -> None:
    replicas = Replicas()
    replicas.are_slow(WEB, OFFSETS)
    loop = asyncio.get_running_loop()
    writer = TransactionMarkerWriter(cast("Any", replicas), Offsets(), SimClock())
    sending = loop.create_task(writer.send(MARKER, [WEB, OFFSETS]))
    await asyncio.sleep(1)
    sending.cancel()  # the connection of the coordinator was closed
    await asyncio.wait([sending])
    replicas.partitions[OFFSETS].waiters.fail(StorageError("the disk"))
    del sending, replicas
    gc.collect()


def test_a_group_coordinator_that_loads_is_tried_again() -> None:
    def arrange(_: Replicas, offsets: Offsets) -> None:
        offsets.error = CoordinatorLoadInProgress()

    assert sent(arrange)[0] == {WEB: ErrorCode.NONE, OFFSETS: ErrorCode.NOT_LEADER_OR_FOLLOWER}
