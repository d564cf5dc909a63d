"""Tests partitions whose files another program removes, while the broker runs and before it starts."""

from __future__ import annotations

import logging
from pathlib import PurePosixPath

import pytest

from ottla.core.errors import ErrorCode, OffsetOutOfRange, StorageError
from ottla.core.files import read_file
from ottla.core.ids import TopicPartition
from ottla.storage.small_files import RECOVERY_POINTS, parse_offsets
from tests.unit.replication.disks import ReplicaHarness, no_patience, topic

__all__ = ["no_patience"]
DATA = PurePosixPath("/a")
WEB = DATA / "web-0"
OK, STORAGE = ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR


async def two_topics() -> ReplicaHarness:
    """A stopped broker with ten records in each of two topics, and several segments."""
    harness = ReplicaHarness(DATA)
    async with harness.running() as broker:
        broker.add(topic("web", 1))
        broker.add(topic("new", 1))
        for number in range(10):
            assert await broker.send("web", b"%d" % number * 100) is OK
            assert await broker.send("new", b"%d" % number * 100) is OK
    return harness


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_partition_directory_that_is_removed_is_noticed_before_anything_more_is_acknowledged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = await two_topics()
    async with harness.running() as broker:
        assert await broker.send("web", b"before") is OK
        harness.disk.remove_tree(WEB)
        assert await broker.send("web", b"after") is STORAGE
        assert broker.offline() == {"web-0"}
        assert broker.availability == [("web-0", False)]
        assert await broker.send("new", b"after") is OK
        assert not broker.directories.offline
        with pytest.raises(StorageError):
            broker.read("web")
    assert any(str(WEB) in line and "is missing" in line for line in errors(caplog))


@pytest.mark.parametrize("is_moved", [False, True])
async def test_a_partition_directory_that_is_removed_or_moved_is_noticed_without_traffic(is_moved: bool) -> None:
    harness = await two_topics()
    async with harness.running() as broker:
        if is_moved:
            harness.disk.rename(WEB, PurePosixPath("/moved"))
        else:
            harness.disk.remove_tree(WEB)
        (directory,) = broker.directories.opened
        broker.replicas.check_logs(directory, directory.missing_logs())
        assert broker.offline() == {"web-0"}
        assert await broker.send("web", b"after") is STORAGE
        assert await broker.send("new", b"after") is OK


async def test_a_partition_directory_that_is_missing_at_the_start_is_never_created_empty(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = await two_topics()
    away = PurePosixPath("/away")
    harness.disk.rename(WEB, away)
    for stop in (True, False, True):
        async with harness.running(stop=stop) as broker:
            assert broker.offline() == {"web-0"}
            assert await broker.send("web", b"x") is STORAGE
            assert await broker.send("new", b"x") is OK
            assert not harness.disk.exists(WEB)
    assert any("web-0" in line for line in errors(caplog))
    harness.disk.rename(away, WEB)
    await harness.assert_all_acked_is_there()


async def test_a_partition_directory_that_was_removed_while_the_broker_ran_stays_missing_after_a_restart() -> None:
    harness = await two_topics()
    async with harness.running() as broker:
        harness.disk.remove_tree(WEB)
        assert await broker.send("web", b"x") is STORAGE
    async with harness.running() as broker:
        assert broker.offline() == {"web-0"}


async def test_an_empty_directory_in_place_of_the_missing_one_gives_its_records_up_and_reuses_no_offset(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = await two_topics()
    harness.disk.remove_tree(WEB)
    harness.disk.make_directory(WEB)
    harness.acked.pop(TopicPartition("web", 0))
    async with harness.running() as broker:
        assert await broker.send("web", b"next") is OK
        assert broker.read("web") == [(10, b"next")]
    assert any("offsets 0 to 9" in line for line in errors(caplog))


async def test_a_topic_that_is_deleted_and_created_again_has_no_missing_log() -> None:
    harness = await two_topics()
    harness.disk.remove_tree(WEB)
    async with harness.running() as broker:
        broker.follow({"new": broker.view.topics["new"]})
        broker.add(topic("web", 1, number=70))
        harness.acked.pop(TopicPartition("web", 0))
        assert await broker.send("web", b"young") is OK
    await harness.assert_all_acked_is_there()


async def test_a_deleted_topic_leaves_the_checkpoint_files() -> None:
    harness = await two_topics()
    harness.disk.remove_tree(WEB)
    async with harness.running() as broker:
        broker.follow({"new": broker.view.topics["new"]})
    found = parse_offsets(read_file(harness.disk, DATA / RECOVERY_POINTS).decode())
    assert found is not None
    assert list(found) == [TopicPartition("new", 0)]


async def test_a_topic_whose_directory_was_never_made_is_created_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = ReplicaHarness(DATA)
    harness.topics = {"web": topic("web", 1)}
    async with harness.running() as broker:
        assert await broker.send("web", b"x") is OK
    assert any("created empty" in record.getMessage() for record in caplog.records)


FIRST = WEB / "00000000000000000000.log"


async def test_a_first_segment_that_is_removed_while_the_broker_runs_costs_its_own_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = await two_topics()
    async with harness.running() as broker:
        harness.disk.remove(FIRST)
        with pytest.raises(StorageError):
            broker.read("web")
        assert not broker.directories.offline
        assert await broker.send("web", b"x") is OK
        assert await broker.send("new", b"x") is OK
    assert len([line for line in errors(caplog) if str(FIRST) in line]) == 1


async def test_a_first_segment_that_is_open_when_it_is_removed_is_noticed_without_traffic(
    caplog: pytest.LogCaptureFixture,
) -> None:
    harness = await two_topics()
    async with harness.running() as broker:
        assert broker.read("web")[0] == (0, b"0" * 100)
        harness.disk.remove(FIRST)
        (directory,) = broker.directories.opened
        for _ in range(2):
            broker.replicas.check_logs(directory, directory.missing_logs())
        assert len([line for line in errors(caplog) if str(FIRST) in line]) == 1
        with pytest.raises(StorageError):
            broker.read("web")
        assert await broker.send("web", b"x") is OK
        assert not broker.offline()


async def test_an_active_segment_that_is_removed_is_noticed_without_traffic(caplog: pytest.LogCaptureFixture) -> None:
    harness = ReplicaHarness(DATA)
    async with harness.running() as broker:
        broker.add(topic("web", 1))
        broker.add(topic("new", 1))
        assert await broker.send("web", b"x") is OK
        harness.disk.remove(FIRST)
        (directory,) = broker.directories.opened
        broker.replicas.check_logs(directory, directory.missing_logs())
        assert broker.offline() == {"web-0"}
        with pytest.raises(StorageError):
            broker.read("web")
        assert await broker.send("new", b"x") is OK
    assert len([line for line in errors(caplog) if str(FIRST) in line]) == 1


async def test_segments_that_the_broker_removes_itself_are_not_missing(caplog: pytest.LogCaptureFixture) -> None:
    harness = await two_topics()
    async with harness.running(stop=False) as broker:
        (directory,) = broker.directories.opened
        partition = broker.replicas.partition(TopicPartition("web", 0))
        broker.read("web")
        partition.delete_records(8)
        assert directory.run_retention(harness.clock.wall_ms())
        directory.purge_deleted(harness.clock.wall_ms())
        assert not harness.disk.exists(FIRST)
        partition.log.truncate_to(9)
        partition.log.truncate_fully_and_start_at(20)
        assert not directory.missing_logs()
    assert not errors(caplog)


@pytest.mark.parametrize("is_clean", [True, False])
async def test_a_first_segment_that_is_missing_at_the_start_is_reported(
    caplog: pytest.LogCaptureFixture, is_clean: bool
) -> None:
    harness = await two_topics()
    async with harness.running(stop=is_clean):
        """Start."""
    harness.disk.remove(FIRST)
    async with harness.running() as broker:
        partition = broker.replicas.partition(TopicPartition("web", 0))
        with pytest.raises(OffsetOutOfRange):
            partition.read(0, max_bytes=100, committed_only=False, at_least_one=True)
    found = [record for record in caplog.records if str(WEB) in record.getMessage()]
    assert found
    assert any(record.levelno == logging.ERROR for record in found)
