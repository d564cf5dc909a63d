"""Where the rounds of a group commit run, on a simulated disk in simulated time: on the loop, or in the executor."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import cast

import pytest

from ottla.core.errors import StorageError
from ottla.replication.group_commit import (
    FAST_SYNC_SECONDS,
    GATHERING_TURNS_MAX,
    LOOP_ROUND_SECONDS_MAX,
    OUTLIER_SECONDS,
    SLOW_SYNC_SECONDS,
    GroupCommit,
)
from ottla.storage.directory_health import DirectoryHealth
from ottla.storage.log.flush import FlushJob
from ottla.testing.sim_executor import SimExecutor
from ottla.testing.sim_loop import SimLoop
from tests.support.flushes import flush_calling

FAST, SLOW, VERY_SLOW = 40e-6, 2e-3, 20e-3
assert FAST < FAST_SYNC_SECONDS < SLOW_SYNC_SECONDS < SLOW < OUTLIER_SECONDS < VERY_SLOW


class Disk:
    """A disk whose fsyncs take `seconds`, and the clock of the group commit that uses it."""

    def __init__(self) -> None:
        self.loop = cast("SimLoop", asyncio.get_running_loop())
        self.seconds = FAST
        self.executor = SimExecutor(lambda job: self.seconds)
        self.on_loop = 0  # fsyncs that held the loop
        self.held_seconds = 0.0  # for how long, together
        self._elsewhere = 0.0  # time that passed in the executor
        self.sync_error: OSError | None = None
        self.begin_error: OSError | None = None
        self.no_handle: OSError | None = None
        self.vanished: OSError | None = None
        self.health = DirectoryHealth("/data", now=self.monotonic)
        self.commit = GroupCommit(self.health, executor=self.executor, clock=self, check_present=self.check_present)

    def monotonic(self) -> float:
        return self.loop.time() + self._elsewhere

    def wall_ms(self) -> int:
        return 0

    def sync(self) -> None:
        if self.executor.is_running:
            self._elsewhere += self.seconds
        else:
            self.on_loop += 1
            self.held_seconds += self.seconds
            self.hold_loop()

    def hold_loop(self) -> None:
        self.loop.advance(self.seconds)

    def check_present(self) -> None:
        if self.vanished is not None:
            raise self.vanished

    async def rounds(self, count: int, logs: int = 1) -> None:
        """So many flushes of each log, one after the other."""
        each = [Log(self) for _ in range(logs)]
        for _ in range(count):
            for log in each:
                self.commit.schedule(log)
            await self.commit.drain()

    async def make_fast(self) -> None:
        """Flush until rounds run on the loop."""
        for _ in range(5000):
            if self.commit.speed.is_fast:
                return
            await self.rounds(1)
        raise AssertionError("rounds never moved to the loop")


class DiskInOrder(Disk):
    """The same on a loop that runs callbacks in their order, turn by turn. Only fsyncs take time."""

    def monotonic(self) -> float:
        return self._elsewhere + self.held_seconds

    def hold_loop(self) -> None:
        pass  # `monotonic` has it


class Log:
    """What a group commit sees of a partition."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.completed = 0
        self.failed: list[str] = []

    def begin_flush(self) -> FlushJob:
        self.disk.health.check()
        if self.disk.begin_error is not None:
            raise self.disk.health.refused("flush", self.disk.begin_error)
        error = self.disk.sync_error or self.disk.no_handle

        def sync() -> None:
            self.disk.sync()
            if error is not None:
                raise error

        return flush_calling(sync)

    def complete_flush(self, job: FlushJob) -> None:
        assert job.is_done
        if job.error is not None:
            raise self.disk.health.fail("fsync", job.error)
        if job.refusal is not None:
            raise self.disk.health.refused("flush", job.refusal)
        self.completed += 1

    def take_out_of_service(self, why: str) -> None:
        self.failed.append(why)

    def fail_flush(self, error: StorageError) -> None:
        self.failed.append(error.message)

    def give_up_waiting(self, error: StorageError) -> None:
        self.failed.append(error.message)


@pytest.fixture
async def disk() -> Disk:
    return Disk()


@pytest.mark.simulated_time
async def test_the_loop_never_waits_for_a_slow_disk(disk: Disk) -> None:
    disk.seconds = VERY_SLOW
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(1e-3)
            ticks += 1

    ticker = asyncio.ensure_future(tick())
    began = disk.loop.time()
    await disk.rounds(200)
    ticker.cancel()
    assert disk.on_loop == 0
    assert disk.loop.time() - began == pytest.approx(200 * VERY_SLOW, rel=0.01)
    assert ticks == pytest.approx(200 * VERY_SLOW / 1e-3, rel=0.02), "the loop ran all the time"


@pytest.mark.simulated_time
async def test_rounds_move_to_the_loop_when_the_disk_is_fast_and_back_when_it_is_slow(disk: Disk) -> None:
    await disk.make_fast()
    submitted = disk.executor.submitted
    assert submitted >= 16, "a disk is slow until it has been measured"
    await disk.rounds(100)
    assert (disk.on_loop, disk.executor.submitted) == (100, submitted)

    disk.seconds = SLOW
    await disk.rounds(100)
    assert disk.on_loop < 130, "the average rose within some rounds"
    assert not disk.commit.speed.is_fast

    disk.seconds = FAST
    await disk.make_fast()


@pytest.mark.simulated_time
async def test_between_the_two_limits_rounds_stay_where_they_are(disk: Disk) -> None:
    disk.seconds = (FAST_SYNC_SECONDS + SLOW_SYNC_SECONDS) / 2
    await disk.rounds(500)
    assert disk.on_loop == 0
    disk.seconds = FAST
    await disk.make_fast()
    disk.seconds = (FAST_SYNC_SECONDS + SLOW_SYNC_SECONDS) / 2
    submitted = disk.executor.submitted
    await disk.rounds(500)
    assert disk.executor.submitted == submitted


@pytest.mark.simulated_time
async def test_one_outlier_sends_rounds_to_the_executor_at_once_and_each_further_one_for_longer(disk: Disk) -> None:
    await disk.make_fast()
    stays = []
    for _ in range(4):
        disk.seconds, before = VERY_SLOW, disk.on_loop
        await disk.rounds(3)
        assert disk.on_loop == before + 1, "only the first of them held the loop"
        disk.seconds, submitted = FAST, disk.executor.submitted
        await disk.make_fast()
        stays.append(disk.executor.submitted - submitted)
    assert stays[-1] > stays[0]
    assert stays[-1] >= 16 * 2**4 - 3


@pytest.mark.simulated_time
async def test_a_round_of_many_logs_is_not_run_on_the_loop(disk: Disk) -> None:
    await disk.make_fast()
    few, many = 3, int(LOOP_ROUND_SECONDS_MAX / FAST) * 2
    await disk.rounds(1, logs=few)
    assert disk.on_loop == few
    submitted = disk.executor.submitted
    await disk.rounds(1, logs=many)
    assert (disk.on_loop, disk.executor.submitted) == (few, submitted + 1)


@pytest.mark.simulated_time
async def test_requests_of_one_turn_share_a_round_on_the_loop(disk: Disk) -> None:
    await disk.make_fast()
    log = Log(disk)
    for _ in range(10):
        disk.commit.schedule(log)
    assert disk.on_loop == 0, "the round begins at the end of the turn"
    await disk.commit.drain()
    assert (disk.on_loop, log.completed) == (1, 1)


@pytest.fixture
async def disk_in_order() -> Disk:
    return DiskInOrder()


async def turns_with(disk: Disk, log: Log, appends: list[int]) -> list[int]:
    """Append so often in each turn of the loop; returns the rounds that had run at the end of each turn."""
    before, rounds = disk.on_loop, []
    for count in appends:
        for _ in range(count):
            disk.commit.schedule(log)
        await asyncio.sleep(0)
        rounds.append(disk.on_loop - before)
    return rounds


async def test_a_round_waits_for_the_clients_of_the_last_one_while_their_requests_arrive(disk_in_order: Disk) -> None:
    await disk_in_order.make_fast()
    log = Log(disk_in_order)
    assert await turns_with(disk_in_order, log, [4]) == [1]
    assert await turns_with(disk_in_order, log, [1, 2, 1]) == [0, 0, 1], "as many as in the last round"
    assert await turns_with(disk_in_order, log, [2, 1, 0]) == [0, 0, 1], "a turn brought none"
    assert await turns_with(disk_in_order, log, [3]) == [1], "the next round expects no more than the last one had"


async def test_a_lone_producer_never_waits_for_others(disk_in_order: Disk) -> None:
    await disk_in_order.make_fast()
    log = Log(disk_in_order)
    await turns_with(disk_in_order, log, [32, 1, 0])
    assert await turns_with(disk_in_order, log, [1, 1, 1]) == [1, 2, 3]


async def test_a_round_waits_for_a_bounded_number_of_turns(disk_in_order: Disk) -> None:
    await disk_in_order.make_fast()
    log = Log(disk_in_order)
    await turns_with(disk_in_order, log, [1000])
    rounds = await turns_with(disk_in_order, log, [1] * (GATHERING_TURNS_MAX + 1))
    assert rounds == [0] * GATHERING_TURNS_MAX + [1]


@pytest.mark.simulated_time
@pytest.mark.parametrize("fast", [True, False], ids=["on the loop", "in the executor"])
class TestFailures:
    async def test_after_a_failed_fsync_all_fail_and_nothing_is_tried_again(self, disk: Disk, fast: bool) -> None:
        if fast:
            await disk.make_fast()
        disk.sync_error = OSError(errno.EIO, os.strerror(errno.EIO))
        first, second, later = Log(disk), Log(disk), Log(disk)
        disk.commit.schedule(first)
        disk.commit.schedule(second)
        await disk.commit.drain()
        disk.commit.schedule(later)
        for log in (first, second, later):
            assert log.failed and "Input/output error" in log.failed[0]
            assert not log.completed
        assert disk.health.failure is not None
        assert disk.on_loop == int(fast), "the second fsync was not even tried"

    async def test_a_sync_into_a_deleted_directory_does_not_count(self, disk: Disk, fast: bool) -> None:
        if fast:
            await disk.make_fast()
        disk.vanished = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        log = Log(disk)
        disk.commit.schedule(log)
        await disk.commit.drain()
        assert not log.completed
        assert "vanished" in log.failed[0]

    @pytest.mark.parametrize("where", ["before the fsync", "at the fsync"])
    async def test_a_flush_that_finds_no_space_or_no_handle_is_tried_again_until_it_works(
        self, disk: Disk, fast: bool, where: str
    ) -> None:
        if fast:
            await disk.make_fast()
        if where == "before the fsync":
            disk.begin_error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        else:
            disk.no_handle = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        log = Log(disk)
        disk.commit.schedule(log)
        await asyncio.sleep(1)
        assert log.completed == 0
        assert len(log.failed) == 0
        await asyncio.sleep(6)
        assert log.failed, "those who wait fail after a while"
        assert disk.health.failure is None
        disk.begin_error = disk.no_handle = None
        await asyncio.sleep(1)
        assert log.completed == 1
        assert disk.health.refusal is None
