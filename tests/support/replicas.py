"""Replicas of one partition on simulated disks, without sockets: a test decides when a flush, a fetch or a view comes."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ottla.core.errors import KafkaError
from ottla.core.executors import BlockingJob
from ottla.metadata_store.cluster_view import BrokerInfo, PartitionView
from ottla.replication.config import ReplicationConfig
from ottla.replication.fetch_data_info import FetchDataInfo
from ottla.replication.follower_state import FetchPosition
from ottla.replication.group_commit import GroupCommit
from ottla.replication.isr_proposal_queue import IsrChange
from ottla.replication.partition import Partition
from ottla.replication.replication_context import ReplicationContext
from ottla.storage.config import LogConfig
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.state.leader_epochs import EpochEnd
from ottla.testing.sim_disk import SimDisk, Survival
from tests.support.storage import NOW_MS, TP, StillClock, batch, content, everything, open_directory
from tests.support.waiting import Woken

TOPIC_ID = uuid.UUID(int=7)
Answer = FetchDataInfo | EpochEnd | KafkaError


class HeldExecutor:
    """Runs its jobs when the test asks for it."""

    def __init__(self) -> None:
        self.jobs: list[BlockingJob] = []
        self.is_held = False  # nothing is run

    def submit(self, job: BlockingJob) -> None:
        """Hold the job."""
        self.jobs.append(job)

    def run(self) -> None:
        """Run what was submitted."""
        if self.is_held:
            return
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            job.run()
            job.finished()

    def close(self) -> None:
        """Run the rest."""
        self.run()


def changed(position: FetchPosition, **changes: int) -> FetchPosition:
    """Return a position with other values in some fields."""
    names = ("leader_epoch", "fetch_offset", "last_fetched_epoch", "log_start_offset", "truncation_count")
    return FetchPosition(**{name: changes.get(name, getattr(position, name)) for name in names})


class Node:
    """One broker with a replica of the partition. `start` begins another life of it on the same disk."""

    def __init__(self, node_id: int, clock: StillClock, *, config: LogConfig, lag_max_ms: int = 30_000) -> None:
        self.node_id, self.clock, self.config = node_id, clock, config
        self.lag_max_ms = lag_max_ms
        self.disk = SimDisk()
        self.broker_epoch = 0
        self.is_up = False

    def start(self, view: PartitionView, brokers: dict[int, int], *, config: LogConfig | None = None) -> None:
        """Open the log, and apply a view; `brokers` are the live ones with their epochs."""
        self.config = config or self.config
        self.directory = open_directory(self.disk, self.config, self.clock)
        self.log: PartitionLog = self.directory.create_log(TP, TOPIC_ID, self.config)
        self.executor = HeldExecutor()
        self.commit = GroupCommit(self.directory.health, executor=self.executor, clock=self.clock)
        self.commit.speed._rounds = -(1 << 60)  # always in the executor
        self.context = ReplicationContext(self.clock, ReplicationConfig(lag_time_max_ms=self.lag_max_ms))
        self.knows(brokers)
        self.partition = Partition(self.log, view, node_id=self.node_id, commit=self.commit, context=self.context)
        self.is_up = True

    def knows(self, brokers: dict[int, int]) -> None:
        """The snapshot has these brokers."""
        self.context.brokers = {node_id: BrokerInfo(node_id, {}, None, epoch, {}) for node_id, epoch in brokers.items()}

    def flush(self) -> None:
        """Begin the round that is due, and run it. (The loop would begin it at the end of its turn.)"""
        self.commit._begin_round()
        self.executor.run()

    def crash(self, rng: random.Random, survival: Survival | None) -> None:
        """Kill the process, or cut the power."""
        self.is_up = False
        if survival is None:
            self.disk.process_died()
        else:
            self.disk.power_cut(rng, survival)

    # ---- As leader

    def produce(self, *values: bytes, acks: int = -1, acked: Callable[[int], None] = lambda _: None) -> int:
        """Append one batch; `acked` is called with its last offset once it is replicated."""
        appended = self.partition.append_as_leader(batch(*values), acks=acks, now_ms=NOW_MS)

        def woken(error: BaseException | None) -> None:
            if error is None:
                acked(appended.last_offset)

        self.partition.waiters.add(appended.last_offset + 1, Woken(woken), None)
        return appended.last_offset

    def serve(self, follower: Node, position: FetchPosition, *, max_bytes: int = 1 << 20) -> tuple[Answer, bytes]:
        """Answer a fetch, as the handler does: the records are read from the file at once."""
        try:
            found = self.partition.read_for_replica(
                (follower.node_id, follower.broker_epoch),
                fetch_offset=position.fetch_offset,
                last_fetched_epoch=position.last_fetched_epoch,
                current_leader_epoch=position.leader_epoch,
                log_start_offset=position.log_start_offset,
                max_bytes=max_bytes,
                at_least_one=True,
                now_s=self.clock.monotonic(),
            )
        except KafkaError as error:
            return error, b""
        return found, content(found.region) if isinstance(found, FetchDataInfo) else b""

    def proposed(self) -> IsrChange | None:
        """Return the ISR change that waits for the controller."""
        proposal = self.context.isr_changes._waiting.get(TP)
        return None if proposal is None else proposal.change

    # ---- As follower

    def take(self, position: FetchPosition, answer: Answer, records: bytes) -> bool:
        """Process an answer as the fetcher does; return whether it was of use."""
        partition = self.partition
        if partition.next_fetch() != position or isinstance(answer, KafkaError):
            return False
        if isinstance(answer, EpochEnd):
            partition.truncate_to_leader(answer)
        else:
            partition.append_as_follower(
                memoryview(records),
                high_watermark=answer.high_watermark,
                log_start=answer.log_start_offset,
                now_ms=NOW_MS,
            )
        return True

    def fetch(self, leader: Node, *, max_bytes: int = 1 << 20) -> Answer | None:
        """Fetch once, without a flush; None if it may not fetch now."""
        position = self.partition.next_fetch()
        if position is None:
            return None
        answer, records = leader.serve(self, position, max_bytes=max_bytes)
        self.take(position, answer, records)
        return answer

    def catch_up(self, leader: Node) -> None:
        """Fetch and flush until there is nothing more."""
        for _ in range(100):
            self.flush()
            before = self.partition.next_fetch(), self.partition.high_watermark
            self.fetch(leader)
            self.flush()
            if before == (self.partition.next_fetch(), self.partition.high_watermark):
                return
        raise AssertionError("the follower does not reach the end of its leader")

    def values(self) -> list[tuple[int, bytes | None]]:
        """Return offset and value of each record."""
        return [(offset, value) for offset, value in everything(self.log)]


def view(
    leader: int,
    epoch: int,
    *,
    isr: tuple[int, ...] = (1, 2, 3),
    replicas: tuple[int, ...] = (1, 2, 3),
    partition_epoch: int | None = None,
    **more: Any,
) -> PartitionView:
    """A state of the partition; its version grows with the epoch unless it is given."""
    version = epoch * 100 if partition_epoch is None else partition_epoch
    return PartitionView(0, leader, epoch, replicas, isr, version, **more)


class Trio:
    """Three replicas that are all in sync, led by broker 1 in epoch 0."""

    def __init__(self, config: LogConfig | None = None, *, count: int = 3) -> None:
        self.clock = StillClock()
        self.config = replace(config or LogConfig(), min_insync_replicas=(config or LogConfig()).min_insync_replicas)
        self.nodes = {node_id: Node(node_id, self.clock, config=self.config) for node_id in range(1, count + 1)}
        self.brokers = dict.fromkeys(self.nodes, 0)
        members = tuple(self.nodes)
        self.view = view(1, 0, isr=members, replicas=members)
        for node in self.nodes.values():
            node.start(self.view, self.brokers)

    def __getitem__(self, node_id: int) -> Node:
        return self.nodes[node_id]

    def apply(self, new: PartitionView, *node_ids: int) -> None:
        """Have nodes apply a view; all if none is named."""
        self.view = new
        for node_id in node_ids or tuple(self.nodes):
            self.nodes[node_id].partition.apply(new)

    def produce_to(self, value: bytes, *followers: int) -> None:
        """Have the leader write and flush a record, and these followers fetch it."""
        leader = self.nodes[self.view.leader]
        leader.produce(value)
        leader.flush()
        for node_id in followers:
            self.nodes[node_id].catch_up(leader)

    def replicate(self) -> None:
        """Let all followers catch up with their leader, and learn its high watermark."""
        leader = self.nodes[self.view.leader]
        for _ in range(2):
            leader.flush()
            for node in self.nodes.values():
                if node is not leader and node.is_up:
                    node.catch_up(leader)
