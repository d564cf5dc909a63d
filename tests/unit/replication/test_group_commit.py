"""Group commit through its port: who shares a round, and what happens when the disk refuses."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from ottla.core.errors import StorageError
from ottla.replication import group_commit as commits
from ottla.replication.group_commit import GroupCommit
from ottla.storage.directory_health import DirectoryHealth
from ottla.storage.log.flush import FlushJob
from tests.support.flushes import flush_calling
from tests.support.storage import StillClock
from tests.support.waiting import thread_executor


def refused(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class Log:
    """What a group commit sees of a partition."""

    def __init__(self, health: DirectoryHealth, gate: threading.Event) -> None:
        self.health, self.gate = health, gate
        self.begun = self.completed = 0
        self.run_error: OSError | None = None
        self.run_refusal: OSError | None = None
        self.begin_error: OSError | None = None
        self.errors: list[str] = []
        self.given_up: list[str] = []
        self.planted: Exception | None = None

    def begin_flush(self) -> FlushJob:
        self.health.check()
        if self.begin_error is not None:
            raise self.health.refused("flush", self.begin_error)
        self.begun += 1
        error = self.run_error or self.run_refusal

        def sync() -> None:
            assert self.gate.wait(20), "the test never opened the gate"
            if error is not None:
                raise error

        return flush_calling(sync)

    def complete_flush(self, job: FlushJob) -> None:
        assert job.is_done, "only what has run is complete"
        if job.error is not None:
            raise self.health.fail("fsync", job.error)
        if job.refusal is not None:
            raise self.health.refused("flush", job.refusal)
        self.completed += 1
        if self.planted is not None:
            raise self.planted

    def take_out_of_service(self, why: str) -> None:
        self.errors.append(why)

    def fail_flush(self, error: StorageError) -> None:
        self.errors.append(error.message)

    def give_up_waiting(self, error: StorageError) -> None:
        self.given_up.append(error.message)


class CommitHarness:
    """A group commit, and all that a test may do to it."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.now = 0.0
        self.health = DirectoryHealth("/data", now=lambda: self.now)
        self.offline: list[str] = []
        self.health.on_failure = lambda error: self.offline.append(error.message)
        self.vanished: OSError | None = None
        executor = thread_executor()
        self.commit = GroupCommit(self.health, executor=executor, clock=StillClock(), check_present=self._check_present)

    def _check_present(self) -> None:
        if self.vanished is not None:
            raise self.vanished

    def log(self) -> Log:
        return Log(self.health, self.gate)

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():  # noqa: ASYNC110 - threads of the code under test, no event to wait for
            await asyncio.sleep(0.01)


@pytest.fixture
async def harness() -> AsyncIterator[CommitHarness]:
    harness = CommitHarness()
    yield harness
    harness.gate.set()
    await harness.commit.close()


async def test_logs_that_come_while_the_disk_is_busy_share_the_next_round(harness: CommitHarness) -> None:
    log = harness.log()
    harness.commit.schedule(log)
    await asyncio.sleep(0)  # the round begins one turn later
    assert log.begun == 1
    for _ in range(5):
        harness.commit.schedule(log)
    assert log.completed == 0
    harness.gate.set()
    await harness.commit.drain()

    assert (log.begun, log.completed) == (2, 2)
    assert not harness.offline


async def test_after_a_failed_fsync_all_waiters_fail_and_nothing_is_retried(harness: CommitHarness) -> None:
    well, failing, behind, waiting, later = [harness.log() for _ in range(5)]
    failing.run_error = refused(errno.EIO)
    for log in (well, failing, behind):
        harness.commit.schedule(log)
    await asyncio.sleep(0)
    harness.commit.schedule(waiting)
    harness.gate.set()
    await harness.commit.drain()
    harness.commit.schedule(later)

    assert len(harness.offline) == 1
    everybody = (well, failing, behind, waiting, later)
    assert all(log.errors and "Input/output error" in log.errors[0] for log in everybody)
    assert [log.begun for log in everybody] == [1, 1, 1, 0, 0]
    assert not any(log.completed for log in everybody), "nothing of that round is acknowledged"


async def test_a_partition_that_cannot_complete_its_flush_holds_up_no_other(harness: CommitHarness) -> None:
    before, broken, after = [harness.log() for _ in range(3)]
    broken.planted = AssertionError("planted")
    for log in (before, broken, after):
        harness.commit.schedule(log)
    harness.gate.set()
    await harness.commit.drain()
    harness.commit.schedule(after)
    await harness.commit.drain()
    assert (before.completed, after.completed) == (1, 2)
    assert [len(log.errors) for log in (before, broken, after)] == [0, 1, 0], "it alone is out of service"
    assert not harness.offline


async def test_a_full_disk_at_a_sync_is_a_failed_sync_and_before_it_is_not(harness: CommitHarness) -> None:
    log = harness.log()
    log.begin_error = refused(errno.ENOSPC)
    harness.commit.schedule(log)
    await harness.until(lambda: harness.health.refusal)
    assert not harness.offline
    log.begin_error, log.run_error = None, refused(errno.ENOSPC)
    harness.gate.set()
    await harness.until(lambda: harness.offline)
    assert log.errors
    assert not log.completed


async def test_a_flush_that_cannot_be_begun_is_tried_again_by_itself_and_costs_the_others_nothing(
    harness: CommitHarness,
) -> None:
    well, refusing = harness.log(), harness.log()
    refusing.begin_error = refused(errno.ENOSPC)
    harness.gate.set()
    harness.commit.schedule(well)
    harness.commit.schedule(refusing)
    await harness.until(lambda: well.completed)
    assert harness.health.refusal
    refusing.begin_error = None
    await harness.until(lambda: refusing.completed)

    assert not harness.offline
    assert not refusing.errors
    assert harness.health.refusal is None, "it is over, and known to be"


async def test_a_flush_without_file_handles_is_done_later(harness: CommitHarness) -> None:
    log = harness.log()
    log.run_refusal = refused(errno.EMFILE)
    harness.gate.set()
    harness.commit.schedule(log)
    await harness.until(lambda: log.begun >= 2)
    assert not log.completed
    log.run_refusal = None
    await harness.until(lambda: log.completed)
    assert not harness.offline


async def test_waiters_fail_in_the_end_if_a_flush_cannot_begin(harness: CommitHarness, monkeypatch: Any) -> None:
    monkeypatch.setattr(commits, "PATIENCE_SECONDS", 0.0)

    log = harness.log()
    log.begin_error = refused(errno.EDQUOT)
    harness.commit.schedule(log)
    await harness.until(lambda: log.given_up)
    assert not log.errors, "the partition is not lost"
    log.begin_error = None
    harness.gate.set()
    await harness.until(lambda: log.completed)


async def test_a_sync_into_a_directory_that_has_vanished_does_not_count(harness: CommitHarness) -> None:
    log = harness.log()
    harness.vanished = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    harness.gate.set()
    harness.commit.schedule(log)
    await harness.until(lambda: log.errors)
    assert not log.completed
    assert "vanished" in harness.offline[0]


async def test_a_directory_that_failed_elsewhere_acknowledges_nothing_that_was_under_way(
    harness: CommitHarness,
) -> None:
    log = harness.log()
    harness.commit.schedule(log)
    await asyncio.sleep(0)
    harness.health.fail("append", refused(errno.EIO))
    harness.gate.set()
    await harness.until(lambda: log.errors)
    assert not log.completed


async def test_a_partition_with_a_log_in_another_directory_learns_nothing_of_its_old_one(
    harness: CommitHarness,
) -> None:
    moved, other = harness.log(), harness.log()
    moved.run_error = refused(errno.EIO)
    for log in (other, moved):
        harness.commit.schedule(log)
    await harness.until(lambda: moved.begun)
    harness.commit.release(moved)
    harness.gate.set()
    await harness.until(lambda: other.errors)
    assert (moved.errors, moved.completed, other.completed) == ([], 0, 0)
    assert harness.offline, "the disk has failed all the same"


async def test_a_flush_of_a_log_that_was_replaced_completes_nothing(harness: CommitHarness) -> None:
    moved, other = harness.log(), harness.log()
    for log in (moved, other):
        harness.commit.schedule(log)
    await harness.until(lambda: moved.begun)
    harness.commit.release(moved)
    harness.gate.set()
    await harness.until(lambda: other.completed)
    assert moved.completed == 0


async def test_a_partition_that_is_gone_is_not_flushed_any_more(harness: CommitHarness) -> None:
    gone, refusing = harness.log(), harness.log()
    refusing.begin_error = refused(errno.ENOSPC)
    harness.commit.schedule(gone)
    harness.commit.forget(gone)
    harness.commit.schedule(refusing)
    await harness.until(lambda: harness.health.refusal)
    harness.commit.forget(refusing)
    refusing.begin_error = None
    await harness.commit.drain()
    assert (gone.begun, refusing.begun) == (0, 0)
