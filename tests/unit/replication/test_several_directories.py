"""Tests several log directories: the placement of partitions, the loss of a directory, and what is not recreated."""

from __future__ import annotations

import errno
import uuid
from pathlib import PurePosixPath

import pytest

from ottla.core.errors import ErrorCode, StorageError, UnknownTopicOrPartition
from ottla.core.ids import TopicPartition
from ottla.storage.directories.log_directory import DirectoryInUse, ForeignDirectory
from ottla.storage.directories.log_manager import DuplicateLog
from ottla.testing.sim_disk import SimDisk
from tests.support.storage import TP, open_directories, open_directory
from tests.unit.replication.disks import NUMBERS, A, B, Scene, World, no_patience, topic

__all__ = ["no_patience"]
OK, STORAGE = ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR


def test_new_partitions_go_where_the_fewest_are() -> None:
    async def story(scene: Scene) -> None:
        scene.add(topic("web", 3))
        assert [scene.where("web", index) for index in range(3)] == [A, B, A]
        scene.add(topic("new", 1))
        assert scene.where("new") == B

    World().live(story)


def test_a_failed_sync_costs_one_directory_and_a_restart_brings_back_all_that_was_acknowledged() -> None:
    world = World()

    async def story(scene: Scene) -> None:
        scene.add(topic("web", 2))
        assert [await scene.send("web", b"a%d" % at, at) for at in (0, 1)] == [OK, OK]
        world.disk.refuse(errno.ENOSPC, "sync", under=A)  # delayed allocation: the disk is full only now
        assert await scene.send("web", b"lost", 0) is STORAGE
        world.disk.relent()
        assert scene.offline() == {"web-0"}
        assert [await scene.send("web", b"b", at) for at in (0, 1)] == [STORAGE, OK]
        with pytest.raises(StorageError):
            scene.read("web", 0)
        assert len(scene.read("web", 1)) == 2
        assert not scene.all_lost.is_set()

    world.live(story)
    assert not world.disk.exists(A / ".kafka_cleanshutdown")
    assert world.disk.exists(B / ".kafka_cleanshutdown")
    world.power_cut()

    async def again(scene: Scene) -> None:
        assert scene.offline() == set()
        assert await scene.send("web", b"c", 0) is OK

    world.live(again)
    world.assert_all_acked_is_there()


def test_the_partitions_of_a_directory_that_cannot_be_opened_are_not_recreated() -> None:
    world = World()

    async def fill(scene: Scene) -> None:
        scene.add(topic("web", 2))
        for at in (0, 1):
            assert await scene.send("web", b"kept", at) is OK

    async def without(scene: Scene) -> None:
        world.disk.relent()
        assert scene.offline() == {"web-1"}
        assert await scene.send("web", b"x", 1) is STORAGE
        assert await scene.send("web", b"x", 0) is OK
        assert scene.directories.offline.keys() == {B}
        scene.add(topic("new", 2))  # what is new may be made
        assert {scene.where("new", at) for at in (0, 1)} == {A}
        assert await scene.send("new", b"y", 1) is OK
        assert not world.disk.exists(A / "web-1")

    world.live(fill)
    world.disk.refuse(errno.EIO, "open", "create", under=B)
    world.live(without, missing="/b is missing")
    world.assert_all_acked_is_there()


def test_the_topic_that_was_deleted_while_its_directory_was_away_does_not_come_back() -> None:
    world = World()

    async def fill(scene: Scene) -> None:
        scene.add(topic("web", 2))
        assert await scene.send("web", b"old", 1) is OK

    async def without(scene: Scene) -> None:
        world.disk.relent()
        scene.follow({})
        scene.add(topic("web", 2, number=70))
        assert await scene.send("web", b"young", 1) is OK
        world.acked = {TopicPartition("web", 1): {0: b"young"}}

    async def both(scene: Scene) -> None:
        assert [value for _, value in scene.read("web", 1)] == [b"young"]
        assert scene.where("web", 1) == A

    world.live(fill)
    world.disk.refuse(errno.EIO, "open", "create", under=B)
    world.live(without, missing="/b is missing")
    world.live(both)
    world.assert_all_acked_is_there()


def test_when_the_last_directory_fails_the_broker_hears_of_it() -> None:
    world = World()

    async def story(scene: Scene) -> None:
        scene.add(topic("web", 2))
        for at, path in ((0, A), (1, B)):
            world.disk.refuse(errno.EIO, "sync", under=path)
            assert await scene.send("web", b"x", at) is STORAGE
            await scene.until(lambda at=at: f"web-{at}" in scene.offline())  # type: ignore[misc]
            assert scene.all_lost.is_set() == (path == B)

    world.live(story)


def test_a_partition_in_two_directories_is_refused() -> None:
    disk = SimDisk()
    directories = open_directories(disk, A, B)
    for directory in directories.opened:
        directory.create_log(TP, uuid.UUID(int=7))
    directories.close()
    with pytest.raises(DuplicateLog, match=r"web-0 is in two log directories, /a/web-0 and /b/web-0"):
        open_directories(disk, A, B)
    disk.remove_tree(B / "web-0")
    open_directories(disk, A, B).close()  # the locks were given back


def test_a_directory_in_use_and_one_of_another_cluster_stop_the_start_and_the_others_stay_clean() -> None:
    disk = SimDisk()
    open_directories(disk, A, B).close()
    lock = disk.lock(B / ".lock")
    with pytest.raises(DirectoryInUse):
        open_directories(disk, A, B)
    lock.release()
    assert disk.exists(A / ".kafka_cleanshutdown")
    other = open_directory(disk)
    other.close()
    disk.remove(B / "meta.properties")
    file = disk.open(B / "meta.properties", create=True)
    file.append(b"version=1\nnode.id=1\ncluster.id=another\n")
    with pytest.raises(ForeignDirectory):
        open_directories(disk, A, B)


def test_a_log_that_no_directory_takes_goes_to_the_next_one_and_to_none_while_all_refuse() -> None:
    world = World()

    async def story(scene: Scene) -> None:
        world.disk.refuse(errno.ENOSPC, "mkdir", under=A)
        scene.add(topic("web", 1))
        assert scene.where("web") == B
        world.disk.refuse(errno.ENOSPC, "mkdir")
        scene.add(topic("new", 1))
        assert scene.offline() == {"new-0"}
        assert await scene.send("new", b"x") is STORAGE
        assert await scene.send("web", b"x") is OK
        assert not scene.directories.offline, "a full disk is no reason to give up a directory"
        world.disk.relent()
        await scene.until(lambda: not scene.offline())
        assert await scene.send("new", b"x") is OK
        assert scene.availability == [("new-0", False), ("new-0", True)]

    world.live(story)
    world.assert_all_acked_is_there()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE])
def test_a_topic_whose_deletion_the_disk_refuses_is_gone_and_its_files_go_later(error: int) -> None:
    world = World(A)

    async def story(scene: Scene) -> None:
        scene.add(topic("web", 1))
        assert await scene.send("web", b"old") is OK
        world.disk.refuse(error, "rename")
        scene.follow({})
        assert await scene.send("web", b"x") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not scene.directories.offline
        scene.add(topic("web", 1, number=NUMBERS["web"] + 1))  # of the same name: must wait for the old one to go
        assert scene.offline() == {"web-0"}
        world.disk.relent()
        await scene.until(lambda: not scene.offline())
        assert await scene.send("web", b"young") is OK
        assert [value for _, value in scene.read("web")] == [b"young"]
        world.acked = {TopicPartition("web", 0): {0: b"young"}}

    world.live(story)
    world.assert_all_acked_is_there()


def test_a_deletion_that_the_disk_refuses_is_done_as_soon_as_it_can_be() -> None:
    world = World(A)

    async def story(scene: Scene) -> None:
        scene.add(topic("web", 1))
        world.disk.refuse(errno.ENOSPC, "rename")
        scene.follow({})
        assert world.disk.exists(A / "web-0")
        world.disk.relent()
        await scene.until(lambda: not world.disk.exists(A / "web-0"))

    world.live(story)


def test_the_logs_of_a_topic_that_a_snapshot_lacks_are_kept_until_its_deletion_is_noted() -> None:
    world = World(A)

    async def story(scene: Scene) -> None:
        web = topic("web", 1)
        scene.add(web)
        assert await scene.send("web", b"x") is OK
        scene.follow({}, noted=False)
        with pytest.raises(UnknownTopicOrPartition):
            scene.read("web")
        assert world.disk.exists(A / "web-0")
        scene.add(web)  # the snapshot was of another moment
        assert [value for _, value in scene.read("web")] == [b"x"]
        scene.follow({}, noted=False)
        scene.note_deleted(web.topic_id)
        assert not world.disk.exists(A / "web-0")
        world.acked.clear()

    world.live(story)


def test_a_topic_that_came_back_is_served_though_its_deletion_is_noted_later() -> None:
    world = World(A)

    async def story(scene: Scene) -> None:
        old, new = topic("web", 1), topic("web", 1, number=5)
        scene.add(old)
        assert await scene.send("web", b"old") is OK
        world.acked.clear()
        scene.follow({}, noted=False)
        scene.add(new)
        assert await scene.send("web", b"new") is OK
        scene.note_deleted(old.topic_id)
        assert [value for _, value in scene.read("web")] == [b"new"]

    world.live(story)


def test_a_directory_that_vanishes_acknowledges_nothing_more() -> None:
    world = World()

    async def story(scene: Scene) -> None:
        scene.add(topic("web", 2))
        assert await scene.send("web", b"x", 0) is OK
        world.disk.remove_tree(PurePosixPath("/a"))
        assert await scene.send("web", b"x", 0) is STORAGE
        assert await scene.send("web", b"x", 1) is OK
        assert scene.offline() == {"web-0"}

    world.live(story)


def test_a_read_that_fails_costs_the_directory_and_one_without_a_handle_only_itself() -> None:
    world = World()

    async def story(scene: Scene) -> None:
        scene.add(topic("web", 2))
        for number in range(30):
            assert await scene.send("web", b"%d" % number, number % 2) is OK
        for log in (scene.replicas.partition(TopicPartition("web", at)).log for at in (0, 1)):
            for segment in log.segments:
                segment.let_go()
                assert segment.let_go()
        world.disk.refuse(errno.EMFILE, "open")
        with pytest.raises(StorageError):
            scene.read("web", 0)
        assert not scene.offline()
        world.disk.relent()
        assert len(scene.read("web", 0)) == 15
        world.disk.refuse(errno.EIO, "read", under=A)
        with pytest.raises(StorageError):
            scene.read("web", 0)
        await scene.until(scene.offline)
        assert scene.offline() == {"web-0"}
        assert len(scene.read("web", 1)) == 15

    world.live(story)
    world.assert_all_acked_is_there()
