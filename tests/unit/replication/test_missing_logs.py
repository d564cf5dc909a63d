"""Tests partitions whose files another program removes, while the broker runs and before it starts."""

from __future__ import annotations

import logging
from pathlib import PurePosixPath

import pytest

from ottla.core.errors import ErrorCode, OffsetOutOfRange, StorageError
from ottla.core.files import read_file
from ottla.core.ids import TopicPartition
from ottla.storage.checkpoint_files import RECOVERY_POINTS, parse_offsets
from tests.unit.replication.disks import Scene, World, no_patience, topic

__all__ = ["no_patience"]
DATA = PurePosixPath("/a")
WEB = DATA / "web-0"
OK, STORAGE = ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR


def two_topics() -> World:
    """A stopped broker with ten records in each of two topics, and several segments."""
    world = World(DATA)

    async def fill(scene: Scene) -> None:
        scene.add(topic("web", 1))
        scene.add(topic("new", 1))
        for number in range(10):
            assert await scene.send("web", b"%d" % number * 100) is OK
            assert await scene.send("new", b"%d" % number * 100) is OK

    world.live(fill)
    return world


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_partition_directory_that_is_removed_is_noticed_before_anything_more_is_acknowledged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = two_topics()

    async def scenario(scene: Scene) -> None:
        assert await scene.send("web", b"before") is OK
        world.disk.remove_tree(WEB)
        assert await scene.send("web", b"after") is STORAGE
        assert scene.offline() == {"web-0"}
        assert scene.availability == [("web-0", False)]
        assert await scene.send("new", b"after") is OK
        assert not scene.directories.offline
        with pytest.raises(StorageError):
            scene.read("web")

    world.live(scenario)
    assert any(str(WEB) in line and "is missing" in line for line in errors(caplog))


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_partition_directory_that_is_removed_or_moved_is_noticed_without_traffic(is_moved: bool) -> None:
    world = two_topics()

    async def scenario(scene: Scene) -> None:
        if is_moved:
            world.disk.rename(WEB, PurePosixPath("/moved"))
        else:
            world.disk.remove_tree(WEB)
        (directory,) = scene.directories.opened
        scene.replicas.check_logs(directory, directory.missing_logs())
        assert scene.offline() == {"web-0"}
        assert await scene.send("web", b"after") is STORAGE
        assert await scene.send("new", b"after") is OK

    world.live(scenario)


def test_a_partition_directory_that_is_missing_at_the_start_is_never_created_empty(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = two_topics()
    away = PurePosixPath("/away")
    world.disk.rename(WEB, away)

    async def without(scene: Scene) -> None:
        assert scene.offline() == {"web-0"}
        assert await scene.send("web", b"x") is STORAGE
        assert await scene.send("new", b"x") is OK
        assert not world.disk.exists(WEB)

    world.live(without)
    world.live(without, stop=False)
    world.live(without)
    assert any("web-0" in line for line in errors(caplog))
    world.disk.rename(away, WEB)
    world.assert_all_acked_is_there()


def test_a_partition_directory_that_was_removed_while_the_broker_ran_stays_missing_after_a_restart() -> None:
    world = two_topics()

    async def remove(scene: Scene) -> None:
        world.disk.remove_tree(WEB)
        assert await scene.send("web", b"x") is STORAGE

    async def again(scene: Scene) -> None:
        assert scene.offline() == {"web-0"}

    world.live(remove)
    world.live(again)


def test_an_empty_directory_in_place_of_the_missing_one_gives_its_records_up_and_reuses_no_offset(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = two_topics()
    world.disk.remove_tree(WEB)
    world.disk.make_directory(WEB)
    world.acked.pop(TopicPartition("web", 0))

    async def scenario(scene: Scene) -> None:
        assert await scene.send("web", b"next") is OK
        assert scene.read("web") == [(10, b"next")]

    world.live(scenario)
    assert any("offsets 0 to 9" in line for line in errors(caplog))


def test_a_topic_that_is_deleted_and_created_again_has_no_missing_log() -> None:
    world = two_topics()
    world.disk.remove_tree(WEB)

    async def scenario(scene: Scene) -> None:
        scene.follow({"new": scene.view.topics["new"]})
        scene.add(topic("web", 1, number=70))
        world.acked.pop(TopicPartition("web", 0))
        assert await scene.send("web", b"young") is OK

    world.live(scenario)
    world.assert_all_acked_is_there()


def test_a_deleted_topic_leaves_the_checkpoint_files() -> None:
    world = two_topics()
    world.disk.remove_tree(WEB)

    async def scenario(scene: Scene) -> None:
        scene.follow({"new": scene.view.topics["new"]})

    world.live(scenario)
    found = parse_offsets(read_file(world.disk, DATA / RECOVERY_POINTS).decode())
    assert found is not None
    assert list(found) == [TopicPartition("new", 0)]


def test_a_topic_whose_directory_was_never_made_is_created_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    world = World(DATA)
    world.topics = {"web": topic("web", 1)}

    async def scenario(scene: Scene) -> None:
        assert await scene.send("web", b"x") is OK

    world.live(scenario)
    assert any("created empty" in record.getMessage() for record in caplog.records)


FIRST = WEB / "00000000000000000000.log"


def test_a_first_segment_that_is_removed_while_the_broker_runs_costs_its_own_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = two_topics()

    async def scenario(scene: Scene) -> None:
        world.disk.remove(FIRST)
        with pytest.raises(StorageError):
            scene.read("web")
        assert not scene.directories.offline
        assert await scene.send("web", b"x") is OK
        assert await scene.send("new", b"x") is OK

    world.live(scenario)
    assert len([line for line in errors(caplog) if str(FIRST) in line]) == 1


def test_a_first_segment_that_is_open_when_it_is_removed_is_noticed_without_traffic(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = two_topics()

    async def scenario(scene: Scene) -> None:
        assert scene.read("web")[0] == (0, b"0" * 100)
        world.disk.remove(FIRST)
        (directory,) = scene.directories.opened
        for _ in range(2):
            scene.replicas.check_logs(directory, directory.missing_logs())
        assert len([line for line in errors(caplog) if str(FIRST) in line]) == 1
        with pytest.raises(StorageError):
            scene.read("web")
        assert await scene.send("web", b"x") is OK
        assert not scene.offline()

    world.live(scenario)


def test_an_active_segment_that_is_removed_is_noticed_without_traffic(caplog: pytest.LogCaptureFixture) -> None:
    world = World(DATA)

    async def scenario(scene: Scene) -> None:
        scene.add(topic("web", 1))
        scene.add(topic("new", 1))
        assert await scene.send("web", b"x") is OK
        world.disk.remove(FIRST)
        (directory,) = scene.directories.opened
        scene.replicas.check_logs(directory, directory.missing_logs())
        assert scene.offline() == {"web-0"}
        with pytest.raises(StorageError):
            scene.read("web")
        assert await scene.send("new", b"x") is OK

    world.live(scenario)
    assert len([line for line in errors(caplog) if str(FIRST) in line]) == 1


def test_segments_that_the_broker_removes_itself_are_not_missing(caplog: pytest.LogCaptureFixture) -> None:
    world = two_topics()

    async def scenario(scene: Scene) -> None:
        (directory,) = scene.directories.opened
        partition = scene.replicas.partition(TopicPartition("web", 0))
        scene.read("web")
        partition.delete_records(8)
        assert directory.run_retention(world.clock.wall_ms())
        directory.purge_deleted(world.clock.wall_ms())
        assert not world.disk.exists(FIRST)
        partition.log.truncate_to(9)
        partition.log.truncate_fully_and_start_at(20)
        assert not directory.missing_logs()

    world.live(scenario, stop=False)
    assert not errors(caplog)


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_first_segment_that_is_missing_at_the_start_is_reported(
    caplog: pytest.LogCaptureFixture, is_clean: bool
) -> None:
    world = two_topics()

    async def nothing(scene: Scene) -> None:
        """Start."""

    async def check(scene: Scene) -> None:
        partition = scene.replicas.partition(TopicPartition("web", 0))
        with pytest.raises(OffsetOutOfRange):
            partition.read(0, max_bytes=100, committed_only=False, at_least_one=True)

    world.live(nothing, stop=is_clean)
    world.disk.remove(FIRST)
    world.live(check)
    found = [record for record in caplog.records if str(WEB) in record.getMessage()]
    assert found
    assert any(record.levelno == (logging.ERROR if is_clean else logging.WARNING) for record in found)
