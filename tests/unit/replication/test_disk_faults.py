"""One disk operation fails, any of them, with each number a disk has for it; or the disk is full for a while.

The same scenario runs each time: two partitions in two directories, records, rolls, checkpoints, DeleteRecords,
retention, a topic that comes and goes. Whatever fails and whenever:

* what was acknowledged is there after a power cut, and a reader sees whole batches without a gap at any time;
* a failed sync and every other error that is not passing costs one directory, and nothing of it is acknowledged after;
* without free space or file handles nothing goes offline and writes continue by themselves;
* the partitions of the other directory notice nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import PurePosixPath

import pytest

from ottla.core.errors import ErrorCode, StorageError
from ottla.core.ids import TopicPartition
from ottla.testing.sim_disk import Survival
from tests.unit.replication.disks import A, B, BrokerReplicas, ReplicaHarness, no_patience, topic

__all__ = ["no_patience"]
PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
LASTING = (errno.EIO, errno.EROFS, errno.ESTALE)
EVERY = int(os.environ.get("OTTLA_FAULTS_EVERY", "7"))  # 1 tries every operation with every number
Step = Callable[[BrokerReplicas], Awaitable[object] | object]


def produce(first: int) -> Step:
    async def step(broker: BrokerReplicas) -> None:
        for number in range(first, first + 6):
            await broker.send("web", b"value %d" % number, number % 2)

    return step


def jobs(broker: BrokerReplicas) -> None:
    """What a broker does without being asked."""
    for directory in broker.directories.online:
        with contextlib.suppress(StorageError):
            directory.checkpoint()
        with contextlib.suppress(StorageError):
            directory.run_retention(broker.harness.clock.wall_ms())
        with contextlib.suppress(StorageError):
            directory.purge_deleted(broker.harness.clock.wall_ms() + 1)


def delete_records(broker: BrokerReplicas) -> None:
    for index in (0, 1):
        with contextlib.suppress(StorageError):
            broker.replicas.partition(TopicPartition("web", index)).delete_records(2)


def read(broker: BrokerReplicas) -> None:
    for index in (0, 1):
        with contextlib.suppress(StorageError):
            broker.read("web", index)


async def come_and_go(broker: BrokerReplicas) -> None:
    topics = dict(broker.view.topics)
    broker.add(topic("new", 2))
    for index in (0, 1):
        await broker.send("new", b"short-lived", index)
    broker.follow(topics)


STEPS: list[Step] = [
    lambda broker: broker.add(topic("web", 2)),
    produce(0),
    read,
    jobs,
    produce(6),
    delete_records,
    jobs,
    come_and_go,
    produce(12),
    read,
    jobs,
]


async def run_steps(broker: BrokerReplicas, before: Callable[[int], None] = lambda _: None) -> None:
    for number, step in enumerate(STEPS):
        before(number)
        done = step(broker)
        if isinstance(done, Awaitable):
            await done


def operations() -> list[str]:
    """What the steps do to the disk when nothing fails."""
    harness = ReplicaHarness()
    done: list[str] = []

    async def run() -> None:
        async with harness.running() as broker:
            start = len(harness.disk.history)
            await run_steps(broker)
            done.extend(harness.disk.history[start:])
            assert all(len(acked) == 9 for tp, acked in harness.acked.items() if tp.topic == "web")

    asyncio.run(run())
    return done


async def everything_still_works(broker: BrokerReplicas, offline: set[PurePosixPath]) -> None:
    """Every partition whose directory is well takes records and gives them."""
    await broker.until(lambda: broker.directories.offline.keys() == offline)
    for index in (0, 1):
        holding = [each.path for each in broker.directories.holding(TopicPartition("web", index))]
        if offline.intersection(PurePosixPath(path) for path in holding):
            await broker.until(lambda index=index: f"web-{index}" in broker.offline())  # type: ignore[misc]
            assert await broker.send("web", b"no more", index) is ErrorCode.KAFKA_STORAGE_ERROR
        else:
            await broker.until(lambda index=index: f"web-{index}" not in broker.offline())  # type: ignore[misc]
            await broker.until_sent("web", b"goes on", index)
            assert broker.read("web", index)[-1][1] == b"goes on"


async def fail_once(nth: int, error: int) -> str:
    """Run the steps with one failed operation; return which one it was."""
    harness = ReplicaHarness()
    failed = ""
    async with harness.running(stop=False) as broker:
        at = harness.disk.changes + nth
        harness.disk.fail_at(nth, error)
        harness.fails_at = at
        await run_steps(broker)
        if harness.disk.changes >= at:  # no error before has ended the steps early
            failed = harness.disk.history[at - 1]
            is_lasting = error in LASTING or failed.startswith("sync")
            held = {path for path in (A, B) if f"{path}/" in f"{failed}/"}
            if is_lasting and not failed.startswith("remove") and broker.directories.offline:
                assert {PurePosixPath(path) for path in broker.directories.offline} == held
            if not is_lasting:
                assert not broker.directories.offline, f"{failed} is no reason to give up a directory"
            await everything_still_works(broker, {PurePosixPath(path) for path in broker.directories.offline})
    harness.power_cut(Survival.LOST if nth % 2 else Survival.TORN, seed=nth)
    await harness.assert_all_acked_is_there()
    return failed


COUNT = len(operations())


def test_the_workload_has_every_kind_of_operation() -> None:
    kinds = {operation.split()[0] for operation in operations()}
    assert kinds >= {"create", "write", "truncate", "mkdir", "rename", "remove", "rmdir", "sync"}
    assert COUNT > 150


@pytest.mark.parametrize("error", [*PASSING, *LASTING], ids=errno.errorcode.get)
@pytest.mark.parametrize("phase", range(2))
async def test_one_failed_operation_costs_no_acknowledged_record_and_no_neighbour(error: int, phase: int) -> None:
    offset = (PASSING + LASTING).index(error) + phase * EVERY // 2
    for nth in range(1 + offset % EVERY, COUNT + 1, EVERY):
        await fail_once(nth, error)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
@pytest.mark.parametrize("first", range(len(STEPS)))
async def test_after_a_full_disk_has_space_again_no_acknowledged_record_is_lost(error: int, first: int) -> None:
    harness = ReplicaHarness()

    def before(step: int) -> None:
        if step == first:
            harness.disk.refuse(error, "write", "create", "mkdir")
        elif step == first + 3:
            harness.disk.stop_refusing()

    async with harness.running(stop=False) as broker:
        await run_steps(broker, before)
        harness.disk.stop_refusing()
        await everything_still_works(broker, set())
    harness.power_cut()
    await harness.assert_all_acked_is_there()


@pytest.mark.parametrize("path", [A, B])
@pytest.mark.parametrize("first", range(1, len(STEPS), 2))
async def test_after_a_disk_without_file_handles_works_again_no_acknowledged_record_is_lost(
    path: PurePosixPath, first: int
) -> None:
    harness = ReplicaHarness()

    def before(step: int) -> None:
        if step == first:
            harness.disk.refuse(errno.EMFILE, "open", "create")
        elif step == first + 2:
            harness.disk.stop_refusing()

    async with harness.running(stop=False) as broker:
        await run_steps(broker, before)
        harness.disk.stop_refusing()
        await everything_still_works(broker, set())
    harness.power_cut()
    await harness.assert_all_acked_is_there()


@pytest.mark.parametrize("path", [A, B])
@pytest.mark.parametrize("first", range(1, len(STEPS)))
async def test_a_directory_that_turns_read_only_costs_itself(path: PurePosixPath, first: int) -> None:
    harness = ReplicaHarness()
    changes = ("create", "write", "truncate", "mkdir", "rename", "remove", "rmdir")
    async with harness.running(stop=False) as broker:
        await run_steps(
            broker, lambda step: harness.disk.refuse(errno.EROFS, *changes, under=path) if step == first else None
        )
        if broker.directories.offline:
            await everything_still_works(broker, {path})
    harness.power_cut()
    await harness.assert_all_acked_is_there()
