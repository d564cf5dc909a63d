"""Tests how a broker matches the logs on its disk with the topics of the cluster metadata."""

import asyncio
import uuid
from dataclasses import replace

import pytest

from ottla.core.ids import TopicPartition
from ottla.limits.loop_slices import LoopSlices
from ottla.metadata_store.cluster_view import ClusterView, PartitionView, TopicView
from ottla.replication.replica_inspection import inspect_replicas
from ottla.replication.replicas import Replicas
from ottla.storage.config import LogConfig
from ottla.storage.small_files import PARTITION_METADATA, partition_metadata_text
from ottla.testing.sim_disk import SimDisk
from tests.support.storage import NOW_MS, ROOT, TP, StillClock, batch, everything, open_directories, open_directory

ID, OTHER_ID = uuid.UUID(int=7), uuid.UUID(int=0x5EED_0F_07_4E_12_00_00_1D << 40)
METADATA = ROOT / str(TP) / PARTITION_METADATA


def view_of(topic_id: uuid.UUID) -> ClusterView:
    partition = PartitionView(0, leader=1, leader_epoch=0, replicas=(1,), isr=(1,), partition_epoch=0)
    return ClusterView().with_topics({TP.topic: TopicView(TP.topic, topic_id, (partition,), {}, 0, -1)})


def records_after_a_restart(metadata: bytes | None, topic_id: uuid.UUID) -> list[tuple[int, bytes | None]]:
    """Write three records under ID, put other bytes into partition.metadata, start again, and hear of the topic."""
    disk = SimDisk()
    directory = open_directory(disk)
    directory.create_log(TP, ID).append(batch(b"a", b"b", b"c"), leader_epoch=0, now_ms=NOW_MS)
    directory.close()
    if metadata is not None:
        file = disk.open(METADATA)
        file.truncate(0)
        file.append(metadata)

    async def hear_of_it() -> list[tuple[int, bytes | None]]:
        replicas = Replicas(open_directories(disk), node_id=1, defaults=LogConfig(), clock=StillClock())
        replicas.follow(ClusterView(), view_of(topic_id))
        log = replicas.partition(TP).log
        assert log.topic_id == topic_id
        return everything(log)

    return asyncio.run(hear_of_it())


@pytest.mark.parametrize("corrupt", [b"", b"version: 0\ntopic", b"\0" * 40, b"\xff" * 40])
def test_a_corrupt_partition_metadata_costs_no_record_and_is_rewritten(corrupt: bytes) -> None:
    assert [value for _, value in records_after_a_restart(corrupt, ID)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("bit", range(0, 22 * 8, 5))
def test_no_flipped_bit_of_a_topic_id_costs_a_record(bit: int) -> None:
    metadata = bytearray(partition_metadata_text(ID).encode())
    metadata[-1 - bit // 8] ^= 1 << bit % 8
    assert [value for _, value in records_after_a_restart(bytes(metadata), ID)] == [b"a", b"b", b"c"]


def test_the_log_of_a_deleted_topic_of_the_same_name_does_not_come_back() -> None:
    assert records_after_a_restart(None, OTHER_ID) == []


async def test_invalid_settings_of_a_topic_keep_no_other_change_from_being_applied() -> None:
    invalid = {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}

    def view(epoch: int, config: dict[str, str]) -> ClusterView:
        names = ("web", "late") if epoch else ("web",)
        partition = PartitionView(0, leader=1, leader_epoch=epoch, replicas=(1,), isr=(1,), partition_epoch=epoch)
        ids = {name: uuid.UUID(int=7 + at) for at, name in enumerate(names)}
        return ClusterView(number=epoch).with_topics(
            {name: TopicView(name, ids[name], (partition,), config, epoch, epoch) for name in names}
        )

    found = Replicas(open_directories(SimDisk()), node_id=1, defaults=LogConfig(), clock=StillClock())
    first, second, third = view(0, {"retention.ms": "5"}), view(1, invalid), view(2, {"retention.ms": "6"})
    found.follow(ClusterView(), first)
    found.follow(first, second)
    known = found.partition(TopicPartition("web", 0))
    assert (known.leader_epoch, known.log.config.retention_ms) == (1, 5)
    assert found.is_offline("late", 0)
    found.reconfigure(LogConfig())
    found.follow(second, third)
    found._try_again()
    assert known.log.config.retention_ms == found.partition(TopicPartition("late", 0)).log.config.retention_ms == 6


@pytest.mark.parametrize(("topic_id", "leads"), [(ID, False), (OTHER_ID, True)])
async def test_only_the_topic_that_was_led_in_the_last_run_waits_for_another_epoch(
    topic_id: uuid.UUID, leads: bool
) -> None:
    disk = SimDisk()
    directory = open_directory(disk)
    directory.create_log(TP, ID)
    directory.close()

    opened = open_directories(disk)
    found = Replicas(opened, node_id=1, defaults=LogConfig(), clock=StillClock())
    inspecting = inspect_replicas(view_of(ID), opened, slices := LoopSlices(), node_id=1, is_complete=True)
    found.continue_after(await slices.run(inspecting))
    found.follow(ClusterView(), view_of(topic_id))  # deleted and created again meanwhile, its epochs begin at 0
    assert found.partition(TP).is_serving is leads


@pytest.mark.parametrize(
    ("topic_id", "replicas", "is_kept"),
    [
        (ID, (2, 3), False),  # moved while this broker was down
        (ID, (2, 1), True),
        (OTHER_ID, (2, 3), True),  # another topic: only a noted deletion says that the log's topic is gone
        (ID, (), True),
    ],
)
async def test_the_log_of_a_partition_that_other_brokers_got_meanwhile_is_deleted_at_the_start(
    topic_id: uuid.UUID, replicas: tuple[int, ...], is_kept: bool
) -> None:
    disk = SimDisk()
    directory = open_directory(disk)
    directory.create_log(TP, ID).append(batch(b"a"), leader_epoch=0, now_ms=NOW_MS)
    directory.close()
    partition = PartitionView(0, leader=2, leader_epoch=0, replicas=replicas, isr=replicas, partition_epoch=0)
    view = ClusterView().with_topics({TP.topic: TopicView(TP.topic, topic_id, (partition,), {}, 0, -1)})

    opened = open_directories(disk)
    found = Replicas(opened, node_id=1, defaults=LogConfig(), clock=StillClock())
    found.follow(ClusterView(), view)
    await found.handle_strays()
    assert any(log.topic_id == ID for _, log in opened.logs()) is is_kept


@pytest.mark.plain_form("counts the calls of a method")
async def test_a_change_of_one_partition_is_applied_to_that_partition_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    applied: list[int] = []
    apply = Replicas._apply

    def count(replicas: Replicas, topic: TopicView, view: PartitionView, config: LogConfig, *, is_new: bool) -> None:
        applied.append(view.index)
        apply(replicas, topic, view, config, is_new=is_new)

    monkeypatch.setattr(Replicas, "_apply", count)
    replicas = Replicas(open_directories(SimDisk()), node_id=1, defaults=LogConfig(), clock=StillClock())
    parts = tuple(PartitionView(index, 1, 0, (1,), (1,), 0) for index in range(4))
    topic = TopicView("t", ID, parts, {}, 0, -1)
    first = ClusterView().with_topics({"t": topic})
    replicas.follow(ClusterView(), first)
    assert applied == list(range(4))

    applied.clear()
    moved = topic._replace(partitions=(*parts[:2], replace(parts[2], leader_epoch=1, partition_epoch=1), *parts[3:]))
    second = first.with_topics({"t": moved})
    replicas.follow(first, second)
    assert applied == [2]

    applied.clear()
    third = second.with_topics({"t": moved._replace(config={"retention.ms": "1"}, config_version=0)})
    replicas.follow(second, third)
    assert applied == list(range(4)), "settings are those of all partitions"

    applied.clear()
    replicas.follow(third, third.with_topics({"t": third.topics["t"]._replace(topic_id=OTHER_ID)}))
    assert applied == list(range(4)), "another topic of that name"
    await replicas.close()
