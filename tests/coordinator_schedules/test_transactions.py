"""Whole transactions in simulated time: the coordinator, its log, partitions, producers and a network that loses things.

The network delays, repeats, reorders and loses requests and answers, also across the boundary of two transactions; the
coordinator's log is slow, stalls and fails, markers fail or are written twice, the coordinator restarts, producers crash and
share a transactional id. After every step the coordinator's state is that which a restart would load. At the end each
transaction is there as a whole or not at all, as its producer knows it, a reader that read along has read the same as
one that reads at the end, and nothing is open. `make coordinator-tests` runs many seeds.
"""

from __future__ import annotations

import asyncio
import os
import random
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import pytest

from ottla.broker.remote.transaction_verification import NewBatch, TransactionSupportedOperation, TransactionVerifier
from ottla.broker.transaction_marker_writer import TransactionMarkerWriter
from ottla.core.errors import ErrorCode, KafkaError
from ottla.core.ids import NO_PRODUCER_EPOCH, OFFSETS_TOPIC, ProducerIdAndEpoch, TopicPartition
from ottla.internal_topics.topic_log import LoadedRecords
from ottla.metadata_store.cluster_view import PartitionView
from ottla.records.batch import split
from ottla.records.record_reader import read_records
from ottla.replication.group_commit import GroupCommit
from ottla.replication.partition import Partition
from ottla.storage.config import LogConfig
from ottla.testing.sim_disk import SimDisk
from ottla.testing.sim_executor import SimExecutor
from ottla.testing.sim_loop import SimClock, simulate
from ottla.transactions.config import TransactionConfig
from ottla.transactions.coordinator import TransactionCoordinator
from ottla.transactions.events import TransactionAnswer
from ottla.transactions.marker_port import TransactionMarker
from ottla.transactions.metadata import BETWEEN_TRANSACTIONS, TransactionMetadata, TransactionVersion
from ottla.transactions.records import decode
from tests.coordinator_schedules.schedules import FIRST_SEED
from tests.support.storage import NOW_MS, batch, open_directory
from tests.support.topic_logs import STALL_S, SlowTopicLog

T = TypeVar("T")

SEEDS = int(os.environ.get("OTTLA_TRANSACTION_SCHEDULES", "50"))
CONFIG = LogConfig(durability="page-cache")
TV_0, TV_2 = TransactionVersion.TV_0, TransactionVersion.TV_2
PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition(OFFSETS_TOPIC, 0)]
TIMEOUT_MS = 5_000
HANGS_MS = TIMEOUT_MS + 10_000
TRANSACTIONS = 6
LIMIT_S = 1_000
COORDINATOR_BUSY = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_ENOUGH_REPLICAS,
}
FENCED = {
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
}


class Fenced(Exception):
    """The producer's epoch is over."""


class TransactionLog(SlowTopicLog):
    """`__transaction_state`, and the states that a coordinator would load from it."""

    def __init__(self, rng: random.Random, failing: float) -> None:
        super().__init__(rng, failing, partitions=2)
        self._replayed = [ReplayedTransactions() for _ in range(2)]

    async def wait_until_replicated(self, partition: int, end_offset: int, *, leader_epoch: int) -> None:
        """At the end of this, and before the loop turns, the coordinator has the state of what is replicated."""
        await super().wait_until_replicated(partition, end_offset, leader_epoch=leader_epoch)
        self._replayed[partition].replay(self.batches[partition], end_offset)

    def states(self, partition: int) -> dict[str, TransactionMetadata]:
        """What a coordinator would load from the replicated part of a partition."""
        return self._replayed[partition].states


class ReplayedTransactions:
    """The states of transactional ids in a log, by the method of a coordinator that loads it."""

    def __init__(self) -> None:
        self.states: dict[str, TransactionMetadata] = {}
        self._batches = 0

    def replay(self, batches: Sequence[LoadedRecords], end_offset: int) -> None:
        """Apply what is new below an offset."""
        for loaded in batches[self._batches :]:
            if loaded.base_offset >= end_offset:
                break
            self._batches += 1
            for key, value in loaded.records:
                record = decode(key, value)
                assert record is not None
                if record.metadata is None:
                    self.states.pop(record.transactional_id, None)
                else:
                    self.states[record.transactional_id] = record.metadata


class FlakyMarkers:
    """Sends markers late; some are not written, some are written without a good answer, some come twice."""

    def __init__(self, rng: random.Random, writer: TransactionMarkerWriter) -> None:
        self._rng, self._writer = rng, writer
        self.failing = True

    async def send(
        self, marker: TransactionMarker, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        results: dict[TopicPartition, ErrorCode] = {}
        for where in sorted(partitions):
            await asyncio.sleep(self._rng.random() * 0.1)
            luck = self._rng.random() if self.failing else 1.0
            if luck < 0.1:
                results[where] = ErrorCode.NOT_LEADER_OR_FOLLOWER
                continue
            results.update(await self._writer.send(marker, [where]))
            if luck < 0.2:
                results[where] = ErrorCode.REQUEST_TIMED_OUT
            elif luck < 0.3:
                await self._writer.send(marker, [where])
        return results


class Offsets:
    def marker_appended(self, partition: int, offset: int) -> None:
        """The offsets are read from their partition here."""

    async def complete_transaction(self, partition: int, producer_id: int, *, commit: bool) -> None:
        """The offsets are read from their partition here."""


class ProducerIds:
    def __init__(self) -> None:
        self.next = 100

    async def allocate(self) -> int:
        self.next += 1
        return self.next


class Cluster:
    """Partitions, a coordinator that restarts, and a network."""

    def __init__(self, rng: random.Random, failing: float) -> None:
        self.rng, self.clock = rng, SimClock()
        directory = open_directory(SimDisk(), CONFIG)
        commit = GroupCommit(directory.health, executor=SimExecutor(lambda _: 0.01), clock=self.clock)
        view = PartitionView(0, leader=1, leader_epoch=0, replicas=(1,), isr=(1,), partition_epoch=0)
        self.partitions = {
            tp: Partition(directory.create_log(tp, uuid.UUID(int=7), CONFIG), view, node_id=1, commit=commit)
            for tp in PARTITIONS
        }
        self.log = TransactionLog(rng, failing)
        self.ids = ProducerIds()
        self.markers = FlakyMarkers(rng, TransactionMarkerWriter(cast("Any", self), Offsets(), self.clock))
        self.coordinator = self._new_coordinator()
        self.manager = TransactionVerifier(self, self.clock)
        self.in_flight: set[asyncio.Task[Any]] = set()
        self.answered: Counter[str] = Counter()

    def partition(self, tp: TopicPartition) -> Partition:
        return self.partitions[tp]

    # ---- The coordinator

    def _new_coordinator(self) -> TransactionCoordinator:
        coordinator = TransactionCoordinator(
            TransactionConfig(), clock=self.clock, log=self.log, node_id=1, markers=self.markers, producer_ids=self.ids
        )
        coordinator.start()
        for partition in range(self.log.partitions):
            coordinator.led.lead(partition, self.log.epoch)
        return coordinator

    def check_states(self) -> None:
        """The state of each partition that is loaded is that of the log: a restart changes nothing."""
        for shard in self.coordinator.led.ready_shards():
            live = {runtime.transactional_id: runtime.metadata for runtime in shard.all()}
            written = {
                name: metadata for name, metadata in live.items() if metadata.producer_epoch != NO_PRODUCER_EPOCH
            }
            assert written == self.log.states(shard.partition), "a restart would change the state"

    async def restart(self) -> None:
        old = self.coordinator
        await old.close()
        self.log.epoch += 1
        self.coordinator = self._new_coordinator()
        await self.coordinator.led.wait_until_loaded()

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
        return await self.coordinator.add_partitions(
            transactional_id,
            producer_id,
            producer_epoch,
            partitions,
            client_version=client_version,
            verify_only=verify_only,
        )

    # ---- The network

    async def call(self, request: Callable[[], Awaitable[T]], *, may_be_late: bool = True) -> T | None:
        """Send a request; None if the answer does not come in time, whether or not the request was served."""
        luck = self.rng.random()
        await asyncio.sleep(self.rng.random() * 0.02)
        self.check_states()
        if luck < 0.04:
            return None  # lost
        if luck < 0.08 and may_be_late:
            self._later(request)
            return None  # served later
        if luck < 0.16 and may_be_late:
            self._later(request)  # served now and once more later
        answer = await request()
        self.check_states()
        await asyncio.sleep(self.rng.random() * 0.02)
        return None if luck > 0.96 else answer

    def _later(self, request: Callable[[], Awaitable[object]]) -> None:
        async def serve() -> None:
            await asyncio.sleep(self.rng.random() * self.rng.choice((0.1, 1, 8)))
            await request()

        task = asyncio.create_task(serve())
        self.in_flight.add(task)

    async def produce(
        self, name: str, producer: ProducerIdAndEpoch, tp: TopicPartition, sequence: int, value: bytes, *, second: bool
    ) -> ErrorCode:
        """Produce, or TxnOffsetCommit, as the broker's handlers serve them."""
        partition = self.partitions[tp]
        operation = (
            TransactionSupportedOperation.ADD_PARTITION if second else TransactionSupportedOperation.GENERIC_ERROR
        )
        try:
            verification = self.manager.begin(
                name, producer.producer_id, producer.epoch, [NewBatch(partition, sequence)], operation
            )
            if verification.is_required:
                await self.manager.verify(verification)
                verification.check(tp)
            records = batch(
                value, producer_id=producer.producer_id, epoch=producer.epoch, sequence=sequence, transactional=True
            )
            partition.append_as_leader(records, acks=-1, now_ms=NOW_MS, guard=verification.guards.get(tp))
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE


async def answer_of(request: Awaitable[TransactionAnswer]) -> TransactionAnswer:
    """What a handler makes of an error of the whole request."""
    try:
        return await request
    except KafkaError as error:
        return TransactionAnswer(error.code)


class Client:
    """A transactional producer: it retries what it may, aborts what failed, and crashes now and then."""

    def __init__(self, cluster: Cluster, name: str, label: str, version: TransactionVersion) -> None:
        self.cluster, self.rng = cluster, cluster.rng
        self.name, self.label, self.version = name, label, version
        self.producer: ProducerIdAndEpoch | None = None
        self.sequences: Counter[TopicPartition] = Counter()
        self.values = 0
        self.must_bump = False
        self.outcomes: dict[bytes, tuple[str, set[tuple[TopicPartition, bytes]]]] = {}

    @property
    def second(self) -> bool:
        return self.version is TV_2

    async def run(self) -> None:
        for number in range(TRANSACTIONS):
            tag = f"{self.label}.{number}".encode()
            written: set[tuple[TopicPartition, bytes]] = set()
            self.outcomes[tag] = ("aborted", written)
            try:
                await self.init()
                is_written = await self.write(tag, written)
                if self.rng.random() < 0.05:
                    self.producer = None  # it crashed: its timeout or its successor aborts the transaction
                elif is_written:
                    await self.end(tag, written, committed=self.rng.random() < 0.7)
                else:
                    await self.end(tag, written, committed=False)
                    self.must_bump = not self.second
            except Fenced:
                self.producer = None
            if self.rng.random() < 0.1:
                self.producer = None  # it crashed; another one begins
            await asyncio.sleep(self.rng.random() * self.rng.choice((0.05, 0.5)))

    async def init(self) -> None:
        if self.producer is not None and not self.must_bump:
            return
        expected = self.producer

        def request() -> Awaitable[TransactionAnswer]:
            return answer_of(self.cluster.coordinator.init_producer_id(self.name, TIMEOUT_MS, expected))

        while True:
            answer = await self.cluster.call(request)
            if answer is not None and answer.error is ErrorCode.NONE:
                self._follow(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch))
                self.must_bump = False
                return
            if answer is not None and answer.error not in COORDINATOR_BUSY:
                assert answer.error in FENCED, answer
                expected = None  # a new instance
            await asyncio.sleep(0.1)

    def _follow(self, producer: ProducerIdAndEpoch) -> None:
        if producer != self.producer:
            self.producer, self.sequences = producer, Counter()

    async def write(self, tag: bytes, written: set[tuple[TopicPartition, bytes]]) -> bool:
        """Write some records; returns False if the transaction has to be aborted."""
        added: set[TopicPartition] = set()
        for _ in range(self.rng.randrange(1, 5)):
            tp = self.rng.choice(PARTITIONS)
            self.values += 1
            value = tag + f".{self.values}".encode()
            if not self.second and tp not in added:
                if not await self.add(tp):
                    return False
                added.add(tp)
            written.add((tp, value))
            if not await self.send(tp, value):
                return False
            if self.rng.random() < 0.03:
                await asyncio.sleep(HANGS_MS / 1000)  # longer than the transaction may take
        return True

    async def add(self, tp: TopicPartition) -> bool:
        producer = self.producer
        assert producer is not None

        async def request() -> ErrorCode:
            return await self.cluster.coordinator.add_partitions(
                self.name, producer.producer_id, producer.epoch, frozenset({tp}), client_version=TV_0
            )

        for _ in range(30):
            error = await self.cluster.call(request)
            if error is ErrorCode.NONE:
                return True
            if error in FENCED:
                raise Fenced
            await asyncio.sleep(0.05)
        return False

    async def send(self, tp: TopicPartition, value: bytes) -> bool:
        producer, sequence = self.producer, self.sequences[tp]
        assert producer is not None

        def request() -> Awaitable[ErrorCode]:
            return self.cluster.produce(self.name, producer, tp, sequence, value, second=self.second)

        for _ in range(self.rng.choice((2, 30, 30))):
            error = await self.cluster.call(request)
            if error is ErrorCode.NONE:
                self.sequences[tp] += 1
                return True
            if error in FENCED:
                raise Fenced
            await asyncio.sleep(0.05)
        return False

    async def end(self, tag: bytes, written: set[tuple[TopicPartition, bytes]], *, committed: bool) -> None:
        producer = self.producer
        assert producer is not None

        def request() -> Awaitable[TransactionAnswer]:
            return answer_of(
                self.cluster.coordinator.end(
                    self.name, producer.producer_id, producer.epoch, committed=committed, client_version=self.version
                )
            )

        maybe_served = False
        while True:
            # In the first version a late EndTxn ends the next transaction, which is why there is a second one.
            answer = await self.cluster.call(request, may_be_late=self.second)
            if answer is None:
                maybe_served = True
            elif answer.error is ErrorCode.NONE:
                self.outcomes[tag] = ("committed" if committed else "aborted", written)
                if self.second:
                    self._follow(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch))
                return
            elif answer.error in COORDINATOR_BUSY:
                # After a failed write the outcome may be in the log all the same.
                maybe_served = maybe_served or answer.error is not ErrorCode.CONCURRENT_TRANSACTIONS
            else:
                assert answer.error in FENCED, answer
                self.outcomes[tag] = ("unknown" if committed and maybe_served else "aborted", written)
                raise Fenced
            if committed:
                self.outcomes[tag] = ("unknown", written)
            await asyncio.sleep(0.05)


class Reader:
    """Reads committed records of one partition, as a client does: up to the last stable offset, without aborted ones."""

    def __init__(self, where: TopicPartition, partition: Partition) -> None:
        self.where, self.partition = where, partition
        self.offset = 0
        self.found: list[tuple[TopicPartition, bytes]] = []

    def poll(self) -> None:
        while self.offset < self.partition.last_stable_offset:
            read = self.partition.read(self.offset, max_bytes=1 << 20, committed_only=True, at_least_one=True)
            assert read.region is not None
            assert read.aborted is not None
            data = memoryview(bytearray(read.region.read()))
            pending = sorted(read.aborted, key=lambda each: each.first_offset)
            aborted: set[int] = set()
            for at, header in split(data):
                while pending and pending[0].first_offset <= header.last_offset:
                    aborted.add(pending.pop(0).producer_id)
                self.offset = header.last_offset + 1
                if header.is_control:
                    aborted.discard(header.producer_id)
                elif header.producer_id not in aborted:
                    records = read_records(data[at : at + header.size_bytes])
                    self.found += [(self.where, record.value or b"") for record in records]


async def schedule(version: TransactionVersion, rng: random.Random) -> None:
    cluster = Cluster(rng, failing=rng.choice((0.0, 0.0, 0.05)))
    cluster.log.stall_rate = rng.choice((0.0, 0.02))
    await cluster.coordinator.led.wait_until_loaded()
    shared = rng.random() < 0.3  # two producers with one transactional id
    names = ["a", "a" if shared else "b", "c"]
    clients = [Client(cluster, name, f"p{index}", version) for index, name in enumerate(names)]
    along = [Reader(tp, partition) for tp, partition in cluster.partitions.items()]
    working = [asyncio.create_task(client.run()) for client in clients]
    while not all(task.done() for task in working):
        assert cluster.clock.monotonic() < LIMIT_S, "a producer waits for ever"
        await asyncio.sleep(rng.random())
        cluster.check_states()
        for reader in along:
            reader.poll()
        if rng.random() < 0.05:
            await cluster.restart()
    await asyncio.gather(*working)
    await asyncio.gather(*cluster.in_flight)
    cluster.markers.failing, cluster.log.failing_rate, cluster.log.stall_rate = False, 0.0, 0.0
    await asyncio.sleep(HANGS_MS / 1000 + STALL_S + 2)
    check(cluster, clients, along)
    await cluster.coordinator.close()


def check(cluster: Cluster, clients: list[Client], along: list[Reader]) -> None:
    cluster.check_states()
    for runtime in cluster.coordinator.transactional_ids():
        assert runtime.metadata.state in BETWEEN_TRANSACTIONS, f"{runtime.transactional_id}: {runtime.metadata}"
    read: list[tuple[TopicPartition, bytes]] = []
    for reader in along:
        partition = reader.partition
        assert partition.last_stable_offset == partition.log.end_offset, f"a transaction hangs on {reader.where}"
        late = Reader(reader.where, partition)
        late.poll()
        reader.poll()
        assert reader.found == late.found, f"two readers of {reader.where} differ"
        read += late.found
    twice = [value for value, count in Counter(read).items() if count > 1]
    assert not twice, f"read twice: {twice}"
    visible = set(read)
    for client in clients:
        for tag, (outcome, written) in client.outcomes.items():
            found = written & visible
            if outcome == "committed":
                assert found == written, f"transaction {tag!r} was committed; missing: {written - found}"
            elif outcome == "aborted":
                assert not found, f"transaction {tag!r} was aborted; read: {found}"
            else:
                assert found in (set(), written), f"transaction {tag!r} is torn: {found} of {written}"


@pytest.mark.parametrize("version", [TV_0, TV_2])
def test_transactions_are_whole_and_none_hangs(version: TransactionVersion) -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        try:
            simulate(partial(schedule, version), seed=seed)
        except Exception as error:
            raise AssertionError(f"schedule {seed} of {version.name}: {error}") from error
