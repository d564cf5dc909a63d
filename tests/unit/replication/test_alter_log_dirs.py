"""Tests moves of replicas between log directories: nothing is lost, whatever happens to the log meanwhile."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.ids import TopicPartition
from ottla.replication import alter_log_dirs
from ottla.replication.config import ReplicationConfig
from ottla.storage.directories import log_directory
from ottla.storage.directories.log_manager import DuplicateLog
from ottla.testing.sim_disk import Survival
from tests.support.storage import everything, values
from tests.unit.replication.disks import SMALL, A, B, Scene, World, no_patience, topic

__all__ = ["no_patience"]
WEB = TopicPartition("web", 0)
C = PurePosixPath("/c")
RECORD_BYTES = 77
HELD = [b"value %02d" % number for number in range(40)]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a small log take many steps."""
    monkeypatch.setattr(alter_log_dirs, "CHUNK_BYTES", 300)
    monkeypatch.setattr(alter_log_dirs, "TURN_BYTES", 600)
    monkeypatch.setattr(alter_log_dirs, "LAST_BYTES", 600)
    monkeypatch.setattr(alter_log_dirs, "FLUSH_BYTES", 1000)
    monkeypatch.setattr(alter_log_dirs, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(alter_log_dirs, "THROTTLE_CHECK_SECONDS", 0.001)


async def fill(scene: Scene) -> None:
    scene.add(topic("web", 1))
    for value in HELD:
        assert await scene.send("web", value) is ErrorCode.NONE


def move(scene: Scene, path: PurePosixPath, tp: TopicPartition = WEB) -> ErrorCode:
    """Begin a move and return the error code of the answer."""
    try:
        scene.replicas.alter_log_dir(tp, str(path))
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


async def until_moved(scene: Scene) -> None:
    await scene.until(lambda: scene.replicas.log_dir_move(WEB) is None)


def futures(scene: Scene) -> list[PurePosixPath]:
    return [PurePosixPath(directory.path) for directory, _ in scene.directories.future_logs()]


def limit(scene: Scene, size_bytes: int) -> None:
    """Copy about so many bytes, and no more: the clock stands still."""
    scene.replicas.context.configure(ReplicationConfig(alter_log_dirs_rate=size_bytes))


def go_on(scene: Scene) -> None:
    scene.replicas.context.configure(ReplicationConfig())


async def begin_move(scene: Scene, records: int) -> None:
    """Copy some of the records to B."""
    limit(scene, records * RECORD_BYTES)
    assert move(scene, B) is ErrorCode.NONE
    under_way = scene.replicas.log_dir_move(WEB)
    assert under_way is not None
    await scene.until(lambda: under_way.future.end_offset >= records)
    assert under_way.future.end_offset < len(HELD)


def test_a_replica_is_moved_while_it_is_written_and_read() -> None:
    world = World()

    async def story(scene: Scene) -> None:
        await fill(scene)
        partition, before = scene.replicas.partition(WEB), scene.where("web")
        assert before == A
        assert move(scene, B) is ErrorCode.NONE
        assert futures(scene) == [B]
        for number in range(20):
            assert await scene.send("web", b"new %d" % number) is ErrorCode.NONE
            assert values(scene.read("web"))[: len(HELD)] == HELD
        await until_moved(scene)
        assert scene.where("web") == B
        assert scene.replicas.partition(WEB) is partition
        assert await scene.send("web", b"last") is ErrorCode.NONE
        assert values(scene.read("web")) == [*HELD, *(b"new %d" % number for number in range(20)), b"last"]
        scene.directory(A).purge_deleted(world.clock.wall_ms())
        assert not [name for name in world.disk.names_in(A) if name.startswith("web")]

    world.live(story)
    world.assert_all_acked_is_there()

    async def again(scene: Scene) -> None:
        assert scene.where("web") == B
        assert move(scene, A) is ErrorCode.NONE
        await until_moved(scene)
        assert scene.where("web") == A

    world.live(again)
    world.assert_all_acked_is_there()


@pytest.mark.parametrize("survival", [Survival.KEPT, Survival.LOST, Survival.TORN])
def test_a_restart_continues_the_move(survival: Survival) -> None:
    world = World()

    async def begin(scene: Scene) -> None:
        await fill(scene)
        await begin_move(scene, 5)

    async def again(scene: Scene) -> None:
        assert scene.where("web") == A
        assert futures(scene) == [B]
        assert await scene.send("web", b"more") is ErrorCode.NONE
        await until_moved(scene)
        assert scene.where("web") == B

    world.live(begin, stop=survival is Survival.KEPT)
    world.power_cut(survival, seed=3)
    world.live(again)
    world.assert_all_acked_is_there()


def test_a_copy_whose_topic_is_not_known_any_more_is_made_again() -> None:
    world = World()

    async def begin(scene: Scene) -> None:
        await fill(scene)
        limit(scene, 1)
        assert move(scene, B) is ErrorCode.NONE

    async def again(scene: Scene) -> None:
        assert futures(scene) == [B]
        await until_moved(scene)
        assert scene.where("web") == B
        assert scene.replicas.partition(WEB).log.topic_id == scene.view.topics["web"].topic_id

    world.live(begin, stop=False)
    (name,) = (name for name in world.disk.names_in(B) if name.endswith("-future"))
    world.disk.open(B / name / "partition.metadata").truncate(0)
    world.live(again)
    world.assert_all_acked_is_there()


def test_what_an_earlier_run_has_copied_is_verified() -> None:
    world = World(config=replace(SMALL, segment_bytes=100_000))

    async def begin(scene: Scene) -> None:
        await fill(scene)
        await begin_move(scene, 20)

    async def again(scene: Scene) -> None:
        await until_moved(scene)
        assert values(scene.read("web")) == HELD

    world.live(begin)
    (name,) = (name for name in world.disk.names_in(B) if name.endswith("-future"))
    world.disk.flip_bit(B / name / "00000000000000000000.log", 700)
    world.live(again)
    world.assert_all_acked_is_there()


def test_a_move_back_is_a_cancellation() -> None:
    world = World(A, B, C)

    async def story(scene: Scene) -> None:
        await fill(scene)
        limit(scene, 1)
        assert move(scene, A) is ErrorCode.NONE
        assert futures(scene) == []
        assert move(scene, B) is ErrorCode.NONE
        assert move(scene, B) is ErrorCode.NONE
        assert futures(scene) == [B]
        assert move(scene, C) is ErrorCode.NONE
        assert futures(scene) == [C]
        assert move(scene, A) is ErrorCode.NONE
        assert futures(scene) == []
        assert scene.replicas.log_dir_move(WEB) is None
        for path in (B, C):
            scene.directory(path).purge_deleted(world.clock.wall_ms())
            assert not [name for name in world.disk.names_in(path) if name.startswith("web")]
        assert move(scene, C) is ErrorCode.NONE
        go_on(scene)
        await until_moved(scene)
        assert scene.where("web") == C

    world.live(story)
    world.assert_all_acked_is_there()


def test_the_errors_are_those_of_kafka() -> None:
    world = World()

    async def story(scene: Scene) -> None:
        await fill(scene)
        assert move(scene, C) is ErrorCode.LOG_DIR_NOT_FOUND
        assert move(scene, B, TopicPartition("web", 5)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert move(scene, B, TopicPartition("a" * 220, 0)) is ErrorCode.INVALID_TOPIC_EXCEPTION
        of_others = topic("new", 1)
        views = tuple(replace(each, replicas=(2,), isr=(2,), leader=2) for each in of_others.partitions)
        scene.add(of_others._replace(partitions=views))
        assert move(scene, B, TopicPartition("new", 0)) is ErrorCode.REPLICA_NOT_AVAILABLE
        scene.add(of_others)  # and now it is here
        assert scene.where("new") == B
        world.disk.refuse(errno.EIO, "sync", under=B)
        assert await scene.send("new", b"x") is ErrorCode.KAFKA_STORAGE_ERROR
        world.disk.relent()
        await scene.until(lambda: "new-0" in scene.offline())
        assert move(scene, B) is ErrorCode.KAFKA_STORAGE_ERROR
        assert move(scene, A, TopicPartition("new", 0)) is ErrorCode.KAFKA_STORAGE_ERROR

    world.live(story)


def test_no_move_begins_while_a_directory_is_offline() -> None:
    world = World(A, B, C)

    async def story(scene: Scene) -> None:
        scene.add(topic("web", 2))
        assert await scene.send("web", b"x", 0) is ErrorCode.NONE
        world.disk.refuse(errno.EIO, "sync", under=B)
        assert await scene.send("web", b"x", 1) is ErrorCode.KAFKA_STORAGE_ERROR
        world.disk.relent()
        assert move(scene, C) is ErrorCode.KAFKA_STORAGE_ERROR
        assert futures(scene) == []

    world.live(story)


def test_a_topic_is_deleted_while_it_moves() -> None:
    world = World()

    async def story(scene: Scene) -> None:
        await fill(scene)
        await begin_move(scene, 5)
        topic_id = scene.view.topics["web"].topic_id
        go_on(scene)
        scene.follow({})
        assert futures(scene) == []
        assert scene.replicas.log_dir_move(WEB) is None
        assert scene.replicas.completed_deletions({topic_id}) == {topic_id}
        await asyncio.sleep(0.01)  # the step that was under way
        for path in (A, B):
            scene.directory(path).purge_deleted(world.clock.wall_ms())
            assert not [name for name in world.disk.names_in(path) if name.startswith("web")]

    world.live(story)


def test_what_is_deleted_meanwhile_is_deleted_in_the_copy() -> None:
    world = World()

    async def story(scene: Scene) -> None:
        await fill(scene)
        partition = scene.replicas.partition(WEB)
        partition.delete_records(3)
        await begin_move(scene, 10)
        partition.delete_records(7)
        go_on(scene)
        await until_moved(scene)
        assert scene.where("web") == B
        assert partition.log.log_start_offset == 7
        assert values(scene.read("web")) == HELD[7:]
        scene.directory(B).run_retention(world.clock.wall_ms())

    world.live(story, stop=False)
    world.power_cut(Survival.LOST)

    async def again(scene: Scene) -> None:
        assert scene.replicas.partition(WEB).log.log_start_offset == 7

    world.live(again)


def test_a_log_whose_records_are_all_deleted_during_the_move() -> None:
    world = World()

    async def story(scene: Scene) -> None:
        await fill(scene)
        partition = scene.replicas.partition(WEB)
        await begin_move(scene, 10)
        partition.delete_records(-1)
        go_on(scene)
        await until_moved(scene)
        log = partition.log
        assert (scene.where("web"), log.log_start_offset, log.end_offset) == (B, len(HELD), len(HELD))
        assert await scene.send("web", b"next") is ErrorCode.NONE
        assert scene.read("web") == [(len(HELD), b"next")]

    world.live(story)


def test_a_truncated_log_truncates_its_copy() -> None:
    world = World()

    async def story(scene: Scene) -> None:
        await fill(scene)
        log = scene.replicas.partition(WEB).log
        await begin_move(scene, 30)
        under_way = scene.replicas.log_dir_move(WEB)
        assert under_way is not None
        log.truncate_to(20)
        log.begin_epoch(5)
        world.acked[WEB] = {offset: value for offset, value in world.acked[WEB].items() if offset < 20}
        assert await scene.send("web", b"of the next leader") is ErrorCode.NONE
        go_on(scene)
        await until_moved(scene)
        assert scene.where("web") == B
        assert values(everything(scene.replicas.partition(WEB).log)) == [*HELD[:20], b"of the next leader"]

    world.live(story)


def test_the_directory_that_is_copied_to_fails() -> None:
    world = World()

    async def story(scene: Scene) -> None:
        await fill(scene)
        await begin_move(scene, 5)
        world.disk.refuse(errno.EIO, "sync", under=B)
        go_on(scene)
        await until_moved(scene)
        world.disk.relent()
        assert scene.where("web") == A
        assert scene.offline() == set()
        assert await scene.send("web", b"more") is ErrorCode.NONE
        assert values(scene.read("web")) == [*HELD, b"more"]

    async def again(scene: Scene) -> None:
        await until_moved(scene)
        assert scene.where("web") == B
        assert values(scene.read("web")) == [*HELD, b"more"]

    world.live(story)
    world.live(again)
    world.assert_all_acked_is_there()


def test_a_failed_sync_of_the_checkpoint_of_a_move_takes_its_directory_offline() -> None:
    world = World()

    async def story(scene: Scene) -> None:
        await fill(scene)
        await begin_move(scene, 20)
        world.disk.refuse(errno.EIO, "sync", under=B / "recovery-point-offset-checkpoint.tmp")
        go_on(scene)
        await until_moved(scene)
        assert scene.where("web") == A
        assert scene.directory(B).health.failure is not None, "the next sync would succeed without the data"
        assert [name for name in world.disk.names_in(B) if name.startswith("ottla-failed-sync")]

    world.live(story, stop=False)
    world.disk.relent()
    world.power_cut(Survival.KEPT)
    world.assert_all_acked_is_there()


def test_the_directory_that_is_copied_from_fails() -> None:
    world = World()

    async def story(scene: Scene) -> None:
        await fill(scene)
        await begin_move(scene, 5)
        world.disk.refuse(errno.EIO, "sync", under=A)
        assert await scene.send("web", b"lost") is ErrorCode.KAFKA_STORAGE_ERROR
        world.disk.relent()
        await scene.until(lambda: "web-0" in scene.offline())
        assert scene.replicas.log_dir_move(WEB) is None

    async def again(scene: Scene) -> None:
        await until_moved(scene)
        assert scene.where("web") == B

    world.live(story)
    world.live(again)
    world.assert_all_acked_is_there()


async def move_with_failure(scene: Scene, nth: int, error: int) -> str:
    """Move a log, with one failed operation; return which one it was, and write before and after."""
    world = scene.world
    scene.add(topic("web", 1))
    for value in HELD[:8]:
        assert await scene.send("web", value) is ErrorCode.NONE
    at = world.disk.changes + nth
    world.disk.fail_at(nth, error)
    move(scene, B)

    def is_over() -> bool:
        under_way = scene.replicas.log_dir_move(WEB)
        return under_way is None or under_way.failures > 0

    await scene.until(is_over)
    for value in HELD[8:12]:
        await scene.send("web", value)
    return world.disk.history[at - 1] if world.disk.changes >= at else ""


def operations_of_a_move() -> list[str]:
    world, done = World(), list[str]()

    async def story(scene: Scene) -> None:
        scene.add(topic("web", 1))
        for value in HELD[:8]:
            assert await scene.send("web", value) is ErrorCode.NONE
        start = len(world.disk.history)
        assert move(scene, B) is ErrorCode.NONE
        await until_moved(scene)
        done.extend(world.disk.history[start:])

    world.live(story)
    return done


OPERATIONS = operations_of_a_move()
REPLACEMENT = next(nth for nth, line in enumerate(OPERATIONS, 1) if line.startswith("rename /a/web-0 "))
FAILING = [*range(1, REPLACEMENT - 8, 6), *range(REPLACEMENT - 8, len(OPERATIONS) + 1)]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("survival", [Survival.KEPT, Survival.LOST])
def test_an_error_of_any_operation_of_a_move_loses_nothing(error: int, survival: Survival) -> None:
    for nth in FAILING:
        world, failed = World(), ""

        async def story(scene: Scene, nth: int = nth) -> None:
            nonlocal failed
            failed = await move_with_failure(scene, nth, error)

        world.live(story, stop=False)
        assert failed
        world.power_cut(survival, seed=nth)
        world.assert_all_acked_is_there()
        assert len(world.acked[WEB]) >= 8


def fail_between_the_renames() -> World:
    """Let the other directory fail when the copy has its name and the log has lost it."""
    for nth in range(REPLACEMENT, REPLACEMENT + 20):
        world, failed = World(), ""

        async def story(scene: Scene, nth: int = nth) -> None:
            nonlocal failed
            failed = await move_with_failure(scene, nth, errno.EIO)
            if failed == "sync directory /b":
                await scene.until(lambda: scene.offline() == {"web-0"})
                assert await scene.send("web", b"no more") is ErrorCode.KAFKA_STORAGE_ERROR
                assert len(scene.world.acked[WEB]) == 8

        world.live(story, stop=False)
        if failed == "sync directory /b":
            world.power_cut(Survival.KEPT)
            return world
    raise AssertionError("the directory is not synced after the rename")


def test_a_log_whose_copy_was_lost_with_its_disk_is_kept_and_not_created_again() -> None:
    world = fail_between_the_renames()
    world.disk.remove_tree(B)

    async def without(scene: Scene) -> None:
        assert scene.offline() == {"web-0"}
        scene.replicas.handle_strays()

    for _ in range(2):
        world.live(without)
    (name,) = (name for name in world.disk.names_in(A) if name.endswith("-replaced"))
    world.disk.rename(A / name, A / "web-0")  # as the error message says
    world.assert_all_acked_is_there()


@pytest.mark.parametrize("has_name", [False, True])
def test_a_log_that_was_created_again_meanwhile_counts(*, has_name: bool) -> None:
    """Other brokers have the records, and the directory with the copy is back after it was missing for a while."""
    world = fail_between_the_renames()
    if not has_name:
        (replaced,) = (name for name in world.disk.names_in(A) if name.endswith("-replaced"))
        world.disk.rename(B / "web-0", B / replaced.replace("-replaced", "-future"))
    one = topic("web", 1)
    views = tuple(replace(each, replicas=(1, 2), isr=(1, 2), leader=2) for each in one.partitions)
    world.topics = {"web": one._replace(partitions=views)}
    world.paths = (A,)

    async def alone(scene: Scene) -> None:
        assert scene.offline() == set()
        assert scene.replicas.partition(WEB).log.end_offset == 0
        scene.replicas.handle_strays()

    async def both(scene: Scene) -> None:
        assert scene.where("web") == A
        assert scene.replicas.partition(WEB).log.end_offset == 0
        assert futures(scene) == []

    world.live(alone)
    world.paths = (A, B)
    if has_name:
        with pytest.raises(DuplicateLog):  # it may have been written after the replacement: it is unknown which counts
            world.live(both)
    else:
        world.live(both)


def test_a_cancellation_that_the_disk_refused_is_done_by_the_next_request() -> None:
    world = World()

    async def story(scene: Scene) -> None:
        await fill(scene)
        await begin_move(scene, 5)
        world.disk.refuse(errno.ENOSPC, "rename", under=B)
        assert move(scene, A) is ErrorCode.KAFKA_STORAGE_ERROR
        assert move(scene, A) is ErrorCode.KAFKA_STORAGE_ERROR
        world.disk.relent()
        assert futures(scene) == [B]
        assert move(scene, A) is ErrorCode.NONE
        assert futures(scene) == []

    world.live(story)


def test_a_move_that_was_not_cancelled_goes_on_where_it_is_asked_for_again() -> None:
    world = World()

    async def story(scene: Scene) -> None:
        await fill(scene)
        await begin_move(scene, 5)
        world.disk.refuse(errno.ENOSPC, "rename", under=B)
        assert move(scene, A) is ErrorCode.KAFKA_STORAGE_ERROR
        world.disk.relent()
        go_on(scene)
        assert move(scene, B) is ErrorCode.NONE
        await until_moved(scene)
        assert scene.where("web") == B

    world.live(story)
    world.assert_all_acked_is_there()


def test_a_full_disk_delays_the_move() -> None:
    world = World()

    async def story(scene: Scene) -> None:
        await fill(scene)
        await begin_move(scene, 5)
        world.disk.refuse(errno.ENOSPC, "write", "create", under=B)
        go_on(scene)
        under_way = scene.replicas.log_dir_move(WEB)
        assert under_way is not None
        await scene.until(lambda: under_way.failures)
        assert await scene.send("web", b"more") is ErrorCode.NONE
        world.disk.relent()
        world.clock.now_ms += 100_000
        await until_moved(scene)
        assert scene.where("web") == B

    world.live(story)
    world.assert_all_acked_is_there()


def test_a_flush_of_the_old_log_does_not_count_for_the_new_one() -> None:
    """An fsync in the old directory fails after the replacement: the partition is in another directory."""
    world = World()

    async def story(scene: Scene) -> None:
        await fill(scene)
        partition = scene.replicas.partition(WEB)
        assert move(scene, B) is ErrorCode.NONE
        sends = [asyncio.ensure_future(scene.send("web", b"more %d" % number)) for number in range(30)]
        await until_moved(scene)
        assert set(await asyncio.gather(*sends)) == {ErrorCode.NONE}
        assert partition.log.health is scene.directory(B).health
        assert partition.log.flushed_offset == partition.log.end_offset == partition.high_watermark

    world.live(story)
    world.assert_all_acked_is_there()


def test_names_of_a_move_are_not_partitions() -> None:
    name = f"web-0.{'0' * 32}"
    for suffix in ("-future", "-replaced"):
        assert log_directory.parse_partition_directory(name + suffix) == WEB
