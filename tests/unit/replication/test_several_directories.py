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
from tests.unit.replication.disks import NUMBERS, A, B, ReplicaHarness, no_patience, topic

__all__ = ["no_patience"]
OK, STORAGE = ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR


async def test_new_partitions_go_where_the_fewest_are() -> None:
    async with ReplicaHarness().running() as broker:
        broker.add(topic("web", 3))
        assert [broker.where("web", index) for index in range(3)] == [A, B, A]
        broker.add(topic("new", 1))
        assert broker.where("new") == B


async def test_a_failed_sync_costs_one_directory_and_a_restart_brings_back_all_that_was_acknowledged() -> None:
    harness = ReplicaHarness()
    async with harness.running() as broker:
        broker.add(topic("web", 2))
        assert [await broker.send("web", b"a%d" % at, at) for at in (0, 1)] == [OK, OK]
        harness.disk.refuse(errno.ENOSPC, "sync", under=A)  # delayed allocation: the disk is full only now
        assert await broker.send("web", b"lost", 0) is STORAGE
        harness.disk.stop_refusing()
        assert broker.offline() == {"web-0"}
        assert [await broker.send("web", b"b", at) for at in (0, 1)] == [STORAGE, OK]
        with pytest.raises(StorageError):
            broker.read("web", 0)
        assert len(broker.read("web", 1)) == 2
        assert not broker.all_lost.is_set()
    assert not harness.disk.exists(A / ".kafka_cleanshutdown")
    assert harness.disk.exists(B / ".kafka_cleanshutdown")
    harness.power_cut()
    async with harness.running() as broker:
        assert broker.offline() == set()
        assert await broker.send("web", b"c", 0) is OK
    await harness.assert_all_acked_is_there()


async def test_the_partitions_of_a_directory_that_cannot_be_opened_are_not_recreated() -> None:
    harness = ReplicaHarness()
    async with harness.running() as broker:
        broker.add(topic("web", 2))
        for at in (0, 1):
            assert await broker.send("web", b"kept", at) is OK
    harness.disk.refuse(errno.EIO, "open", "create", under=B)
    async with harness.running(missing="/b is missing") as broker:
        harness.disk.stop_refusing()
        assert broker.offline() == {"web-1"}
        assert await broker.send("web", b"x", 1) is STORAGE
        assert await broker.send("web", b"x", 0) is OK
        assert broker.directories.offline.keys() == {B}
        broker.add(topic("new", 2))  # what is new may be made
        assert {broker.where("new", at) for at in (0, 1)} == {A}
        assert await broker.send("new", b"y", 1) is OK
        assert not harness.disk.exists(A / "web-1")
    await harness.assert_all_acked_is_there()


async def test_the_topic_that_was_deleted_while_its_directory_was_away_does_not_come_back() -> None:
    harness = ReplicaHarness()
    async with harness.running() as broker:
        broker.add(topic("web", 2))
        assert await broker.send("web", b"old", 1) is OK
    harness.disk.refuse(errno.EIO, "open", "create", under=B)
    async with harness.running(missing="/b is missing") as broker:
        harness.disk.stop_refusing()
        broker.follow({})
        broker.add(topic("web", 2, number=70))
        assert await broker.send("web", b"young", 1) is OK
        harness.acked = {TopicPartition("web", 1): {0: b"young"}}
    async with harness.running() as broker:
        assert [value for _, value in broker.read("web", 1)] == [b"young"]
        assert broker.where("web", 1) == A
    await harness.assert_all_acked_is_there()


async def test_when_the_last_directory_fails_the_broker_hears_of_it() -> None:
    harness = ReplicaHarness()
    async with harness.running() as broker:
        broker.add(topic("web", 2))
        for at, path in ((0, A), (1, B)):
            harness.disk.refuse(errno.EIO, "sync", under=path)
            assert await broker.send("web", b"x", at) is STORAGE
            await broker.until(lambda at=at: f"web-{at}" in broker.offline())  # type: ignore[misc]
            assert broker.all_lost.is_set() == (path == B)


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


async def test_a_log_that_no_directory_takes_goes_to_the_next_one_and_to_none_while_all_refuse() -> None:
    harness = ReplicaHarness()
    async with harness.running() as broker:
        harness.disk.refuse(errno.ENOSPC, "mkdir", under=A)
        broker.add(topic("web", 1))
        assert broker.where("web") == B
        harness.disk.refuse(errno.ENOSPC, "mkdir")
        broker.add(topic("new", 1))
        assert broker.offline() == {"new-0"}
        assert await broker.send("new", b"x") is STORAGE
        assert await broker.send("web", b"x") is OK
        assert not broker.directories.offline, "a full disk is no reason to give up a directory"
        harness.disk.stop_refusing()
        await broker.until(lambda: not broker.offline())
        assert await broker.send("new", b"x") is OK
        assert broker.availability == [("new-0", False), ("new-0", True)]
    await harness.assert_all_acked_is_there()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE])
async def test_a_topic_whose_deletion_the_disk_refuses_is_gone_and_its_files_go_later(error: int) -> None:
    harness = ReplicaHarness(A)
    async with harness.running() as broker:
        broker.add(topic("web", 1))
        assert await broker.send("web", b"old") is OK
        harness.disk.refuse(error, "rename")
        broker.follow({})
        assert await broker.send("web", b"x") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not broker.directories.offline
        broker.add(topic("web", 1, number=NUMBERS["web"] + 1))  # of the same name: must wait for the old one to go
        assert broker.offline() == {"web-0"}
        harness.disk.stop_refusing()
        await broker.until(lambda: not broker.offline())
        assert await broker.send("web", b"young") is OK
        assert [value for _, value in broker.read("web")] == [b"young"]
        harness.acked = {TopicPartition("web", 0): {0: b"young"}}
    await harness.assert_all_acked_is_there()


async def test_a_deletion_that_the_disk_refuses_is_done_as_soon_as_it_can_be() -> None:
    harness = ReplicaHarness(A)
    async with harness.running() as broker:
        broker.add(topic("web", 1))
        harness.disk.refuse(errno.ENOSPC, "rename")
        broker.follow({})
        assert harness.disk.exists(A / "web-0")
        harness.disk.stop_refusing()
        await broker.until(lambda: not harness.disk.exists(A / "web-0"))


async def test_the_logs_of_a_topic_that_a_snapshot_lacks_are_kept_until_its_deletion_is_noted() -> None:
    harness = ReplicaHarness(A)
    async with harness.running() as broker:
        web = topic("web", 1)
        broker.add(web)
        assert await broker.send("web", b"x") is OK
        broker.follow({}, noted=False)
        with pytest.raises(UnknownTopicOrPartition):
            broker.read("web")
        assert harness.disk.exists(A / "web-0")
        broker.add(web)  # the snapshot was of another moment
        assert [value for _, value in broker.read("web")] == [b"x"]
        broker.follow({}, noted=False)
        broker.note_deleted(web.topic_id)
        assert not harness.disk.exists(A / "web-0")
        harness.acked.clear()


async def test_a_topic_that_came_back_is_served_though_its_deletion_is_noted_later() -> None:
    harness = ReplicaHarness(A)
    async with harness.running() as broker:
        old, new = topic("web", 1), topic("web", 1, number=5)
        broker.add(old)
        assert await broker.send("web", b"old") is OK
        harness.acked.clear()
        broker.follow({}, noted=False)
        broker.add(new)
        assert await broker.send("web", b"new") is OK
        broker.note_deleted(old.topic_id)
        assert [value for _, value in broker.read("web")] == [b"new"]


async def test_a_directory_that_vanishes_acknowledges_nothing_more() -> None:
    harness = ReplicaHarness()
    async with harness.running() as broker:
        broker.add(topic("web", 2))
        assert await broker.send("web", b"x", 0) is OK
        harness.disk.remove_tree(PurePosixPath("/a"))
        assert await broker.send("web", b"x", 0) is STORAGE
        assert await broker.send("web", b"x", 1) is OK
        assert broker.offline() == {"web-0"}


async def test_a_read_that_fails_costs_the_directory_and_one_without_a_handle_only_itself() -> None:
    harness = ReplicaHarness()
    async with harness.running() as broker:
        broker.add(topic("web", 2))
        for number in range(30):
            assert await broker.send("web", b"%d" % number, number % 2) is OK
        for log in (broker.replicas.partition(TopicPartition("web", at)).log for at in (0, 1)):
            for segment in log.segments:
                segment.close_if_idle()
                assert segment.close_if_idle()
        harness.disk.refuse(errno.EMFILE, "open")
        with pytest.raises(StorageError):
            broker.read("web", 0)
        assert not broker.offline()
        harness.disk.stop_refusing()
        assert len(broker.read("web", 0)) == 15
        harness.disk.refuse(errno.EIO, "read", under=A)
        with pytest.raises(StorageError):
            broker.read("web", 0)
        await broker.until(broker.offline)
        assert broker.offline() == {"web-0"}
        assert len(broker.read("web", 1)) == 15
    await harness.assert_all_acked_is_there()
