"""Group commit through its port: who shares a round, and what happens when the disk refuses."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, cast

from ottla.core.errors import StorageError
from ottla.replication.commit import GroupCommit
from ottla.storage.flush import FlushJob


class Job:
    """One log's fsync: waits for the test's gate, then works or fails."""

    def __init__(self, gate: threading.Event, error: StorageError | None) -> None:
        self.gate, self.error = gate, error

    def run(self) -> None:
        assert self.gate.wait(20), "the test never opened the gate"
        if self.error is not None:
            raise self.error


class Log:
    """What a group commit sees of a partition."""

    def __init__(self, gate: threading.Event) -> None:
        self.gate = gate
        self.begun = self.completed = 0
        self.run_error: StorageError | None = None
        self.begin_error: StorageError | None = None
        self.told: list[StorageError] = []

    def begin_flush(self) -> FlushJob:
        self.begun += 1
        if self.begin_error is not None:
            raise self.begin_error
        return cast("FlushJob", Job(self.gate, self.run_error))

    def complete_flush(self, job: FlushJob) -> None:
        self.completed += 1

    def fail_flush(self, error: StorageError) -> None:
        self.told.append(error)


Story = Callable[[GroupCommit, threading.Event, list[StorageError]], Coroutine[Any, Any, None]]


def play(story: Story) -> None:
    async def main() -> None:
        gate, offline = threading.Event(), list[StorageError]()
        commit = GroupCommit("test", on_failure=offline.append)
        try:
            await asyncio.wait_for(story(commit, gate, offline), 20)
        finally:
            gate.set()
            await asyncio.wait_for(commit.close(), 20)

    asyncio.run(main())


def test_what_comes_while_the_disk_is_busy_shares_the_next_round() -> None:
    async def story(commit: GroupCommit, gate: threading.Event, offline: list[StorageError]) -> None:
        log = Log(gate)
        commit.schedule(log)
        await asyncio.sleep(0)  # the round begins one turn later
        assert log.begun == 1
        for _ in range(5):
            commit.schedule(log)
        assert log.completed == 0
        gate.set()
        await commit.drain()

        assert (log.begun, log.completed) == (2, 2)
        assert not offline

    play(story)


def test_after_a_failed_fsync_everybody_is_told_and_nothing_is_tried_again() -> None:
    async def story(commit: GroupCommit, gate: threading.Event, offline: list[StorageError]) -> None:
        failing, waiting, later = Log(gate), Log(gate), Log(gate)
        failing.run_error = StorageError("EIO")
        commit.schedule(failing)
        await asyncio.sleep(0)
        commit.schedule(waiting)
        gate.set()
        await commit.drain()
        commit.schedule(later)

        assert offline == [failing.run_error]
        assert [each.told for each in (failing, waiting, later)] == [[failing.run_error]] * 3
        assert [each.begun for each in (failing, waiting, later)] == [1, 0, 0]
        assert failing.completed == 0

    play(story)


def test_a_round_that_cannot_even_begin_leaves_nobody_waiting() -> None:
    async def story(commit: GroupCommit, gate: threading.Event, offline: list[StorageError]) -> None:
        well, refusing = Log(gate), Log(gate)
        refusing.begin_error = StorageError("no room for the leader epochs")
        commit.schedule(well)
        commit.schedule(refusing)
        await commit.drain()

        assert well.told == refusing.told == offline == [refusing.begin_error]
        assert well.completed == refusing.completed == 0

    play(story)
