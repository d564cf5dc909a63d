"""A broker's replicas on simulated disks that refuse: two log directories, a producer, and what was acknowledged to it."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pytest

from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import ClusterView, PartitionView, TopicView
from ottla.replication import group_commit as commits
from ottla.replication import replicas as replicas_module
from ottla.replication.replicas import Replicas
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory
from ottla.testing.sim_disk import SimDisk, Survival
from tests.support.storage import NOW_MS, StillClock, batch, content, everything, open_directories, records_in
from tests.support.waiting import Woken

A, B = PurePosixPath("/a"), PurePosixPath("/b")
SMALL = replace(LogConfig(), segment_bytes=400, index_interval_bytes=0, file_delete_delay_ms=0)
NUMBERS = {"web": 7, "new": 8}


def topic(name: str, partitions: int, *, number: int | None = None) -> TopicView:
    parts = tuple(PartitionView(at, 1, 0, (1,), (1,), 0) for at in range(partitions))
    topic_id = uuid.UUID(int=random.Random(number or NUMBERS.get(name, 99)).getrandbits(128))
    return TopicView(name, topic_id, parts, {}, 0, -1)


class BrokerReplicas:
    """One run of a broker's replicas. What was acknowledged is remembered over all runs of one `ReplicaHarness`."""

    def __init__(self, harness: ReplicaHarness, missing: str = "") -> None:
        self.harness, self.disk = harness, harness.disk
        self.all_lost = asyncio.Event()
        self.availability: list[tuple[str, bool]] = []
        self.directories = open_directories(self.disk, *harness.paths, config=harness.config, clock=harness.clock)
        self.replicas = Replicas(
            self.directories,
            node_id=1,
            defaults=harness.config,
            clock=harness.clock,
            missing=missing,
            on_availability=lambda tp, is_online: self.availability.append((str(tp), is_online)),
            on_all_lost=self.all_lost.set,
        )
        self.view = ClusterView()
        self.follow(harness.topics)
        self.replicas.continue_moves()

    def follow(self, topics: Mapping[str, TopicView], *, noted: bool = True) -> None:
        """Take the next snapshot; with `noted` the store has notes of the deletions."""
        old = self.view
        ids = {each.topic_id for each in topics.values()}
        gone = {each.topic_id for each in old.topics.values() if noted and each.topic_id not in ids}
        self.view = ClusterView(deleted_topics=old.deleted_topics | gone).with_topics(dict(topics))
        self.harness.topics = dict(topics)
        self.replicas.follow(old, self.view)

    def add(self, new: TopicView) -> None:
        self.follow({**self.view.topics, new.name: new})

    def note_deleted(self, topic_id: uuid.UUID) -> None:
        old = self.view
        self.view = replace(old, deleted_topics=old.deleted_topics | {topic_id})
        self.replicas.follow(old, self.view)

    def where(self, name: str, index: int = 0) -> PurePosixPath:
        """Return the directory of a partition."""
        (directory,) = self.directories.holding(TopicPartition(name, index))
        return PurePosixPath(directory.path)

    def directory(self, path: PurePosixPath) -> LogDirectory:
        return next(each for each in self.directories.opened if each.path == path)

    async def send(self, name: str, value: bytes, index: int = 0, **more: Any) -> ErrorCode:
        """Produce with acks=all and return the error code; a successful write is remembered."""
        tp = TopicPartition(name, index)
        try:
            partition = self.replicas.partition(tp)
            appended = partition.append_as_leader(batch(value, **more), acks=-1, now_ms=NOW_MS)
        except KafkaError as error:
            return error.code
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def woken(error: BaseException | None) -> None:
            if not done.done():
                done.set_result(error.code if isinstance(error, KafkaError) else ErrorCode.NONE)

        partition.waiters.add(appended.last_offset + 1, Woken(woken), None)
        code = await asyncio.wait_for(done, 10)
        if code is ErrorCode.NONE:
            assert not self.harness.has_lost_a_sync_of(self.where(name, index)), "acknowledged after a failed sync"
            self.harness.acked.setdefault(tp, {})[appended.first_offset] = value
        return code

    def read(self, name: str, index: int = 0) -> list[tuple[int, bytes | None]]:
        """Everything a consumer gets. Raises KafkaError. What it gets are whole batches without a gap."""
        partition = self.replicas.partition(TopicPartition(name, index))
        partition.check_serving()
        found: list[tuple[int, bytes | None]] = []
        offset = partition.log.log_start_offset
        while offset < partition.high_watermark:
            region = partition.read(offset, max_bytes=300, committed_only=False, at_least_one=True).region
            rows = [(record.offset, record.value) for record in records_in(content(region)) if record.offset >= offset]
            assert rows
            assert rows[0][0] == offset, "a gap"
            found += rows
            offset = rows[-1][0] + 1
        return found

    def offline(self) -> set[str]:
        """Partitions that cannot be used."""
        return {
            str(TopicPartition(each.name, part.index))
            for each in self.view.topics.values()
            for part in each.partitions
            if self.replicas.is_offline(each.name, part.index)
        }

    async def until(self, condition: Callable[[], object], what: str = "it") -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110 - threads and timers of the code under test, no event to wait for
                await asyncio.sleep(0.001)

    async def until_sent(self, name: str, value: bytes, index: int = 0) -> None:
        """Try as a producer does until it works."""
        async with asyncio.timeout(10):
            while await self.send(name, value, index) is not ErrorCode.NONE:  # noqa: ASYNC110 - as a producer does
                await asyncio.sleep(0.001)


class ReplicaHarness:
    """A disk on which a broker runs several times."""

    def __init__(self, *paths: PurePosixPath, config: LogConfig = SMALL) -> None:
        self.disk, self.clock, self.config = SimDisk(), StillClock(), config
        self.paths = paths or (A, B)
        self.topics: dict[str, TopicView] = {}
        self.fails_at = 0  # the number of the operation that a test makes fail
        self.acked: dict[TopicPartition, dict[int, bytes]] = {}

    def has_lost_a_sync_of(self, path: PurePosixPath) -> bool:
        """Whether the operation that was to fail has come, was a sync, and of a file in this directory."""
        failed = self.disk.history[self.fails_at - 1 : self.fails_at]
        return bool(failed) and failed[0].startswith("sync") and f"{path}/" in f"{failed[0]}/"

    @asynccontextmanager
    async def running(self, *, stop: bool = True, missing: str = "") -> AsyncIterator[BrokerReplicas]:
        """Open, then stop cleanly or die."""
        broker = BrokerReplicas(self, missing)
        try:
            yield broker
        finally:
            self.disk.stop_refusing()
            if stop:
                await broker.replicas.close()
            else:
                await asyncio.gather(*(each.close() for each in broker.replicas.group_commits.values()))
        if not stop:
            self.disk.process_died()

    def power_cut(self, survival: Survival = Survival.LOST, seed: int = 1) -> None:
        self.disk.power_cut(random.Random(seed), survival)

    async def assert_all_acked_is_there(self) -> None:
        """Assert that the next run has all that was acknowledged and is not deleted."""
        async with self.running() as broker:
            for tp, acked in self.acked.items():
                if tp.topic in self.topics:
                    log = broker.replicas.partition(tp).log
                    held = dict(everything(log))
                    lost = {at: value for at, value in acked.items() if held.get(at) != value}
                    assert not {at for at in lost if at >= log.log_start_offset}, f"{tp} lost {lost}"


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again is tried again soon."""
    monkeypatch.setattr(commits, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(commits, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(replicas_module, "RETRY_SECONDS", 0.001)
