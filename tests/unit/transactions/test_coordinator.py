"""What the coordinator does around the state machines: partitions, loading, waiting, markers and periodic work."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace

import pytest

from ottla.core.errors import (
    CoordinatorLoadInProgress,
    ErrorCode,
    InvalidRequest,
    KafkaError,
    NotCoordinator,
    StorageError,
)
from ottla.core.ids import TRANSACTIONS_TOPIC, ProducerIdAndEpoch, TopicPartition
from ottla.internal_topics.topic_log import AppendedBatch, KeyValue, ProducerIdentity
from ottla.metadata_store.cluster_view import ClusterView, PartitionView, TopicView
from ottla.testing.sim_loop import SimClock
from ottla.transactions import records
from ottla.transactions.config import TransactionConfig
from ottla.transactions.coordinator import TransactionCoordinator
from ottla.transactions.events import TransactionAnswer
from ottla.transactions.marker_port import TransactionMarker
from ottla.transactions.metadata import EPOCH_MAX, TransactionMetadata, TransactionState, TransactionVersion
from tests.support.async_tests import setup_of
from tests.support.topic_logs import MemoryTopicLog

pytestmark = pytest.mark.simulated_time

WEB = frozenset({TopicPartition("web", 0)})
OTHER = frozenset({TopicPartition("web", 1)})
TV_2 = TransactionVersion.TV_2
COMMITTED = TransactionAnswer(ErrorCode.NONE, 100, 1)


class Log(MemoryTopicLog):
    """An internal topic whose appends wait until the test releases them."""

    def __init__(self, partitions: int = 1) -> None:
        super().__init__(partitions)
        self.hold = asyncio.Event()
        self.hold.set()

    async def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        producer: ProducerIdentity | None = None,
        *,
        leader_epoch: int,
    ) -> AppendedBatch:
        await self.hold.wait()
        return await super().append(partition, records, producer, leader_epoch=leader_epoch)


class Markers:
    """Partitions in memory: what they got, and with what they answer."""

    def __init__(self) -> None:
        self.sent: list[tuple[TransactionMarker, frozenset[TopicPartition]]] = []
        self.errors: dict[TopicPartition, ErrorCode] = {}
        self.hold = asyncio.Event()
        self.hold.set()

    async def send(
        self, marker: TransactionMarker, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        await self.hold.wait()
        self.sent.append((marker, frozenset(partitions)))
        return {where: self.errors.get(where, ErrorCode.NONE) for where in partitions}


class ProducerIds:
    def __init__(self) -> None:
        self.next = 100
        self.failing: KafkaError | None = None

    async def allocate(self) -> int:
        await asyncio.sleep(0)
        if self.failing is not None:
            raise self.failing
        self.next += 1
        return self.next - 1


class Broker:
    def __init__(self, config: TransactionConfig | None = None, log: Log | None = None) -> None:
        self.clock = SimClock()
        self.log = log or Log()
        self.markers, self.ids = Markers(), ProducerIds()
        self.coordinator = TransactionCoordinator(
            config or TransactionConfig(),
            clock=self.clock,
            log=self.log,
            node_id=1,
            markers=self.markers,
            producer_ids=self.ids,
        )
        self._view = ClusterView()

    def follow(self, leader: int) -> None:
        parts = tuple(
            PartitionView(i, leader, self.log.epoch, (leader,), (leader,), 0) for i in range(self.log.partitions)
        )
        topic = TopicView(TRANSACTIONS_TOPIC, uuid.UUID(int=9), parts, {}, 0, 0)
        old, self._view = self._view, self._view.with_topics({TRANSACTIONS_TOPIC: topic})
        self.coordinator.follow(old, self._view)

    async def lead(self, leader: int = 1) -> None:
        self.follow(leader)
        await self.coordinator.led.wait_until_loaded()

    async def init(self, name: str = "app", expected: ProducerIdAndEpoch | None = None) -> TransactionAnswer:
        return await self.coordinator.init_producer_id(name, 60_000, expected)

    async def add(
        self, epoch: int = 0, partitions: frozenset[TopicPartition] = WEB, producer_id: int = 100
    ) -> ErrorCode:
        return await self.coordinator.add_partitions("app", producer_id, epoch, partitions, client_version=TV_2)

    async def commit(self, epoch: int = 0) -> TransactionAnswer:
        return await self.coordinator.end("app", 100, epoch, committed=True, client_version=TV_2)

    def state(self) -> TransactionState:
        return self.coordinator.describe("app").state

    async def until(self, state: TransactionState) -> None:
        while self.state() is not state:  # noqa: ASYNC110  # in virtual time
            await asyncio.sleep(0.01)


@pytest.fixture
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    broker = Broker(setup_of(request).get("config"), Log(1))
    await broker.lead()
    yield broker
    await broker.coordinator.close()


async def test_a_transaction_from_its_begin_to_its_completion(broker: Broker) -> None:
    broker.log.epoch = 7  # the marker has the leader epoch of the coordinator's partition
    await broker.lead()
    assert await broker.init() == TransactionAnswer(ErrorCode.NONE, 100, 0)
    assert await broker.add() is ErrorCode.NONE
    assert await broker.commit() == COMMITTED
    await broker.until(TransactionState.COMPLETE_COMMIT)
    assert broker.markers.sent == [(TransactionMarker(100, 1, True, 7, TV_2), WEB)]
    states = [records.decode(key, value) for key, value in broker.log.records()]
    assert [one.metadata.state.kafka_name for one in states if one is not None and one.metadata is not None] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "CompleteCommit",
    ]


async def test_requests_are_refused_before_the_partition_is_led_and_loaded() -> None:
    broker = Broker()
    with pytest.raises(NotCoordinator):
        await broker.init()
    await broker.lead(leader=2)
    with pytest.raises(NotCoordinator):
        await broker.init()
    broker.follow(leader=1)
    with pytest.raises(CoordinatorLoadInProgress):
        await broker.init()
    with pytest.raises(CoordinatorLoadInProgress):
        broker.coordinator.transactional_ids()
    assert await broker.add() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await broker.coordinator.led.wait_until_loaded()
    assert (await broker.init()).error is ErrorCode.NONE
    await broker.coordinator.close()


async def test_bad_requests_are_refused(broker: Broker) -> None:
    with pytest.raises(InvalidRequest):
        await broker.init("")
    for timeout_ms in (0, -1, 900_001):
        with pytest.raises(KafkaError) as refused:
            await broker.coordinator.init_producer_id("app", timeout_ms, None)
        assert refused.value.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert await broker.add() is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert await broker.coordinator.add_partitions("", 1, 1, WEB) is ErrorCode.INVALID_REQUEST
    with pytest.raises(KafkaError) as unknown:
        await broker.commit()
    assert unknown.value.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    for name, error in (("app", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND), ("", ErrorCode.INVALID_REQUEST)):
        with pytest.raises(KafkaError) as undescribed:
            broker.coordinator.describe(name)
        assert undescribed.value.code is error


async def test_two_first_requests_at_the_same_time_make_one_id(broker: Broker) -> None:
    answers = await asyncio.gather(broker.init(), broker.init())
    assert sorted(one.error for one in answers) == [ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS]


async def test_without_a_producer_id_the_request_fails_and_can_be_retried(broker: Broker) -> None:
    broker.ids.failing = CoordinatorLoadInProgress()
    with pytest.raises(CoordinatorLoadInProgress):
        await broker.init()
    broker.ids.failing = None
    assert (await broker.init()).error is ErrorCode.NONE


async def test_partitions_wait_for_the_completion_of_the_previous_transaction(broker: Broker) -> None:
    await broker.init()
    await broker.add()
    broker.markers.hold.clear()
    assert await broker.commit() == COMMITTED
    adding = asyncio.create_task(broker.add(1))
    await asyncio.sleep(0.05)
    assert not adding.done()
    broker.markers.hold.set()
    assert await adding is ErrorCode.NONE


async def test_partitions_do_not_wait_for_long(broker: Broker) -> None:
    await broker.init()
    await broker.add()
    broker.markers.hold.clear()
    await broker.commit()
    before = broker.clock.monotonic()
    assert await broker.add(1) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert broker.clock.monotonic() - before == pytest.approx(0.1, abs=0.01)
    broker.markers.hold.set()


async def test_partitions_that_are_added_at_the_same_time_wait_for_each_other(broker: Broker) -> None:
    await broker.init()
    both = await asyncio.gather(broker.add(), broker.add(partitions=OTHER))
    assert set(both) == {ErrorCode.NONE}
    assert broker.coordinator.describe("app").partitions == WEB | OTHER


async def test_verification_adds_nothing(broker: Broker) -> None:
    await broker.init()
    await broker.add()
    for partitions, error in ((WEB, ErrorCode.NONE), (OTHER, ErrorCode.TRANSACTION_ABORTABLE)):
        assert await broker.coordinator.add_partitions("app", 100, 0, partitions, verify_only=True) is error
    assert broker.coordinator.describe("app").partitions == WEB


async def test_markers_are_sent_until_every_partition_has_one(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    await broker.init()
    await broker.add(partitions=WEB | OTHER)
    broker.markers.errors = dict.fromkeys(OTHER, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    await broker.commit()
    await asyncio.sleep(0.35)
    assert [partitions for _, partitions in broker.markers.sent] == [WEB | OTHER, OTHER, OTHER, OTHER]
    broker.markers.errors = {}
    await broker.until(TransactionState.COMPLETE_COMMIT)
    assert caplog.messages == [
        "markers of transactional id 'app' are not written yet: {'web-1': 'NOT_LEADER_OR_FOLLOWER'}"
    ]


async def test_a_new_leader_completes_what_was_decided(broker: Broker) -> None:
    await broker.init()
    await broker.add()
    broker.markers.hold.clear()
    await broker.commit()
    await broker.lead(leader=2)
    with pytest.raises(NotCoordinator):
        await broker.commit()
    broker.markers.hold.set()
    broker.log.epoch = 4
    await broker.lead()
    await broker.until(TransactionState.COMPLETE_COMMIT)
    by_new_leader = [sent for sent in broker.markers.sent if sent[0].coordinator_epoch == 4]
    assert by_new_leader == [(TransactionMarker(100, 1, True, 4, TV_2), WEB)]


async def test_waiting_requests_fail_when_another_broker_leads(broker: Broker) -> None:
    await broker.init()
    await broker.add()
    broker.log.hold.clear()
    committing = asyncio.create_task(broker.commit())
    await asyncio.sleep(0.01)
    adding = asyncio.create_task(broker.add(1))
    await asyncio.sleep(0.01)
    broker.follow(leader=2)
    await asyncio.sleep(0.01)
    broker.log.hold.set()
    with pytest.raises(NotCoordinator):
        await committing
    assert await adding is ErrorCode.NOT_COORDINATOR


async def test_a_failed_write_is_answered_with_an_error_that_clients_retry(broker: Broker) -> None:
    await broker.init()
    broker.log.failing = StorageError()
    assert await broker.add() is ErrorCode.NOT_COORDINATOR
    broker.log.failing = None
    assert await broker.add() is ErrorCode.NONE


async def test_a_write_that_takes_too_long_is_answered_and_counts_once_it_is_in_the_log(broker: Broker) -> None:
    await broker.init()
    broker.log.hold.clear()
    before = broker.clock.monotonic()
    assert await broker.add() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert broker.clock.monotonic() - before == pytest.approx(60, abs=0.1)
    assert await broker.add(partitions=OTHER) is ErrorCode.CONCURRENT_TRANSACTIONS
    broker.log.hold.set()
    await asyncio.sleep(0.01)
    assert broker.coordinator.describe("app").partitions == WEB, "it is in the log"
    assert await broker.add() is ErrorCode.NONE


async def test_a_transaction_is_aborted_within_ten_seconds_of_its_timeout(broker: Broker) -> None:
    broker.coordinator.start()
    await broker.init()
    await broker.add()
    await asyncio.sleep(59)
    assert broker.state() is TransactionState.ONGOING
    await asyncio.sleep(11.1)
    assert broker.state() is TransactionState.COMPLETE_ABORT
    assert broker.markers.sent == [(TransactionMarker(100, 1, False, 0, TV_2), WEB)]


async def test_the_last_epoch_is_followed_by_an_allocated_producer_id(broker: Broker) -> None:
    metadata = TransactionMetadata(
        producer_id=7, producer_epoch=EPOCH_MAX - 1, timeout_ms=60_000, state=TransactionState.EMPTY, updated_wall_ms=0
    )
    pair = (records.transaction_key("app"), records.transaction_value(metadata))
    broker.log.put(0, [pair])
    await broker.lead(leader=2)
    await broker.lead()
    broker.ids.failing = CoordinatorLoadInProgress()
    assert (await broker.init()).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    broker.ids.failing = None
    assert await broker.init() == TransactionAnswer(ErrorCode.NONE, 100, 0)


@pytest.mark.setup(config=TransactionConfig(id_expiration_ms=10_000, expiry_interval_ms=1_000))
async def test_an_unused_id_is_deleted_from_the_log_and_from_memory(broker: Broker) -> None:
    broker.coordinator.start()
    await broker.init()
    await broker.init("other")
    await asyncio.sleep(8)
    await broker.init("other")
    await asyncio.sleep(4)
    assert [one.transactional_id for one in broker.coordinator.transactional_ids()] == ["other"]
    assert broker.log.records()[-1] == (records.transaction_key("app"), None)
    await broker.lead(leader=2)
    await broker.lead()
    assert [one.transactional_id for one in broker.coordinator.transactional_ids()] == ["other"]


async def test_malformed_records_are_skipped(broker: Broker) -> None:
    await broker.init()
    bad = [(b"\0\0\0", b""), (b"\0\x09", b""), (records.transaction_key("bad"), b"\0\x01")]
    broker.log.put(0, bad)
    await broker.lead(leader=2)
    await broker.lead()
    assert [one.transactional_id for one in broker.coordinator.transactional_ids()] == ["app"]


# ---- A step that fails after it began to change the state


def _break(broker: Broker, *, durable: bool = False) -> None:
    """Let the state contradict itself, so that the check after the next event fails: the durable or the pending one."""
    runtime = broker.coordinator.led.shard_of("app").find("app")
    assert runtime is not None
    machine = runtime.machine
    pending = machine.pending
    if pending is not None and pending.metadata is not None and pending.write is not None and not durable:
        machine.pending = pending._replace(metadata=replace(pending.metadata, producer_epoch=-7))
    elif pending is not None and not durable:
        machine.without_marker |= frozenset({TopicPartition("ghost", 0)})
    else:
        machine.metadata = replace(machine.metadata, next_producer_id=7)


async def _retried(work: Callable[[], Awaitable[ErrorCode]]) -> ErrorCode:
    """Repeat a request as a client does."""
    while (error := await work()) in (  # noqa: ASYNC110
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    ):
        await asyncio.sleep(0.1)  # in virtual time
    return error


@pytest.mark.parametrize(
    "step",
    [
        "InitProducerId",
        "AddPartitions",
        "EndTxn",
        "AbortTimedOut",
        "Expire",
        "Stored",
        "NotStored",
        "MarkersSent",
        "RetryTimer",
    ],
)
@pytest.mark.setup(config=TransactionConfig(id_expiration_ms=60_000, expiry_interval_ms=10**9))
async def test_a_transactional_id_is_loaded_again_after_any_failed_step(
    broker: Broker, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = broker.coordinator.led
    await broker.init()
    await broker.init("beside")
    in_transaction = step in ("EndTxn", "AbortTimedOut", "Stored", "NotStored", "MarkersSent", "RetryTimer")
    if in_transaction:
        assert await broker.add() is ErrorCode.NONE
    answer: ErrorCode | None = None
    match step:
        case "InitProducerId":
            _break(broker)
            with pytest.raises(CoordinatorLoadInProgress):
                await broker.init()
        case "AddPartitions":
            _break(broker)
            answer = await broker.add()
        case "EndTxn":
            _break(broker)
            with pytest.raises(CoordinatorLoadInProgress):
                await broker.commit()
        case "AbortTimedOut":
            await asyncio.sleep(61)
            _break(broker)
            await broker.coordinator.abort_timed_out()
        case "Expire":
            await asyncio.sleep(120)
            _break(broker)
            await broker.coordinator.expire()
        case "Stored" | "NotStored":
            broker.log.hold.clear()
            asked = asyncio.ensure_future(broker.add(partitions=OTHER))
            await asyncio.sleep(0.1)
            _break(broker, durable=step == "NotStored")
            broker.log.failing = StorageError() if step == "NotStored" else None
            broker.log.hold.set()
            answer = await asked
            broker.log.failing = None
        case _:
            failing = ErrorCode.NOT_LEADER_OR_FOLLOWER if step == "RetryTimer" else ErrorCode.NONE
            broker.markers.errors = dict.fromkeys(WEB, failing)
            broker.markers.hold.clear()
            await broker.commit()
            if step == "MarkersSent":
                _break(broker)
            broker.markers.hold.set()
            await asyncio.sleep(0.05)
            if step == "RetryTimer":
                runtime = broker.coordinator.led.shard_of("app").find("app")
                assert runtime is not None
                runtime.machine.pending = None  # what the retry needs
                await asyncio.sleep(0.2)
            broker.markers.errors = {}
    assert answer in (None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    await asyncio.sleep(0.5)
    await loaded.wait_until_loaded()
    if step in ("MarkersSent", "RetryTimer"):
        await broker.until(TransactionState.COMPLETE_COMMIT)
    elif in_transaction and step != "AbortTimedOut":
        assert await _retried(lambda: broker.add(partitions=WEB | OTHER)) is ErrorCode.NONE
        assert (await broker.commit()).error is ErrorCode.NONE
    elif step == "AbortTimedOut":
        await broker.coordinator.abort_timed_out()
        await broker.until(TransactionState.COMPLETE_ABORT)
    elif step == "InitProducerId":
        assert (await broker.init()).error is ErrorCode.NONE
    elif step == "AddPartitions":
        assert await _retried(broker.add) is ErrorCode.NONE
    assert (await broker.init("beside")).error is ErrorCode.NONE
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1, errors
    assert "'app'" in errors[0]
    assert step in errors[0]


async def test_a_transactional_id_that_cannot_be_loaded_leaves_the_others_alone(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    await broker.init()
    await broker.init("beside")
    found = broker.coordinator.describe("app")
    contradictory = records.transaction_value(replace(found, started_wall_ms=5))
    broker.log.put(0, [(records.transaction_key("app"), contradictory)])
    broker.log.epoch = 2  # another broker led meanwhile
    await broker.lead()
    with pytest.raises(CoordinatorLoadInProgress):
        await broker.init()
    assert await broker.add() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert (await broker.init("beside")).error is ErrorCode.NONE
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 1
