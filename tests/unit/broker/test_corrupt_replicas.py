"""Corruption on one broker of three: nothing acknowledged is lost anywhere, nothing wrong is read, and the replica heals.

One cluster has a partition for each kind of corruption, led and followed by the broker that is corrupt, so that a run of
all kinds takes the time of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import PurePath
from typing import NamedTuple

import pytest

from ottla.client.producer import Producer
from ottla.core.errors import CorruptMessage
from ottla.core.files import FileSystem
from ottla.core.ids import TopicPartition
from ottla.metadata_store.znodes import Impairment
from ottla.storage import small_files as names
from ottla.storage.integrity.metadata_backup import FILE_NAME as COPIES
from ottla.storage.scrubbing.scrubber import Scrubber
from ottla.testing.cluster import TestCluster
from tests.unit.broker.test_replicated_topic import bytes_of, create, in_sync, leader_of, read, replica, send

pytestmark = pytest.mark.simulated_time

RECORDS, BATCH = 60, 3
OPTIONS = {
    "log.retention.check.interval.ms": "200",
    "log.segment.delete.delay.ms": "0",
    "ottla.scrub.interval.ms": "100",
    "leader.imbalance.check.interval.seconds": "1",
}
SMALL_SEGMENTS: dict[str, str | None] = {"internal.segment.bytes": "400", "retention.ms": "-1"}


class Directory(NamedTuple):
    """The directory of a log, or of all logs, of one broker."""

    files: FileSystem
    path: PurePath

    def names(self, suffix: str) -> list[PurePath]:
        return [self.path / name for name in self.files.names_in(self.path) if name.endswith(suffix)]


Corrupting = Callable[[Directory], None]


def directory_of(cluster: TestCluster, node_id: int, tp: TopicPartition | str = "") -> Directory:
    return Directory(cluster.files(node_id), cluster.paths(node_id)[0] / str(tp))


def logs(directory: Directory) -> list[PurePath]:
    return directory.names(".log")


def size(directory: Directory, which: int) -> int:
    return directory.files.size_of(logs(directory)[which])


def flip(directory: Directory, which: int, at: int) -> None:
    """Change a bit of a segment, which a running broker may have open."""
    file = directory.files.open(logs(directory)[which])
    file.write_at(at, bytes([file.read_at(at, 1)[0] ^ 1]))


def cut(directory: Directory, which: int, count: int) -> None:
    file = directory.files.open(logs(directory)[which])
    file.truncate(max(file.size() - count, 0))


def lose(*suffixes: str, of: slice = slice(None)) -> Corrupting:
    def corrupt(directory: Directory) -> None:
        for suffix in suffixes:
            for file in directory.names(suffix)[of]:
                directory.files.remove(file)

    return corrupt


def both(first: Corrupting, second: Corrupting) -> Corrupting:
    def corrupt(directory: Directory) -> None:
        first(directory)
        second(directory)

    return corrupt


KINDS: dict[str, Corrupting] = {
    "a bit of the oldest segment": lambda directory: flip(directory, 0, 100),
    "a bit of a batch header": lambda directory: flip(directory, 1, 20),
    "a bit of a closed segment's last batch": lambda directory: flip(directory, 1, size(directory, 1) - 1),
    "a bit of the newest segment": lambda directory: flip(directory, -1, 80),
    "the end of a closed segment": lambda directory: cut(directory, 1, 300),
    "a whole number of batches": lambda directory: cut(directory, 1, size(directory, 1) // 2),
    "all of a closed segment's bytes": lambda directory: cut(directory, 1, 1 << 20),
    "the end of the newest segment": lambda directory: cut(directory, -1, 100),
    "the oldest segment": lose(".log", of=slice(0, 1)),
    "the oldest two segments": lose(".log", of=slice(0, 2)),
    "a segment in the middle": lose(".log", of=slice(2, 3)),
    "the newest segment": lose(".log", of=slice(-1, None)),
    "all segments but the newest": lose(".log", of=slice(0, -1)),
    "all segments": lose(".log"),
    "indexes": lose(".index", ".timeindex"),
    "producer snapshots": lose(".snapshot"),
    "block checksums": lose(".sums"),
    "leader epochs": lose("leader-epoch-checkpoint"),
    "the topic id": lose("partition.metadata"),
    "the oldest segment and the leader epochs": both(lose(".log", of=slice(0, 1)), lose("leader-epoch-checkpoint")),
}
KINDS_OF_STARTS = (
    "a bit of the oldest segment",
    "the oldest segment",
    "all segments but the newest",
    "all segments",
    "the topic id",
    "the oldest segment and the leader epochs",
)
"""What files in the root of the log directory may help to find."""
STOPS = {
    "stopped": (),
    "killed": (),
    "killed after a checkpoint": (),
    "stopped, without log starts": (names.LOG_STARTS,),
    "stopped, without log starts and copies": (names.LOG_STARTS, COPIES),
    "killed after a checkpoint, without any": (
        names.RECOVERY_POINTS,
        names.LOG_STARTS,
        names.HIGH_WATERMARKS,
        names.CLEANER_OFFSETS,
        COPIES,
    ),
}
"""How a run ends, and which files in the root of the log directory are lost then."""
CORRUPT = 1
"""The broker that is corrupt."""


def partitions_of_kinds(kinds: Iterable[str]) -> dict[TopicPartition, str]:
    """Return a partition for each kind: of three neighbours one is led by the corrupt broker."""
    return {TopicPartition("web", index): kind for index, kind in enumerate(kind for kind in kinds for _ in range(3))}


async def fill(cluster: TestCluster, partitions: int) -> None:
    await create(cluster, partitions=partitions, configs=SMALL_SEGMENTS)
    async with await cluster.client() as client, Producer(client, clock=cluster.clock) as producer:
        for first in range(0, RECORDS, BATCH):
            sent = [
                await producer.send("web", partition=index, value=str(value).encode(), timestamp_ms=value)
                for index in range(partitions)
                for value in range(first, first + BATCH)
            ]
            for each in sent:
                await each


def scrub(cluster: TestCluster, node_id: int) -> None:
    """Verify everything of a broker, as its scrubber does."""
    for directory in cluster.services(node_id).replicas.directories.opened:
        scrubber = Scrubber(directory, cluster.files(node_id))
        for work in scrubber.plan():
            scrubber.conclude(work, scrubber.verify(work, lambda _: None))


def impaired(cluster: TestCluster, corrupt: int = CORRUPT) -> set[TopicPartition]:
    """Return the replicas that a broker has reported as suspect or impaired, or has found and not reported yet."""
    found = set(cluster.services(corrupt).replicas.context.impaired)
    for node_id in cluster.brokers:
        report = cluster.services(node_id).cluster.current.replica_reports.get(corrupt)
        if report is not None:
            found |= report.suspects.union(*report.impaired.values())
    return found


async def is_whole(cluster: TestCluster, tp: TopicPartition, *, start: int = 0, end: int = RECORDS) -> None:
    """Wait until all replicas are in sync; all must have all records then, from the same start on."""
    await in_sync(cluster, 3, tp)
    await cluster.until(
        lambda: all(replica(cluster, node, tp).high_watermark == end for node in cluster.brokers), seconds=20
    )
    assert {replica(cluster, node, tp).log.log_start_offset for node in cluster.brokers} == {start}
    assert len({bytes_of(replica(cluster, node, tp)) for node in cluster.brokers}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.options(OPTIONS)
@pytest.mark.timeout(120)
async def test_a_replica_that_was_corrupted_at_rest_is_healed_from_the_others(cluster: TestCluster, stop: str) -> None:
    kinds = partitions_of_kinds(KINDS if not STOPS[stop] else KINDS_OF_STARTS)

    await fill(cluster, len(kinds))
    if "checkpoint" in stop:
        for directory in cluster.services(CORRUPT).replicas.directories.opened:
            directory.checkpoint()
    await (cluster.stop(CORRUPT) if "stopped" in stop else cluster.kill(CORRUPT))
    for tp, kind in kinds.items():
        KINDS[kind](directory_of(cluster, CORRUPT, tp))
    for name in STOPS[stop]:
        cluster.files(CORRUPT).remove(cluster.paths(CORRUPT)[0] / name)
    await cluster.restart(CORRUPT)
    for tp, kind in kinds.items():
        try:
            await in_sync(cluster, 3, tp)
        except TimeoutError:
            pytest.fail(f"{tp}, {kind}: {cluster.services(CORRUPT).cluster.current.partition(*tp)}")
        assert await read(cluster, RECORDS, tp) == list(range(RECORDS)), kind
    for node_id in cluster.brokers:
        scrub(cluster, node_id)
    await cluster.until(lambda: not impaired(cluster), seconds=30)
    for tp, kind in kinds.items():
        try:
            await is_whole(cluster, tp)
        except (AssertionError, TimeoutError, CorruptMessage) as error:
            pytest.fail(f"{tp}, {kind}: {error!r}")


WHILE_RUNNING = [
    "a bit of the oldest segment",
    "a bit of a closed segment's last batch",
    "a bit of the newest segment",
    "the end of a closed segment",
    "all of a closed segment's bytes",
    "the oldest segment",
    "a segment in the middle",
    "indexes",
    "leader epochs",
    "the topic id",
]


@pytest.mark.options(OPTIONS)
@pytest.mark.timeout(120)
async def test_a_replica_that_is_corrupted_while_it_runs_is_healed_from_the_others(cluster: TestCluster) -> None:
    kinds = partitions_of_kinds(WHILE_RUNNING)

    await fill(cluster, len(kinds))
    for tp, kind in kinds.items():
        KINDS[kind](directory_of(cluster, CORRUPT, tp))
    scrub(cluster, CORRUPT)
    for tp, kind in kinds.items():
        assert await read(cluster, RECORDS, tp) == list(range(RECORDS)), kind
    await cluster.until(lambda: not impaired(cluster), seconds=30)
    for tp, kind in kinds.items():
        try:
            await is_whole(cluster, tp)
        except (AssertionError, TimeoutError, CorruptMessage) as error:
            pytest.fail(f"{tp}, {kind}: {error!r}")
    scrub(cluster, CORRUPT)
    assert not impaired(cluster)


@pytest.mark.options(OPTIONS)
async def test_a_consumer_gets_every_record_although_the_leader_finds_corruption_as_it_reads_them(
    cluster: TestCluster,
) -> None:
    await fill(cluster, 1)
    corrupt = leader_of(cluster)
    for node_id in (1, 2, 3):
        await cluster.stop(node_id)
    flip(directory_of(cluster, corrupt, "web-0"), 0, 150)
    for node_id in (corrupt, *({1, 2, 3} - {corrupt})):
        await cluster.restart(node_id)
    tp = TopicPartition("web", 0)
    await in_sync(cluster, 3)
    await cluster.until(lambda: leader_of(cluster) == corrupt, seconds=20)
    assert await read(cluster, RECORDS, tp) == list(range(RECORDS))
    await cluster.until(lambda: not impaired(cluster, corrupt), seconds=20)
    await is_whole(cluster, tp)


@pytest.mark.options(OPTIONS)
async def test_two_replicas_that_are_corrupt_in_different_places_heal_each_other(cluster: TestCluster) -> None:
    await create(cluster, factor=2, configs=SMALL_SEGMENTS)
    for first in range(0, RECORDS, BATCH):
        await send(cluster, range(first, first + BATCH))
    tp, nodes = TopicPartition("web", 0), cluster.services(1).cluster.current.topics["web"].partitions[0].replicas
    for node_id, segment in zip(nodes, (0, 2), strict=True):
        flip(directory_of(cluster, node_id, "web-0"), segment, 80)
        scrub(cluster, node_id)
    await cluster.until(lambda: not any(impaired(cluster, node_id) for node_id in nodes), seconds=30)
    await in_sync(cluster, 2)
    assert await read(cluster, RECORDS, tp) == list(range(RECORDS))
    assert {bytes_of(replica(cluster, node_id)) for node_id in nodes} == {bytes_of(replica(cluster, nodes[0]))}


@pytest.mark.options(OPTIONS)
async def test_records_that_no_other_replica_has_stay_as_they_are_and_are_refused(cluster: TestCluster) -> None:
    """All replicas are corrupt in one place: as if there were one replica, and all three are in sync."""
    await fill(cluster, 1)
    for node_id in (1, 2, 3):
        flip(directory_of(cluster, node_id, "web-0"), 1, 80)
        scrub(cluster, node_id)
    tp = TopicPartition("web", 0)
    await cluster.until(
        lambda: all(
            tp in report.impaired.get(Impairment.CORRUPT, ())
            for knowing in (1, 2, 3)
            for report in cluster.services(knowing).cluster.current.replica_reports.values()
        ),
        seconds=20,
    )
    await in_sync(cluster, 3)
    assert await read(cluster, 12, tp) == list(range(12))
    with pytest.raises(CorruptMessage):
        replica(cluster, leader_of(cluster)).read(12, max_bytes=100, committed_only=False, at_least_one=True)
    await send(cluster, range(RECORDS, RECORDS + 5))
    for node_id in (1, 2, 3):
        assert replica(cluster, node_id).log.end_offset == RECORDS + 5


@pytest.mark.options(OPTIONS)
async def test_a_lost_first_segment_neither_spreads_nor_hides_that_records_were_deleted(cluster: TestCluster) -> None:
    """Retention has moved the start to 24 before: the records from there on come back, and none from before."""
    await fill(cluster, 1)
    tp = TopicPartition("web", 0)
    leader = leader_of(cluster)
    replica(cluster, leader).delete_records(24)
    directories = {node: directory_of(cluster, node, "web-0") for node in (1, 2, 3)}
    await cluster.until(
        lambda: all(logs(directory)[0].name.endswith("24.log") for directory in directories.values()), seconds=20
    )
    await cluster.kill(leader)
    directories[leader].files.remove(logs(directories[leader])[0])
    await cluster.restart(leader)
    await cluster.until(lambda: not impaired(cluster, leader), seconds=20)
    await is_whole(cluster, tp, start=24)
    await cluster.until(lambda: leader_of(cluster) == leader, seconds=20)  # the preferred one
    await is_whole(cluster, tp, start=24)
