"""Transactions of one producer while the network delays, repeats and reorders its batches and its coordinator's markers.

The partitions are real; the coordinator is a small reference. A delayed batch must never open a transaction that nothing
ends, and in the second version of transactions it must never get into the next transaction. `make coordinator-tests`
runs many seeds.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import uuid
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest

from ottla.broker.remote.transaction_verification import NewBatch, TransactionSupportedOperation, TransactionVerifier
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import PartitionView
from ottla.records.batch import split
from ottla.records.record_reader import read_records
from ottla.replication.end_txn_markers import append_end_txn_marker
from ottla.replication.group_commit import GroupCommit
from ottla.replication.partition import Partition
from ottla.storage.config import LogConfig
from ottla.storage.state.end_marker import MarkerType, read_marker
from ottla.testing.sim_disk import SimDisk
from ottla.testing.sim_executor import SimExecutor
from ottla.testing.sim_loop import SimClock, simulate
from ottla.transactions.metadata import TransactionVersion
from tests.coordinator_schedules.schedules import FIRST_SEED
from tests.support.storage import NOW_MS, batch, open_directory

PRODUCER = 9
PARTITIONS = 3
TRANSACTIONS = 8
SEEDS = int(os.environ.get("OTTLA_TRANSACTION_SCHEDULES", "250"))
ATTEMPTS_MAX = 200
CONFIG = LogConfig(durability="page-cache")
OPERATIONS = {1: TransactionSupportedOperation.GENERIC_ERROR, 2: TransactionSupportedOperation.ADD_PARTITION}
RETRIED = {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}


class Fenced(Exception):
    """The producer's epoch is over: the coordinator has aborted its transaction."""


class ReferenceCoordinator:
    """Knows one transactional id. Waits before each answer, and sends some markers twice."""

    def __init__(self, rng: random.Random, version: int, partitions: dict[TopicPartition, Partition]) -> None:
        self.rng, self.version, self.partitions = rng, version, partitions
        self.epoch = 0
        self.added: set[TopicPartition] = set()
        self.is_ending = False
        self._ended = asyncio.Event()
        self.markers: list[asyncio.Task[None]] = []

    async def pause(self, most_s: float = 0.1) -> None:
        await asyncio.sleep(self.rng.random() * most_s)

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: frozenset[TopicPartition],
        *,
        client_version: TransactionVersion,
        verify_only: bool,
    ) -> ErrorCode:
        await self.pause()
        if producer_epoch != self.epoch:
            answer = ErrorCode.PRODUCER_FENCED
        elif self.is_ending:
            answer = ErrorCode.CONCURRENT_TRANSACTIONS
        elif verify_only:
            answer = ErrorCode.NONE if partitions <= self.added else ErrorCode.TRANSACTION_ABORTABLE
        else:
            self.added |= partitions
            answer = ErrorCode.NONE
        await self.pause()
        return answer

    def end(self, *, commit: bool, bump: bool) -> None:
        """Decide the open transaction; its markers follow later."""
        assert not self.is_ending
        if bump:
            self.epoch += 1
        if not self.added:
            return
        self.is_ending = True
        self._ended.clear()
        self.markers.append(asyncio.create_task(self._send_markers(self.epoch, commit=commit)))

    async def _send_markers(self, epoch: int, *, commit: bool) -> None:
        for tp in sorted(self.added):
            for _ in range(1 + (self.rng.random() < 0.3)):
                await self.pause()
                append_end_txn_marker(
                    self.partitions[tp],
                    PRODUCER,
                    epoch,
                    commit=commit,
                    coordinator_epoch=0,
                    now_ms=NOW_MS,
                    transaction_version=self.version,
                )
        await self.pause()
        self.added, self.is_ending = set(), False
        self._ended.set()

    async def settle(self) -> None:
        while self.is_ending:
            await self._ended.wait()


class Cluster:
    """Partitions, their coordinator, and a network that delays."""

    def __init__(self, rng: random.Random, version: int) -> None:
        self.rng, self.version = rng, version
        clock = SimClock()
        directory = open_directory(SimDisk(), CONFIG)
        commit = GroupCommit(directory.health, executor=SimExecutor(lambda _: 0.01), clock=clock)
        view = PartitionView(0, leader=1, leader_epoch=0, replicas=(1,), isr=(1,), partition_epoch=0)
        tps = [TopicPartition("t", index) for index in range(PARTITIONS)]
        self.partitions = {
            tp: Partition(directory.create_log(tp, uuid.UUID(int=7), CONFIG), view, node_id=1, commit=commit)
            for tp in tps
        }
        self.coordinator = ReferenceCoordinator(rng, version, self.partitions)
        self.manager = TransactionVerifier(self.coordinator, clock)
        self.in_flight: list[asyncio.Task[Any]] = []

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.in_flight.append(asyncio.create_task(work))

    async def produce(self, tp: TopicPartition, epoch: int, sequence: int, value: bytes) -> None:
        """One Produce request, as the broker's handler serves it. Raises KafkaError."""
        partition = self.partitions[tp]
        verification = self.manager.begin(
            "id", PRODUCER, epoch, [NewBatch(partition, sequence)], OPERATIONS[self.version]
        )
        if verification.is_required:
            await self.manager.verify(verification)
            verification.check(tp)
        records = batch(value, producer_id=PRODUCER, epoch=epoch, sequence=sequence, transactional=True)
        partition.append_as_leader(records, acks=-1, now_ms=NOW_MS, guard=verification.guards.get(tp))

    async def late_produce(self, tp: TopicPartition, epoch: int, sequence: int, value: bytes) -> None:
        """The same request once more, long after: the network had kept it, or the client has sent it twice."""
        await asyncio.sleep(self.rng.random() * self.rng.choice((0.3, 3, 10)))
        try:
            await self.produce(tp, epoch, sequence, value)
        except KafkaError:
            return


class Client:
    """A transactional producer that gives up now and then."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.rng = cluster, cluster.rng
        self.epoch = 0
        self.sequences: dict[TopicPartition, int] = {}
        self.numbers = itertools.count()
        self.acknowledged: dict[int, set[bytes]] = {}  # values of each committed transaction

    async def run(self) -> None:
        for number in range(TRANSACTIONS):
            try:
                await self.transaction(number)
            except Fenced:
                await self.reinitialize()
            await self.cluster.coordinator.pause(0.2)

    async def transaction(self, number: int) -> None:
        coordinator, written = self.cluster.coordinator, set()
        has_failed, added = False, set()
        for _ in range(self.rng.randrange(1, 5)):
            tp = self.rng.choice(sorted(self.cluster.partitions))
            value = b"%d.%d" % (number, next(self.numbers))
            if self.cluster.version == 1 and tp not in added:
                await self.add(tp)
                added.add(tp)
            if not await self.send(tp, value):
                has_failed = True
                break
            written.add(value)
        await coordinator.pause()
        if self.epoch != coordinator.epoch:
            raise Fenced
        commit = not has_failed and self.rng.random() < 0.7
        await coordinator.settle()
        if self.epoch != coordinator.epoch:
            raise Fenced
        if commit:
            self.acknowledged[number] = written
        coordinator.end(commit=commit, bump=self.cluster.version == 2)
        self.next_epoch(coordinator.epoch)
        if has_failed and self.cluster.version == 1:
            await self.reinitialize()

    async def add(self, tp: TopicPartition) -> None:
        """AddPartitionsToTxn of the first version."""
        coordinator = self.cluster.coordinator
        await coordinator.settle()
        if self.epoch != coordinator.epoch:
            raise Fenced
        coordinator.added.add(tp)

    async def send(self, tp: TopicPartition, value: bytes) -> bool:
        """Send until acknowledged; False if the client gives up, and the batch may come later."""
        sequence = self.sequences.get(tp, 0)
        for _ in range(ATTEMPTS_MAX):
            if self.rng.random() < 0.3:
                self.cluster.spawn(self.cluster.late_produce(tp, self.epoch, sequence, value))
            if self.rng.random() < 0.07:
                return False
            await self.cluster.coordinator.pause()
            try:
                await self.cluster.produce(tp, self.epoch, sequence, value)
            except KafkaError as error:
                if error.code in RETRIED:
                    continue
                if error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
                    raise Fenced from None
                return False
            self.sequences[tp] = sequence + 1
            return True
        raise AssertionError(f"{value!r} was refused {ATTEMPTS_MAX} times")

    async def reinitialize(self) -> None:
        """InitProducerId: ends what is open, and takes a new epoch."""
        coordinator = self.cluster.coordinator
        await coordinator.settle()
        coordinator.end(commit=False, bump=True)
        await coordinator.settle()
        self.next_epoch(coordinator.epoch)

    def next_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.sequences = epoch, {}


async def schedule(version: int, rng: random.Random) -> None:
    cluster = Cluster(rng, version)
    client = Client(cluster)
    working = asyncio.create_task(client.run())
    while not working.done():
        await asyncio.sleep(rng.random() * 3)
        if rng.random() < 0.15 and not cluster.coordinator.is_ending:
            cluster.coordinator.end(commit=False, bump=True)  # the transaction has timed out
    await working
    await asyncio.gather(*cluster.in_flight)
    await cluster.coordinator.settle()
    cluster.coordinator.end(commit=False, bump=True)  # the last one times out
    await cluster.coordinator.settle()
    await asyncio.gather(*cluster.coordinator.markers)
    committed: set[bytes] = set()
    for tp, partition in cluster.partitions.items():
        assert partition.last_stable_offset == partition.log.end_offset, f"a transaction hangs on {tp}"
        committed |= check_log(partition, whole=version == 2)
    for number, values in client.acknowledged.items():
        assert values <= committed, f"records of committed transaction {number} are missing"


def check_log(partition: Partition, *, whole: bool) -> set[bytes]:
    """Return the committed values; no transaction may have records of another, and no record comes twice."""
    region = partition.log.read(0, max_bytes=1 << 30, end_offset=partition.log.end_offset)
    if region is None:
        return set()
    data = memoryview(bytearray(region.read()))
    values: list[bytes] = []
    committed: list[bytes] = []
    for at, header in split(data):
        one = data[at : at + header.size_bytes]
        if not header.is_control:
            values += [record.value or b"" for record in read_records(one)]
            continue
        marker = read_marker(one)
        assert marker is not None
        numbers = {value.split(b".")[0] for value in values}
        assert not whole or len(numbers) <= 1, f"one transaction has records of {numbers}"
        if marker.type is MarkerType.COMMIT:
            committed += values
        values = []
    assert not values, "records after the last marker"
    assert len(committed) == len(set(committed)), "a record was committed twice"
    return set(committed)


@pytest.mark.parametrize("version", [1, 2])
def test_no_transaction_hangs_and_none_gets_a_delayed_batch_of_another(version: int) -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        try:
            simulate(partial(schedule, version), seed=seed)
        except Exception as error:
            raise AssertionError(f"schedule {seed} of version {version}: {error}") from error
