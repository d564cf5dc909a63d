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
from ottla.storage.directories.log_manager import DuplicateLog
from ottla.storage.directory_names import parse_partition_directory
from ottla.testing.sim_disk import Survival
from tests.support.storage import everything, values
from tests.unit.replication.disks import SMALL, A, B, BrokerReplicas, ReplicaHarness, no_patience, topic

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


async def fill(broker: BrokerReplicas) -> None:
    broker.add(topic("web", 1))
    for value in HELD:
        assert await broker.send("web", value) is ErrorCode.NONE


def move(broker: BrokerReplicas, path: PurePosixPath, tp: TopicPartition = WEB) -> ErrorCode:
    """Begin a move and return the error code of the answer."""
    try:
        broker.replicas.alter_log_dir(tp, str(path))
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


async def until_moved(broker: BrokerReplicas) -> None:
    await broker.until(lambda: broker.replicas.log_dir_move(WEB) is None)


def futures(broker: BrokerReplicas) -> list[PurePosixPath]:
    return [PurePosixPath(directory.path) for directory, _ in broker.directories.future_logs()]


def limit(broker: BrokerReplicas, size_bytes: int) -> None:
    """Copy about so many bytes, and no more: the clock stands still."""
    broker.replicas.context.configure(ReplicationConfig(alter_log_dirs_rate=size_bytes))


def go_on(broker: BrokerReplicas) -> None:
    broker.replicas.context.configure(ReplicationConfig())


async def begin_move(broker: BrokerReplicas, records: int) -> None:
    """Copy some of the records to B."""
    limit(broker, records * RECORD_BYTES)
    assert move(broker, B) is ErrorCode.NONE
    under_way = broker.replicas.log_dir_move(WEB)
    assert under_way is not None
    await broker.until(lambda: under_way.future.end_offset >= records)
    assert under_way.future.end_offset < len(HELD)


async def test_a_replica_is_moved_while_it_is_written_and_read() -> None:
    harness = ReplicaHarness()
    async with harness.running() as broker:
        await fill(broker)
        partition, before = broker.replicas.partition(WEB), broker.where("web")
        assert before == A
        assert move(broker, B) is ErrorCode.NONE
        assert futures(broker) == [B]
        for number in range(20):
            assert await broker.send("web", b"new %d" % number) is ErrorCode.NONE
            assert values(broker.read("web"))[: len(HELD)] == HELD
        await until_moved(broker)
        assert broker.where("web") == B
        assert broker.replicas.partition(WEB) is partition
        assert await broker.send("web", b"last") is ErrorCode.NONE
        assert values(broker.read("web")) == [*HELD, *(b"new %d" % number for number in range(20)), b"last"]
        broker.directory(A).purge_deleted(harness.clock.wall_ms())
        assert not [name for name in harness.disk.names_in(A) if name.startswith("web")]
    await harness.assert_all_acked_is_there()
    async with harness.running() as broker:
        assert broker.where("web") == B
        assert move(broker, A) is ErrorCode.NONE
        await until_moved(broker)
        assert broker.where("web") == A
    await harness.assert_all_acked_is_there()


@pytest.mark.parametrize("survival", [Survival.KEPT, Survival.LOST, Survival.TORN])
async def test_a_restart_continues_the_move(survival: Survival) -> None:
    harness = ReplicaHarness()
    async with harness.running(stop=survival is Survival.KEPT) as broker:
        await fill(broker)
        await begin_move(broker, 5)
    harness.power_cut(survival, seed=3)
    async with harness.running() as broker:
        assert broker.where("web") == A
        assert futures(broker) == [B]
        assert await broker.send("web", b"more") is ErrorCode.NONE
        await until_moved(broker)
        assert broker.where("web") == B
    await harness.assert_all_acked_is_there()


async def test_a_copy_whose_topic_is_not_known_any_more_is_made_again() -> None:
    harness = ReplicaHarness()
    async with harness.running(stop=False) as broker:
        await fill(broker)
        limit(broker, 1)
        assert move(broker, B) is ErrorCode.NONE
    (name,) = (name for name in harness.disk.names_in(B) if name.endswith("-future"))
    harness.disk.open(B / name / "partition.metadata").truncate(0)
    async with harness.running() as broker:
        assert futures(broker) == [B]
        await until_moved(broker)
        assert broker.where("web") == B
        assert broker.replicas.partition(WEB).log.topic_id == broker.view.topics["web"].topic_id
    await harness.assert_all_acked_is_there()


async def test_the_copy_of_an_earlier_run_is_verified() -> None:
    harness = ReplicaHarness(config=replace(SMALL, segment_bytes=100_000))
    async with harness.running() as broker:
        await fill(broker)
        await begin_move(broker, 20)
    (name,) = (name for name in harness.disk.names_in(B) if name.endswith("-future"))
    harness.disk.flip_bit(B / name / "00000000000000000000.log", 700)
    async with harness.running() as broker:
        await until_moved(broker)
        assert values(broker.read("web")) == HELD
    await harness.assert_all_acked_is_there()


async def test_a_move_back_is_a_cancellation() -> None:
    harness = ReplicaHarness(A, B, C)
    async with harness.running() as broker:
        await fill(broker)
        limit(broker, 1)
        assert move(broker, A) is ErrorCode.NONE
        assert futures(broker) == []
        assert move(broker, B) is ErrorCode.NONE
        assert move(broker, B) is ErrorCode.NONE
        assert futures(broker) == [B]
        assert move(broker, C) is ErrorCode.NONE
        assert futures(broker) == [C]
        assert move(broker, A) is ErrorCode.NONE
        assert futures(broker) == []
        assert broker.replicas.log_dir_move(WEB) is None
        for path in (B, C):
            broker.directory(path).purge_deleted(harness.clock.wall_ms())
            assert not [name for name in harness.disk.names_in(path) if name.startswith("web")]
        assert move(broker, C) is ErrorCode.NONE
        go_on(broker)
        await until_moved(broker)
        assert broker.where("web") == C
    await harness.assert_all_acked_is_there()


async def test_the_errors_are_those_of_kafka() -> None:
    harness = ReplicaHarness()
    async with harness.running() as broker:
        await fill(broker)
        assert move(broker, C) is ErrorCode.LOG_DIR_NOT_FOUND
        assert move(broker, B, TopicPartition("web", 5)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert move(broker, B, TopicPartition("a" * 220, 0)) is ErrorCode.INVALID_TOPIC_EXCEPTION
        of_others = topic("new", 1)
        views = tuple(replace(each, replicas=(2,), isr=(2,), leader=2) for each in of_others.partitions)
        broker.add(of_others._replace(partitions=views))
        assert move(broker, B, TopicPartition("new", 0)) is ErrorCode.REPLICA_NOT_AVAILABLE
        broker.add(of_others)  # and now it is here
        assert broker.where("new") == B
        harness.disk.refuse(errno.EIO, "sync", under=B)
        assert await broker.send("new", b"x") is ErrorCode.KAFKA_STORAGE_ERROR
        harness.disk.stop_refusing()
        await broker.until(lambda: "new-0" in broker.offline())
        assert move(broker, B) is ErrorCode.KAFKA_STORAGE_ERROR
        assert move(broker, A, TopicPartition("new", 0)) is ErrorCode.KAFKA_STORAGE_ERROR


async def test_no_move_begins_while_a_directory_is_offline() -> None:
    harness = ReplicaHarness(A, B, C)
    async with harness.running() as broker:
        broker.add(topic("web", 2))
        assert await broker.send("web", b"x", 0) is ErrorCode.NONE
        harness.disk.refuse(errno.EIO, "sync", under=B)
        assert await broker.send("web", b"x", 1) is ErrorCode.KAFKA_STORAGE_ERROR
        harness.disk.stop_refusing()
        assert move(broker, C) is ErrorCode.KAFKA_STORAGE_ERROR
        assert futures(broker) == []


async def test_a_topic_is_deleted_while_it_moves() -> None:
    harness = ReplicaHarness()
    async with harness.running() as broker:
        await fill(broker)
        await begin_move(broker, 5)
        topic_id = broker.view.topics["web"].topic_id
        go_on(broker)
        broker.follow({})
        assert futures(broker) == []
        assert broker.replicas.log_dir_move(WEB) is None
        assert broker.replicas.completed_deletions({topic_id}) == {topic_id}
        copying = [task for task in asyncio.all_tasks() if task.get_name() == f"alter log dirs {B}"]
        assert copying
        await asyncio.gather(*copying)  # the step that was under way
        for path in (A, B):
            broker.directory(path).purge_deleted(harness.clock.wall_ms())
            assert not [name for name in harness.disk.names_in(path) if name.startswith("web")]


async def test_records_deleted_meanwhile_are_deleted_in_the_copy() -> None:
    harness = ReplicaHarness()
    async with harness.running(stop=False) as broker:
        await fill(broker)
        partition = broker.replicas.partition(WEB)
        partition.delete_records(3)
        await begin_move(broker, 10)
        partition.delete_records(7)
        go_on(broker)
        await until_moved(broker)
        assert broker.where("web") == B
        assert partition.log.log_start_offset == 7
        assert values(broker.read("web")) == HELD[7:]
        broker.directory(B).run_retention(harness.clock.wall_ms())
    harness.power_cut(Survival.LOST)
    async with harness.running() as broker:
        assert broker.replicas.partition(WEB).log.log_start_offset == 7


async def test_a_log_whose_records_are_all_deleted_during_the_move() -> None:
    harness = ReplicaHarness()
    async with harness.running() as broker:
        await fill(broker)
        partition = broker.replicas.partition(WEB)
        await begin_move(broker, 10)
        partition.delete_records(-1)
        go_on(broker)
        await until_moved(broker)
        log = partition.log
        assert (broker.where("web"), log.log_start_offset, log.end_offset) == (B, len(HELD), len(HELD))
        assert await broker.send("web", b"next") is ErrorCode.NONE
        assert broker.read("web") == [(len(HELD), b"next")]


async def test_a_truncated_log_truncates_its_copy() -> None:
    harness = ReplicaHarness()
    async with harness.running() as broker:
        await fill(broker)
        log = broker.replicas.partition(WEB).log
        await begin_move(broker, 30)
        under_way = broker.replicas.log_dir_move(WEB)
        assert under_way is not None
        log.truncate_to(20)
        log.begin_epoch(5)
        harness.acked[WEB] = {offset: value for offset, value in harness.acked[WEB].items() if offset < 20}
        assert await broker.send("web", b"of the next leader") is ErrorCode.NONE
        go_on(broker)
        await until_moved(broker)
        assert broker.where("web") == B
        assert values(everything(broker.replicas.partition(WEB).log)) == [*HELD[:20], b"of the next leader"]


async def test_the_directory_that_is_copied_to_fails() -> None:
    harness = ReplicaHarness()
    async with harness.running() as broker:
        await fill(broker)
        await begin_move(broker, 5)
        harness.disk.refuse(errno.EIO, "sync", under=B)
        go_on(broker)
        await until_moved(broker)
        harness.disk.stop_refusing()
        assert broker.where("web") == A
        assert broker.offline() == set()
        assert await broker.send("web", b"more") is ErrorCode.NONE
        assert values(broker.read("web")) == [*HELD, b"more"]
    async with harness.running() as broker:
        await until_moved(broker)
        assert broker.where("web") == B
        assert values(broker.read("web")) == [*HELD, b"more"]
    await harness.assert_all_acked_is_there()


async def test_a_failed_sync_of_the_checkpoint_of_a_move_takes_its_directory_offline() -> None:
    harness = ReplicaHarness()
    async with harness.running(stop=False) as broker:
        await fill(broker)
        await begin_move(broker, 20)
        harness.disk.refuse(errno.EIO, "sync", under=B / "recovery-point-offset-checkpoint.tmp")
        go_on(broker)
        await until_moved(broker)
        assert broker.where("web") == A
        assert broker.directory(B).health.failure is not None, "the next sync would succeed without the data"
        assert [name for name in harness.disk.names_in(B) if name.startswith("ottla-failed-sync")]
    harness.disk.stop_refusing()
    harness.power_cut(Survival.KEPT)
    await harness.assert_all_acked_is_there()


async def test_the_directory_that_is_copied_from_fails() -> None:
    harness = ReplicaHarness()
    async with harness.running() as broker:
        await fill(broker)
        await begin_move(broker, 5)
        harness.disk.refuse(errno.EIO, "sync", under=A)
        assert await broker.send("web", b"lost") is ErrorCode.KAFKA_STORAGE_ERROR
        harness.disk.stop_refusing()
        await broker.until(lambda: "web-0" in broker.offline())
        assert broker.replicas.log_dir_move(WEB) is None
    async with harness.running() as broker:
        await until_moved(broker)
        assert broker.where("web") == B
    await harness.assert_all_acked_is_there()


async def move_with_failure(broker: BrokerReplicas, nth: int, error: int) -> str:
    """Move a log, with one failed operation; return which one it was, and write before and after."""
    harness = broker.harness
    broker.add(topic("web", 1))
    for value in HELD[:8]:
        assert await broker.send("web", value) is ErrorCode.NONE
    at = harness.disk.changes + nth
    harness.disk.fail_at(nth, error)
    move(broker, B)

    def is_over() -> bool:
        under_way = broker.replicas.log_dir_move(WEB)
        return under_way is None or under_way.failures > 0

    await broker.until(is_over)
    for value in HELD[8:12]:
        await broker.send("web", value)
    return harness.disk.history[at - 1] if harness.disk.changes >= at else ""


def operations_of_a_move() -> list[str]:
    harness, done = ReplicaHarness(), list[str]()

    async def run() -> None:
        async with harness.running() as broker:
            broker.add(topic("web", 1))
            for value in HELD[:8]:
                assert await broker.send("web", value) is ErrorCode.NONE
            start = len(harness.disk.history)
            assert move(broker, B) is ErrorCode.NONE
            await until_moved(broker)
            done.extend(harness.disk.history[start:])

    asyncio.run(run())
    return done


OPERATIONS = operations_of_a_move()
REPLACEMENT = next(nth for nth, line in enumerate(OPERATIONS, 1) if line.startswith("rename /a/web-0 "))
FAILING = [*range(1, REPLACEMENT - 8, 6), *range(REPLACEMENT - 8, len(OPERATIONS) + 1)]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("survival", [Survival.KEPT, Survival.LOST])
async def test_an_error_of_any_operation_of_a_move_loses_nothing(error: int, survival: Survival) -> None:
    for nth in FAILING:
        harness = ReplicaHarness()
        async with harness.running(stop=False) as broker:
            assert await move_with_failure(broker, nth, error)
        harness.power_cut(survival, seed=nth)
        await harness.assert_all_acked_is_there()
        assert len(harness.acked[WEB]) >= 8


async def fail_between_the_renames() -> ReplicaHarness:
    """Let the other directory fail when the copy has its name and the log has lost it."""
    for nth in range(REPLACEMENT, REPLACEMENT + 20):
        harness = ReplicaHarness()
        async with harness.running(stop=False) as broker:
            failed = await move_with_failure(broker, nth, errno.EIO)
            if failed == "sync directory /b":
                await broker.until(lambda broker=broker: broker.offline() == {"web-0"})  # type: ignore[misc]
                assert await broker.send("web", b"no more") is ErrorCode.KAFKA_STORAGE_ERROR
                assert len(broker.harness.acked[WEB]) == 8
        if failed == "sync directory /b":
            harness.power_cut(Survival.KEPT)
            return harness
    raise AssertionError("the directory is not synced after the rename")


async def test_a_log_whose_copy_was_lost_with_its_disk_is_kept_and_not_created_again() -> None:
    harness = await fail_between_the_renames()
    harness.disk.remove_tree(B)
    for _ in range(2):
        async with harness.running() as broker:
            assert broker.offline() == {"web-0"}
            await broker.replicas.handle_strays()
    (name,) = (name for name in harness.disk.names_in(A) if name.endswith("-replaced"))
    harness.disk.rename(A / name, A / "web-0")  # as the error message says
    await harness.assert_all_acked_is_there()


@pytest.mark.parametrize("has_name", [False, True])
async def test_a_log_that_was_created_again_meanwhile_counts(*, has_name: bool) -> None:
    """Other brokers have the records, and the directory with the copy is back after it was missing for a while."""
    harness = await fail_between_the_renames()
    if not has_name:
        (replaced,) = (name for name in harness.disk.names_in(A) if name.endswith("-replaced"))
        harness.disk.rename(B / "web-0", B / replaced.replace("-replaced", "-future"))
    one = topic("web", 1)
    views = tuple(replace(each, replicas=(1, 2), isr=(1, 2), leader=2) for each in one.partitions)
    harness.topics = {"web": one._replace(partitions=views)}
    harness.paths = (A,)

    async with harness.running() as broker:
        assert broker.offline() == set()
        assert broker.replicas.partition(WEB).log.end_offset == 0
        await broker.replicas.handle_strays()
    harness.paths = (A, B)
    if has_name:
        with pytest.raises(DuplicateLog):  # it may have been written after the replacement: it is unknown which counts
            await harness.running().__aenter__()
    else:
        async with harness.running() as broker:
            assert broker.where("web") == A
            assert broker.replicas.partition(WEB).log.end_offset == 0
            assert futures(broker) == []


async def test_a_cancellation_that_the_disk_refused_is_done_by_the_next_request() -> None:
    harness = ReplicaHarness()
    async with harness.running() as broker:
        await fill(broker)
        await begin_move(broker, 5)
        harness.disk.refuse(errno.ENOSPC, "rename", under=B)
        assert move(broker, A) is ErrorCode.KAFKA_STORAGE_ERROR
        assert move(broker, A) is ErrorCode.KAFKA_STORAGE_ERROR
        harness.disk.stop_refusing()
        assert futures(broker) == [B]
        assert move(broker, A) is ErrorCode.NONE
        assert futures(broker) == []


async def test_a_move_that_was_not_cancelled_goes_on_where_it_is_asked_for_again() -> None:
    harness = ReplicaHarness()
    async with harness.running() as broker:
        await fill(broker)
        await begin_move(broker, 5)
        harness.disk.refuse(errno.ENOSPC, "rename", under=B)
        assert move(broker, A) is ErrorCode.KAFKA_STORAGE_ERROR
        harness.disk.stop_refusing()
        go_on(broker)
        assert move(broker, B) is ErrorCode.NONE
        await until_moved(broker)
        assert broker.where("web") == B
    await harness.assert_all_acked_is_there()


async def test_a_full_disk_delays_the_move() -> None:
    harness = ReplicaHarness()
    async with harness.running() as broker:
        await fill(broker)
        await begin_move(broker, 5)
        harness.disk.refuse(errno.ENOSPC, "write", "create", under=B)
        go_on(broker)
        under_way = broker.replicas.log_dir_move(WEB)
        assert under_way is not None
        await broker.until(lambda: under_way.failures)
        assert await broker.send("web", b"more") is ErrorCode.NONE
        harness.disk.stop_refusing()
        harness.clock.now_ms += 100_000
        await until_moved(broker)
        assert broker.where("web") == B
    await harness.assert_all_acked_is_there()


async def test_a_flush_of_the_old_log_does_not_count_for_the_new_one() -> None:
    """An fsync in the old directory fails after the replacement: the partition is in another directory."""
    harness = ReplicaHarness()
    async with harness.running() as broker:
        await fill(broker)
        partition = broker.replicas.partition(WEB)
        assert move(broker, B) is ErrorCode.NONE
        sends = [asyncio.ensure_future(broker.send("web", b"more %d" % number)) for number in range(30)]
        await until_moved(broker)
        assert set(await asyncio.gather(*sends)) == {ErrorCode.NONE}
        assert partition.log.health is broker.directory(B).health
        assert partition.log.flushed_offset == partition.log.end_offset == partition.high_watermark
    await harness.assert_all_acked_is_there()


def test_names_of_a_move_are_not_partitions() -> None:
    name = f"web-0.{'0' * 32}"
    for suffix in ("-future", "-replaced"):
        assert parse_partition_directory(name + suffix) == WEB
