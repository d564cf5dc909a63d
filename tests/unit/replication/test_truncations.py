"""Truncations of followers on a slow simulated disk, in simulated time: where they sync, and what happens meanwhile."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import PurePosixPath
from typing import cast

import pytest

from ottla.core.errors import NotLeaderOrFollower, StorageError
from ottla.core.executors import Executor
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import BrokerInfo, ClusterView, PartitionView, TopicView
from ottla.replication.directory_checkpoints import DirectoryCheckpoints
from ottla.replication.follower_state import FetchState
from ottla.replication.partition import Partition
from ottla.replication.replicas import Replicas
from ottla.replication.truncations import Truncations
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.directory_health import DirectoryHealth
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.state.leader_epochs import EpochEnd
from ottla.testing.sim_disk import SimDisk, Survival
from ottla.testing.sim_executor import SimExecutor
from ottla.testing.sim_loop import SimLoop
from tests.support.async_tests import setup_of
from tests.support.replicas import TOPIC_ID
from tests.support.storage import NOW_MS, ROOT, StillClock, batch, everything, open_directories, open_directory

pytestmark = pytest.mark.simulated_time

OTHER = PurePosixPath("/other")
SYNC_S = 0.02
RECORDS = 12
SMALL = LogConfig(segment_bytes=250)
"""Segments of three records."""


class SlowDisk(SimDisk):
    """Its syncs take time: in the loop they hold it."""

    def __init__(self) -> None:
        super().__init__()
        self.executors: list[SimExecutor] = []
        self.on_loop: list[str] = []
        self.elsewhere = 0

    def step(self, what: str) -> None:
        if what.startswith("sync ") and self.executors:
            if any(each.is_running for each in self.executors):
                self.elsewhere += 1
            else:
                self.on_loop.append(what)
                cast("SimLoop", asyncio.get_running_loop()).advance(SYNC_S)
        super().step(what)

    def make_executor(self, name: str, post: object) -> Executor:
        executor = SimExecutor(lambda job: 4 * SYNC_S)
        self.executors.append(executor)
        return executor


class Broker:
    """Broker 2, which follows broker 1 with some partitions."""

    def __init__(self, partitions: int, disk: SlowDisk, paths: tuple[PurePosixPath, ...]) -> None:
        self.disk, self.count = disk, partitions
        self.available: list[TopicPartition] = []
        self.replicas = Replicas(
            open_directories(disk, *paths, config=SMALL),
            node_id=2,
            defaults=SMALL,
            clock=StillClock(),
            make_executor=disk.make_executor,
            on_availability=lambda each, is_online: self.available.append(each),
        )
        self.view = ClusterView(number=0)
        self.apply(1, 0)
        self.values: dict[int, list[bytes]] = {}

    def apply(self, leader: int, epoch: int, isr: tuple[int, ...] = (1, 2), partitions: int | None = None) -> None:
        """Let a broker lead all partitions in an epoch, or the first ones."""
        views = tuple(
            PartitionView(index, leader, epoch, replicas=(1, 2), isr=isr, partition_epoch=epoch)
            for index in range(self.count if partitions is None else partitions)
        )
        brokers = {node: BrokerInfo(node, {}, None, 0, {}) for node in (1, 2)}
        new = ClusterView(brokers=brokers).with_topics({"t": TopicView("t", TOPIC_ID, views, {}, 0, -1)})
        assert self.replicas.follow(self.view, new) is None
        self.view = new

    def __getitem__(self, index: int) -> Partition:
        return self.replicas.partition(TopicPartition("t", index))

    def fetched(self, index: int, value: bytes) -> None:
        """Append what the leader sent."""
        partition = self[index]
        position = partition.next_fetch()
        assert position is not None
        records = batch(value, base_offset=position.fetch_offset, leader_epoch=partition.leader_epoch)
        partition.append_as_follower(records, high_watermark=0, log_start=0, now_ms=NOW_MS)

    async def fill(self) -> None:
        for number in range(RECORDS):
            for index in range(self.count):
                self.fetched(index, b"%d" % number)
            await until(lambda: all(self[index].next_fetch() is not None for index in range(self.count)))
        self.disk.on_loop.clear()


def values(partition: Partition) -> list[bytes | None]:
    return [value for _, value in everything(partition.log)]


@pytest.fixture
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    setup = setup_of(request)
    broker = Broker(setup.get("partitions", 1), SlowDisk(), setup.get("paths", (ROOT,)))
    await broker.fill()
    yield broker
    await broker.replicas.close()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - the partition reports to its fetcher
        await asyncio.sleep(SYNC_S / 10)


async def until_truncated(*partitions: Partition) -> None:
    await until(lambda: not any(each.is_truncating for each in partitions))


@pytest.mark.parametrize("offset", [11, 7, 0])
async def test_no_sync_of_a_truncation_holds_the_loop(broker: Broker, offset: int) -> None:
    partition, loop = broker[0], asyncio.get_running_loop()
    ticks, began, syncs = 0, loop.time(), broker.disk.elsewhere
    assert partition.truncate_to_leader(EpochEnd(0, offset))
    while partition.is_truncating:
        assert partition.next_fetch() is None
        assert partition.follower is not None
        assert partition.follower.fetch_state is FetchState.TRUNCATING
        ticks += 1
        await asyncio.sleep(1e-3)
    assert broker.disk.on_loop == [], "the loop never waited for the disk"
    assert broker.disk.elsewhere > syncs + 4
    assert ticks == pytest.approx((loop.time() - began) / 1e-3, abs=2), "the loop ran all the time"
    await until(lambda: partition.next_fetch() is not None)
    position = partition.next_fetch()
    assert position is not None
    assert position.fetch_offset == offset == len(values(partition))
    broker.fetched(0, b"new")
    await asyncio.sleep(1)
    assert values(partition) == [*(b"%d" % number for number in range(offset)), b"new"]
    assert partition.durable_end == offset + 1


async def test_a_log_that_begins_at_its_leaders_start_syncs_off_the_loop(broker: Broker) -> None:
    broker[0].restart_log_at(40)
    assert broker[0].is_truncating
    await until_truncated(broker[0])
    assert broker.disk.on_loop == []
    assert (broker[0].log.log_start_offset, broker[0].log.end_offset) == (40, 40)


@pytest.mark.setup(partitions=8)
async def test_truncations_that_wait_share_their_checkpoints(broker: Broker) -> None:
    before = len(broker.disk.history)
    for index in range(8):
        broker[index].truncate_to_leader(EpochEnd(0, 7))
    await until_truncated(*(broker[index] for index in range(8)))
    written = [
        each
        for each in broker.disk.history[before:]
        if "rename" in each and each.endswith("/recovery-point-offset-checkpoint")
    ]
    assert len(written) == 2, "one before the first file is touched, and one at the end"
    assert all(len(values(broker[index])) == 7 for index in range(8))
    assert broker.disk.on_loop == []


@pytest.mark.setup(partitions=2)
async def test_other_partitions_are_written_while_one_is_truncated(broker: Broker) -> None:
    broker[0].truncate_to_leader(EpochEnd(0, 7))
    broker.fetched(1, b"other")
    assert broker[0].is_truncating
    await until(lambda: broker[1].next_fetch() is not None)
    assert broker[0].is_truncating, "the flush did not wait for the truncation"
    await until_truncated(broker[0])


async def test_a_partition_leads_once_its_truncation_has_ended(broker: Broker) -> None:
    partition = broker[0]
    partition.truncate_to_leader(EpochEnd(0, 7))
    await asyncio.sleep(SYNC_S)
    broker.apply(2, 1)
    assert partition.is_truncating
    assert not partition.is_serving
    assert broker.replicas.is_held("t", 0)
    with pytest.raises(NotLeaderOrFollower):
        broker.replicas.leader("t", 0, 1)
    with pytest.raises(NotLeaderOrFollower):
        partition.append_as_leader(batch(b"early"), acks=-1, now_ms=NOW_MS)
    assert broker.available == []
    await until_truncated(partition)
    assert broker.replicas.leader("t", 0, 1) is partition
    assert broker.available == [TopicPartition("t", 0)], "its coordinators are loaded now"
    assert partition.leader_state is not None
    assert partition.leader_state.term_start == 7
    partition.append_as_leader(batch(b"led"), acks=-1, now_ms=NOW_MS)
    assert values(partition)[7:] == [b"led"]


@pytest.mark.parametrize("leaders", [(1, 2, 1), (2, 1), (1,), (-1,), (2, -1, 1)])
async def test_any_roles_may_come_during_a_truncation(broker: Broker, leaders: tuple[int, ...]) -> None:
    partition = broker[0]
    partition.truncate_to_leader(EpochEnd(0, 7))
    for number, leader in enumerate(leaders):
        await asyncio.sleep(SYNC_S)
        broker.apply(leader, number + 1)
        assert partition.is_truncating
        assert not partition.is_serving
        assert partition.next_fetch() is None
    await until_truncated(partition)
    await asyncio.sleep(1)
    assert not partition.is_serving
    assert (partition.next_fetch() is not None) == (leaders[-1] == 1)
    assert partition.log.end_offset == partition.log.flushed_offset == 7


@pytest.mark.parametrize("after_s", [0, SYNC_S, 6 * SYNC_S, 10 * SYNC_S, 14 * SYNC_S])
async def test_a_topic_may_be_deleted_during_a_truncation(broker: Broker, after_s: float) -> None:
    broker[0].truncate_to_leader(EpochEnd(0, 2))
    await asyncio.sleep(after_s)
    broker.replicas._drop(TopicPartition("t", 0))
    broker.replicas._delete_logs()
    await asyncio.sleep(1)
    (directory,) = broker.replicas.directories.opened
    assert directory.health.failure is None
    assert directory.logs == {}


async def test_a_truncation_that_the_disk_refuses_changes_nothing_and_is_reported(broker: Broker) -> None:
    partition = broker[0]
    broker.disk.refuse(errno.ENOSPC, "create")
    partition.truncate_to_leader(EpochEnd(0, 7))
    await until_truncated(partition)
    assert len(values(partition)) == RECORDS
    assert not partition.log.is_truncating
    broker.disk.stop_refusing()
    partition.truncate_to_leader(EpochEnd(0, 7))
    await until_truncated(partition)
    assert len(values(partition)) == 7


def corrupt_at_the_end(broker: Broker, index: int = 0) -> None:
    """Change a batch of the segment that has offset 7; it is read again, as if another process had written it."""
    (segment,) = (each for each in broker[index].log.segments if each.base_offset == 6)
    broker[index].log.close_files()
    broker.disk.flip_bit(segment.log_path, 8 * 70)


@pytest.mark.setup(partitions=2)
async def test_a_log_that_is_corrupt_where_it_is_truncated_goes_out_of_service_alone_and_is_fetched_again(
    broker: Broker,
) -> None:
    partition = broker[0]
    corrupt_at_the_end(broker)
    for index in range(2):
        broker[index].truncate_to_leader(EpochEnd(0, 7))
    await until_truncated(partition, broker[1])
    assert broker.replicas.contradictory_partitions == {TopicPartition("t", 0)}
    assert partition.failed is not None
    assert partition.next_fetch() is None
    assert partition.log.recovery_point <= 6, "a crash now leaves what the next start has to scan"
    assert partition.log.delete_old_segments(NOW_MS) == 0
    (directory,) = broker.replicas.directories.opened
    assert directory.health.failure is None
    assert len(values(broker[1])) == 7
    broker.apply(1, 1, isr=(1,))
    await until(lambda: partition.next_fetch() is not None)
    assert values(partition) == []
    broker.fetched(0, b"again")
    await until(lambda: partition.durable_end == 1)
    assert not partition.log.is_truncating


async def test_a_partition_that_was_to_lead_after_a_truncation_of_a_corrupt_log_does_not_serve(broker: Broker) -> None:
    partition = broker[0]
    corrupt_at_the_end(broker)
    partition.truncate_to_leader(EpochEnd(0, 7))
    await asyncio.sleep(SYNC_S)
    broker.apply(2, 1)
    await until_truncated(partition)
    assert not partition.is_serving
    assert not broker.replicas.is_held("t", 0)
    assert broker.available == [TopicPartition("t", 0)], "its coordinators ask, and get the error"
    with pytest.raises(StorageError):
        broker.replicas.leader("t", 0, 1)
    assert broker.replicas.contradictory_partitions == {TopicPartition("t", 0)}, "the controller elects another one"


async def test_a_partition_that_was_to_lead_after_a_truncation_does_not_where_the_disk_has_failed(
    broker: Broker,
) -> None:
    partition = broker[0]
    partition.truncate_to_leader(EpochEnd(0, 7))
    await asyncio.sleep(SYNC_S)
    broker.apply(2, 1)
    (directory,) = broker.replicas.directories.opened
    directory.health.on_failure = None  # the replicas learn of it later
    broker.disk.refuse(errno.EIO, "sync")
    await until_truncated(partition)
    assert directory.health.failure is not None
    assert not partition.is_serving
    assert partition.leader_state is None
    assert broker.available == []


class BrokenClock(StillClock):
    def wall_ms(self) -> int:
        raise RuntimeError("broken")


@pytest.mark.setup(partitions=2)
async def test_an_unexpected_error_of_a_truncation_costs_one_partition(broker: Broker) -> None:
    broker[0].log.clock = BrokenClock()
    for index in range(2):
        broker[index].truncate_to_leader(EpochEnd(0, 7))
    await until_truncated(broker[0], broker[1])
    assert broker.replicas.contradictory_partitions == {TopicPartition("t", 0)}
    (directory,) = broker.replicas.directories.opened
    assert directory.health.failure is None
    assert len(values(broker[1])) == 7


@pytest.mark.setup(partitions=2)
async def test_an_unexpected_error_of_a_checkpoint_leaves_no_partition_waiting(broker: Broker) -> None:
    (directory,) = broker.replicas.directories.opened
    unknown = TopicPartition("unknown", 0)
    directory.logs[unknown] = cast("PartitionLog", None)
    broker[0].truncate_to_leader(EpochEnd(0, 7))
    await until_truncated(broker[0])
    assert broker.replicas.contradictory_partitions == {TopicPartition("t", 0)}
    del directory.logs[unknown]
    broker[1].truncate_to_leader(EpochEnd(0, 7))
    await until_truncated(broker[1])
    assert len(values(broker[1])) == 7


class BrokenCheckpoint:
    def run(self) -> bool:
        raise RuntimeError("broken")


async def test_an_unexpected_error_in_the_thread_leaves_no_partition_waiting() -> None:
    async def begin_checkpoint() -> BrokenCheckpoint:
        return BrokenCheckpoint()

    errors: list[Exception | None] = []
    executor = SimExecutor(lambda job: SYNC_S)
    truncations = Truncations(DirectoryCheckpoints(begin_checkpoint), DirectoryHealth("d", now=lambda: 0.0), executor)
    truncations.add((None for _ in range(1)), errors.append)
    await asyncio.sleep(1)
    assert [type(error) for error in errors] == [RuntimeError]
    await truncations.close()


async def test_a_leader_of_a_term_that_began_during_a_truncation_flushes_what_became_to_be_synced(
    broker: Broker,
) -> None:
    partition = broker[0]
    partition.reconfigure(replace(SMALL, durability="page-cache"))
    for value in (b"12", b"13"):
        broker.fetched(0, value)
    assert partition.log.flushed_offset == RECORDS
    partition.truncate_to_leader(EpochEnd(0, 13))
    await asyncio.sleep(SYNC_S)
    assert partition.is_truncating
    partition.reconfigure(SMALL)
    broker.apply(2, 1, isr=(2,))
    assert partition.is_truncating
    await until_truncated(partition)
    await asyncio.sleep(1)
    assert partition.high_watermark == partition.log.flushed_offset == 13


async def test_a_corrupt_log_that_a_full_disk_keeps_is_removed_once_there_is_space(broker: Broker) -> None:
    partition = broker[0]
    corrupt_at_the_end(broker)
    partition.truncate_to_leader(EpochEnd(0, 7))
    await until_truncated(partition)
    broker.disk.refuse(errno.ENOSPC, "create")
    broker.apply(1, 1, isr=(1,))
    await asyncio.sleep(3)
    assert partition.next_fetch() is None
    assert partition.log.end_offset == RECORDS
    with pytest.raises(StorageError):
        partition.check_serving()
    assert broker.replicas.contradictory_partitions, "no controller may let it lead"
    broker.disk.stop_refusing()
    await asyncio.sleep(2)
    assert partition.next_fetch() is not None, "without a new term"
    with pytest.raises(NotLeaderOrFollower):
        partition.check_serving()
    assert not broker.replicas.contradictory_partitions
    assert values(partition) == []
    broker.fetched(0, b"again")
    await until(lambda: partition.durable_end == 1)


@pytest.mark.parametrize("after_s", [0, 3])
@pytest.mark.setup(partitions=2)
async def test_a_corrupt_log_that_a_full_disk_keeps_is_not_removed_from_a_leader_or_a_deleted_topic(
    broker: Broker, after_s: float
) -> None:
    for index in range(2):
        corrupt_at_the_end(broker, index)
        broker[index].truncate_to_leader(EpochEnd(0, 7))
    await until_truncated(broker[0], broker[1])
    broker.disk.refuse(errno.ENOSPC, "create")
    broker.apply(1, 1, isr=(1,))
    await asyncio.sleep(after_s)
    deleted = broker[1]
    broker.replicas._drop(TopicPartition("t", 1))
    broker.apply(2, 2, isr=(2,), partitions=1)
    broker.disk.stop_refusing()
    await asyncio.sleep(5)
    assert broker[0].log.end_offset == deleted.log.end_offset == RECORDS
    assert not broker.replicas.context.not_removed
    assert not broker[0].is_serving


@pytest.mark.setup(partitions=4, paths=(ROOT, OTHER))
async def test_a_move_to_another_directory_waits_for_a_truncation_that_waits_for_others(broker: Broker) -> None:
    """Run after the replacement it would truncate what is not used any more."""
    partition, before = broker[0], broker[0].log
    broker[2].truncate_to_leader(EpochEnd(0, 2))
    await asyncio.sleep(SYNC_S)
    partition.truncate_to_leader(EpochEnd(0, 7))
    broker.replicas.alter_log_dir(TopicPartition("t", 0), str(OTHER))
    await until(lambda: broker.replicas.log_dir_move(TopicPartition("t", 0)) is None or not partition.is_truncating)
    assert not partition.is_truncating
    await until(lambda: broker.replicas.log_dir_move(TopicPartition("t", 0)) is None)
    assert partition.log is not before
    assert partition.log.directory == OTHER / "t-0"
    assert len(values(partition)) == 7
    await until(lambda: partition.next_fetch() is not None)
    broker.fetched(0, b"new")
    await until(lambda: partition.durable_end == 8)


async def test_a_failed_sync_of_a_truncation_takes_the_directory_offline(broker: Broker) -> None:
    partition = broker[0]
    partition.truncate_to_leader(EpochEnd(0, 7))
    broker.disk.refuse(errno.EIO, "sync")
    await asyncio.sleep(1)
    assert partition.failed is not None
    assert not partition.is_truncating
    assert broker.replicas.is_offline("t", 0)


def synced_log() -> tuple[SimDisk, LogDirectory, PartitionLog]:
    """Return a log whose records and checkpoints are on the disk."""
    disk = SimDisk()
    directory = open_directory(disk, SMALL)
    log = directory.create_log(TopicPartition("t", 0), TOPIC_ID, SMALL)
    for value in range(RECORDS):
        log.append(batch(b"%d" % value), leader_epoch=0, now_ms=NOW_MS)
    log.flush()
    directory.checkpoint()
    return disk, directory, log


@pytest.mark.parametrize("survival", [Survival.LOST, Survival.TORN, Survival.KEPT])
@pytest.mark.parametrize("has_checkpoint", [False, True], ids=["alone", "with a checkpoint between"])
def test_a_power_cut_after_any_step_leaves_a_prefix(survival: Survival, has_checkpoint: bool) -> None:
    """What is below the new end is never lost; after the last step nothing above it comes back."""
    for number in range(9):
        for seed in range(5 if survival is Survival.TORN else 1):
            disk, directory, log = synced_log()
            steps = log.truncation(7)
            is_over = False
            for half in range(number):  # a step and its syncs, one after the other
                if half % 2 == 0:
                    try:
                        sync = next(steps)
                    except StopIteration:
                        is_over = True
                        break
                elif sync is None:
                    directory.checkpoint()
                else:
                    sync.run()
                if has_checkpoint and half:
                    directory.checkpoint()
            disk.power_cut(random.Random(seed), survival)
            found = [value for _, value in everything(open_directory(disk, SMALL).logs[TopicPartition("t", 0)])]
            assert found == [b"%d" % value for value in range(len(found))], number
            assert len(found) == 7 if is_over else len(found) >= 7, number


@pytest.mark.parametrize("survival", [Survival.LOST, Survival.TORN, Survival.KEPT])
def test_a_power_cut_after_any_step_of_a_full_truncation_leaves_all_or_nothing(survival: Survival) -> None:
    for number in range(7):
        disk, directory, log = synced_log()
        steps = log.full_truncation(50)
        is_over = False
        for half in range(number):
            if half % 2 == 0:
                sync = next(steps, RECORDS)
                if sync == RECORDS:
                    is_over = True
                    break
                assert not isinstance(sync, int)
            elif sync is None:
                directory.checkpoint()
            else:
                assert not isinstance(sync, int)
                sync.run()
        if number == 1:
            assert len(log.segments) > 1, "nothing is removed before the recovery point is on the disk"
        disk.power_cut(random.Random(number), survival)
        again = open_directory(disk, SMALL)
        assert not again.corrupt, number
        found = again.logs[TopicPartition("t", 0)]
        if is_over:
            assert (found.log_start_offset, found.end_offset) == (50, 50)
        else:
            count = 0 if found.log_start_offset == 50 else found.end_offset
            assert [value for _, value in everything(found)] == [b"%d" % value for value in range(count)], number
