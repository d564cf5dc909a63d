"""One disk operation fails, any of them, with each number a disk has for it; or the disk is full for a while.

The same scenario runs each time: two partitions in two directories, records, rolls, checkpoints, DeleteRecords,
retention, a topic that comes and goes. Whatever fails and whenever:

* what was acknowledged is there after a power cut, and a reader sees whole batches without a gap at any time;
* a failed sync and every other error that is not passing costs one directory, and nothing of it is acknowledged after;
* without free space or file handles nothing goes offline and writes continue by themselves;
* the partitions of the other directory notice nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Awaitable, Callable
from pathlib import PurePosixPath

import pytest

from ottla.core.errors import ErrorCode, StorageError
from ottla.core.ids import TopicPartition
from ottla.testing.sim_disk import Survival
from tests.unit.replication.disks import A, B, Scene, World, no_patience, topic

__all__ = ["no_patience"]
PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
LASTING = (errno.EIO, errno.EROFS, errno.ESTALE)
EVERY = int(os.environ.get("OTTLA_FAULTS_EVERY", "7"))  # 1 tries every operation with every number
Step = Callable[[Scene], Awaitable[object] | object]


def produce(first: int) -> Step:
    async def step(scene: Scene) -> None:
        for number in range(first, first + 6):
            await scene.send("web", b"value %d" % number, number % 2)

    return step


def jobs(scene: Scene) -> None:
    """What a broker does without being asked."""
    for directory in scene.directories.online:
        with contextlib.suppress(StorageError):
            directory.checkpoint()
        with contextlib.suppress(StorageError):
            directory.run_retention(scene.world.clock.wall_ms())
        with contextlib.suppress(StorageError):
            directory.purge_deleted(scene.world.clock.wall_ms() + 1)


def delete_records(scene: Scene) -> None:
    for index in (0, 1):
        with contextlib.suppress(StorageError):
            scene.replicas.partition(TopicPartition("web", index)).delete_records(2)


def read(scene: Scene) -> None:
    for index in (0, 1):
        with contextlib.suppress(StorageError):
            scene.read("web", index)


async def come_and_go(scene: Scene) -> None:
    topics = dict(scene.view.topics)
    scene.add(topic("new", 2))
    for index in (0, 1):
        await scene.send("new", b"short-lived", index)
    scene.follow(topics)


STORY: list[Step] = [
    lambda scene: scene.add(topic("web", 2)),
    produce(0), read, jobs, produce(6), delete_records, jobs, come_and_go, produce(12), read, jobs,
]  # fmt: skip


async def scenario(scene: Scene, before: Callable[[int], None] = lambda _: None) -> None:
    for number, step in enumerate(STORY):
        before(number)
        done = step(scene)
        if isinstance(done, Awaitable):
            await done


def operations() -> list[str]:
    """What the story does to the disk when nothing fails."""
    world = World()
    done: list[str] = []

    async def story(scene: Scene) -> None:
        start = len(world.disk.history)
        await scenario(scene)
        done.extend(world.disk.history[start:])
        assert all(len(acked) == 9 for tp, acked in world.acked.items() if tp.topic == "web")

    world.live(story)
    return done


async def everything_still_works(scene: Scene, offline: set[PurePosixPath]) -> None:
    """Every partition whose directory is well takes records and gives them."""
    await scene.until(lambda: scene.directories.offline.keys() == offline)
    for index in (0, 1):
        holding = [each.path for each in scene.directories.holding(TopicPartition("web", index))]
        if offline.intersection(PurePosixPath(path) for path in holding):
            await scene.until(lambda index=index: f"web-{index}" in scene.offline())  # type: ignore[misc]
            assert await scene.send("web", b"no more", index) is ErrorCode.KAFKA_STORAGE_ERROR
        else:
            await scene.until(lambda index=index: f"web-{index}" not in scene.offline())  # type: ignore[misc]
            await scene.until_sent("web", b"goes on", index)
            assert scene.read("web", index)[-1][1] == b"goes on"


def fail_once(nth: int, error: int) -> str:
    """The story with one failed operation; which one it was."""
    world = World()
    failed = ""

    async def story(scene: Scene) -> None:
        nonlocal failed
        at = world.disk.changes + nth
        world.disk.fail_at(nth, error)
        world.fails_at = at
        await scenario(scene)
        if world.disk.changes < at:
            return  # an error before made the story shorter
        failed = world.disk.history[at - 1]
        is_lasting = error in LASTING or failed.startswith("sync")
        held = {path for path in (A, B) if f"{path}/" in f"{failed}/"}
        if is_lasting and not failed.startswith("remove") and scene.directories.offline:
            assert {PurePosixPath(path) for path in scene.directories.offline} == held
        if not is_lasting:
            assert not scene.directories.offline, f"{failed} is no reason to give up a directory"
        await everything_still_works(scene, {PurePosixPath(path) for path in scene.directories.offline})

    world.live(story, stop=False)
    world.power_cut(Survival.LOST if nth % 2 else Survival.TORN, seed=nth)
    world.assert_all_acked_is_there()
    return failed


COUNT = len(operations())


def test_the_story_has_every_kind_of_operation() -> None:
    kinds = {operation.split()[0] for operation in operations()}
    assert kinds >= {"create", "write", "truncate", "mkdir", "rename", "remove", "rmdir", "sync"}
    assert COUNT > 150


@pytest.mark.parametrize("error", [*PASSING, *LASTING], ids=errno.errorcode.get)
@pytest.mark.parametrize("phase", range(2))
def test_one_failed_operation_costs_no_acknowledged_record_and_no_neighbour(error: int, phase: int) -> None:
    offset = (PASSING + LASTING).index(error) + phase * EVERY // 2
    for nth in range(1 + offset % EVERY, COUNT + 1, EVERY):
        fail_once(nth, error)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
@pytest.mark.parametrize("first", range(len(STORY)))
def test_a_disk_that_is_full_for_a_while_costs_nothing_but_the_while(error: int, first: int) -> None:
    world = World()

    def before(step: int) -> None:
        if step == first:
            world.disk.refuse(error, "write", "create", "mkdir")
        elif step == first + 3:
            world.disk.relent()

    async def story(scene: Scene) -> None:
        await scenario(scene, before)
        world.disk.relent()
        await everything_still_works(scene, set())

    world.live(story, stop=False)
    world.power_cut()
    world.assert_all_acked_is_there()


@pytest.mark.parametrize("path", [A, B])
@pytest.mark.parametrize("first", range(1, len(STORY), 2))
def test_a_disk_without_file_handles_for_a_while_costs_nothing_but_the_while(path: PurePosixPath, first: int) -> None:
    world = World()

    def before(step: int) -> None:
        if step == first:
            world.disk.refuse(errno.EMFILE, "open", "create")
        elif step == first + 2:
            world.disk.relent()

    async def story(scene: Scene) -> None:
        await scenario(scene, before)
        world.disk.relent()
        await everything_still_works(scene, set())

    world.live(story, stop=False)
    world.power_cut()
    world.assert_all_acked_is_there()


@pytest.mark.parametrize("path", [A, B])
@pytest.mark.parametrize("first", range(1, len(STORY)))
def test_a_directory_that_turns_read_only_costs_itself(path: PurePosixPath, first: int) -> None:
    world = World()
    changes = ("create", "write", "truncate", "mkdir", "rename", "remove", "rmdir")

    async def story(scene: Scene) -> None:
        await scenario(
            scene, lambda step: world.disk.refuse(errno.EROFS, *changes, under=path) if step == first else None
        )
        if scene.directories.offline:
            await everything_still_works(scene, {path})

    world.live(story, stop=False)
    world.power_cut()
    world.assert_all_acked_is_there()
