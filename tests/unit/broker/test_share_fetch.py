"""Share fetches and acknowledgements against a whole broker in this process: sessions, waiting, errors, restarts."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from ottla.broker.handlers import share_acknowledge as acknowledge_handler
from ottla.broker.handlers import share_fetch as fetch_handler
from ottla.broker.internal_topic_creation import create_if_absent
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode
from ottla.core.ids import SHARE_STATE_TOPIC
from ottla.internal_topics.machine_events import NO_TICKET
from ottla.records.batch import split
from ottla.replication.partition import Partition
from ottla.share_coordinator.coordinator import ShareCoordinator
from ottla.share_coordinator.machine import StateResult
from ottla.share_coordinator.records import SharePartitionKey
from ottla.share_partitions.acknowledgements import AcknowledgeType
from ottla.share_partitions.config import ShareConfig
from ottla.share_partitions.events import DeadLetters, NotPersisted, Persisted
from ottla.share_partitions.machine import PendingWrite
from ottla.share_partitions.partition_manager import SharePartitionManager
from ottla.share_partitions.share_partition import GroupSettings
from ottla.testing.cluster import BrokerHandlers
from ottla.testing.requests import connection_without_socket, request_to
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.generated import create_topics, incremental_alter_configs
from ottla.wire.generated import share_acknowledge as acknowledging
from ottla.wire.generated import share_fetch as fetching
from tests.support.batches import AT_MS, batch, numbered
from tests.support.waiting import until

OPTIONS = {
    "durability": "page-cache",
    "share.coordinator.state.topic.num.partitions": "2",
    "group.share.record.lock.duration.ms": "15000",
}

pytestmark = [pytest.mark.simulated_time, pytest.mark.options(OPTIONS)]
GAP, ACCEPT, RELEASE, REJECT, RENEW = (
    AcknowledgeType.GAP,
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.RENEW,
)


class ShareClient:
    """A consumer of a share group as its requests, without the group's protocol."""

    def __init__(
        self, server: BrokerHandlers, topic_id: uuid.UUID, member_id: str, *, version: int = 2, partition: int = 0
    ) -> None:
        self.server, self.topic_id, self.member_id, self.version = server, topic_id, member_id, version
        self.partition = partition
        self.epoch = 0
        self.connection = connection_without_socket()

    def context(self) -> Request:
        return request_to(self.server.services, self.version, connection=self.connection)

    async def fetch(
        self, *acknowledged: tuple[int, int, int], epoch: int | None = None, **more: Any
    ) -> fetching.ShareFetchResponse:
        batches = [
            fetching.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[kind])
            for first, last, kind in acknowledged
        ]
        partition = fetching.FetchPartition(partition_index=self.partition, acknowledgement_batches=batches)
        sent = self.epoch if epoch is None else epoch
        topics = [fetching.FetchTopic(topic_id=self.topic_id, partitions=[partition])] if sent == 0 or batches else []
        values = {
            "max_wait_ms": 150,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 500,
            "batch_size": 500,
            **more,
        }
        request = fetching.ShareFetchRequest(
            group_id="team", member_id=self.member_id, share_session_epoch=sent, topics=topics, **values
        )
        answer = await fetch_handler.handle(self.context(), request)
        codec.encode_response(ApiKey.SHARE_FETCH, self.version, answer)
        if not answer.error_code:
            self.epoch = sent + 1
        return answer

    async def acknowledge(self, first: int, last: int, *kinds: int, **more: Any) -> int:
        content = acknowledging.AcknowledgementBatch(
            first_offset=first, last_offset=last, acknowledge_types=list(kinds) or [ACCEPT]
        )
        partition = acknowledging.AcknowledgePartition(
            partition_index=self.partition, acknowledgement_batches=[content]
        )
        topics = [acknowledging.AcknowledgeTopic(topic_id=self.topic_id, partitions=[partition])]
        values = {"share_session_epoch": self.epoch, **more}
        request = acknowledging.ShareAcknowledgeRequest(
            group_id="team", member_id=self.member_id, topics=topics, **values
        )
        answer = await acknowledge_handler.handle(self.context(), request)
        self.epoch += 1
        return answer.error_code or answer.responses[0].partitions[0].error_code


def acquired(answer: fetching.ShareFetchResponse) -> list[tuple[int, int, int]]:
    assert answer.error_code == 0, answer
    return [
        (one.first_offset, one.last_offset, one.delivery_count)
        for topic in answer.responses
        for partition in topic.partitions
        for one in partition.acquired_records
    ]


def produce(partition: Partition, count: int) -> None:
    partition.append_as_leader(memoryview(bytearray(batch(numbered(count)))), acks=-1, now_ms=AT_MS)


class ShareBroker:
    """A broker with one topic whose share partition is initialized."""

    def __init__(self, server: BrokerHandlers) -> None:
        self.server = server
        services = server.services
        self.topic_id = services.cluster.current.topics["t"].topic_id
        self.partition = services.replicas.find("t", 0)
        self.key = SharePartitionKey("team", self.topic_id, 0)

    def client(self, name: str = "ada", *, version: int = 2) -> ShareClient:
        return ShareClient(self.server, self.topic_id, name, version=version)

    async def produce(self, count: int) -> None:
        produce(self.partition, count)
        assert self.partition.high_watermark == self.partition.log.end_offset


Scenario = Callable[[ShareBroker], Awaitable[None]]


@pytest.fixture
async def share_broker(broker: BrokerHandlers) -> ShareBroker:
    topic = create_topics.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    await broker.call("create_topics", 7, create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
    await create_if_absent(broker.services, SHARE_STATE_TOPIC)
    await broker.services.coordinators.share_states.led.wait_until_loaded()
    made = ShareBroker(broker)
    await broker.services.coordinators.share_states.initialize(made.key, 0, 0)
    return made


async def test_records_are_delivered_to_one_member_and_done_when_accepted(share_broker: ShareBroker) -> None:
    await share_broker.produce(10)
    ada, bob = share_broker.client("ada"), share_broker.client("bob")
    answer = await ada.fetch()
    assert acquired(answer) == [(0, 9, 1)]
    assert answer.acquisition_lock_timeout_ms == 15_000
    records = answer.responses[0].partitions[0].records
    assert isinstance(records, bytes)
    assert [header.last_offset for _, header in split(memoryview(records))] == [9]
    assert acquired(await bob.fetch()) == []
    assert await ada.acknowledge(0, 9) == ErrorCode.NONE
    summary = share_broker.server.services.coordinators.share_states.summary(share_broker.key).state
    assert summary is not None
    assert summary.delivery_complete_count == 10
    assert await ada.acknowledge(0, 9) == ErrorCode.NONE, "before the start: ignored"


async def test_accepted_records_are_not_delivered_after_a_restart_and_the_rest_is(
    broker: BrokerHandlers, share_broker: ShareBroker
) -> None:
    await share_broker.produce(10)
    ada = share_broker.client()
    await ada.fetch()
    assert await ada.acknowledge(2, 4) == ErrorCode.NONE
    await broker.restart()
    await broker.services.coordinators.share_states.led.wait_until_loaded()
    share_broker = ShareBroker(broker)
    assert acquired(await share_broker.client().fetch(max_wait_ms=5_000)) == [(0, 1, 1), (5, 9, 1)]


async def test_a_fetch_waits_for_new_records_and_for_released_ones(share_broker: ShareBroker) -> None:
    ada, bob = share_broker.client("ada"), share_broker.client("bob")
    waiting = asyncio.create_task(ada.fetch(max_wait_ms=10_000))
    await until(lambda: share_broker.partition.watchers)
    await share_broker.produce(3)
    assert acquired(await waiting) == [(0, 2, 1)]
    waiting = asyncio.create_task(bob.fetch(max_wait_ms=10_000))
    await until(lambda: share_broker.partition.watchers)
    assert await ada.acknowledge(1, 1, RELEASE) == ErrorCode.NONE
    assert acquired(await waiting) == [(1, 1, 2)]


async def test_a_lost_connection_releases_what_its_consumer_holds(share_broker: ShareBroker) -> None:
    await share_broker.produce(3)
    ada, bob = share_broker.client("ada"), share_broker.client("bob")
    assert acquired(await ada.fetch()) == [(0, 2, 1)]
    waiting = asyncio.create_task(bob.fetch(max_wait_ms=10_000))
    await until(lambda: share_broker.partition.watchers)
    ada.connection.connection_lost(None)
    assert acquired(await waiting) == [(0, 2, 2)]
    assert (await ada.fetch()).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND


class NoQueues:
    """Has no dead letter queue."""

    async def write(self, key: SharePartitionKey, source: Partition, letters: Sequence[DeadLetters]) -> None:
        raise AssertionError(f"{letters} of {key} are no dead letters: {source}")


class FailsOnce:
    """Reads states of share partitions; the first attempt fails."""

    def __init__(self, coordinator: ShareCoordinator) -> None:
        self._coordinator, self.reads = coordinator, 0

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> StateResult:
        self.reads += 1
        if self.reads == 1:
            raise OSError(5, "the disk failed")
        return await self._coordinator.read(key, leader_epoch)


async def test_a_share_partition_whose_state_could_not_be_read_is_loaded_again_by_the_next_fetch(
    share_broker: ShareBroker,
) -> None:
    services = share_broker.server.services
    failing: Any = FailsOnce(services.coordinators.share_states)
    manager = SharePartitionManager(
        ShareConfig(),
        persister=failing,
        dead_letters=NoQueues(),
        clock=services.clock,
        settings=lambda _group: GroupSettings(),
    )
    failed = manager.find_or_load(share_broker.key, share_broker.partition)
    await until(lambda: failed.failure is not None)
    assert failed.failure is not None
    assert failed.failure.code is ErrorCode.KAFKA_STORAGE_ERROR
    again = manager.find_or_load(share_broker.key, share_broker.partition)
    await until(lambda: again.is_loaded)
    await manager.close()


async def test_a_connection_of_many_sessions_holds_one_callback_and_ends_them_all(share_broker: ShareBroker) -> None:
    sessions = share_broker.server.services.coordinators.share_partitions.sessions
    ada, bob = share_broker.client("ada"), share_broker.client("bob")
    await bob.fetch(max_wait_ms=0)
    for number in range(20):
        ada.member_id = f"ada-{number % 10}"
        await ada.fetch(epoch=0, max_wait_ms=0)
    assert (len(sessions), len(ada.connection._when_lost)) == (11, 1)
    ada.connection.connection_lost(None)
    await until(lambda: len(sessions) == 1)
    assert sessions.find("team", "bob") is not None


async def test_acknowledgements_come_with_a_fetch_and_the_last_request_ends_the_session(
    share_broker: ShareBroker,
) -> None:
    await share_broker.produce(5)
    ada = share_broker.client()
    await ada.fetch()
    answer = await ada.fetch((0, 1, ACCEPT), (2, 2, REJECT))
    assert answer.responses[0].partitions[0].acknowledge_error_code == ErrorCode.NONE
    answer = await ada.fetch((0, 0, ACCEPT), (3, 3, 9))
    assert answer.responses[0].partitions[0].acknowledge_error_code == ErrorCode.INVALID_REQUEST
    assert (await ada.fetch(epoch=-1)).error_code == ErrorCode.NONE
    assert acquired(await share_broker.client("bob").fetch()) == [(3, 4, 2)]


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(7, ErrorCode.INVALID_SHARE_SESSION_EPOCH), (2, ErrorCode.INVALID_SHARE_SESSION_EPOCH), (1, ErrorCode.NONE)],
)
async def test_the_epoch_of_a_session_must_be_the_next(share_broker: ShareBroker, epoch: int, error: ErrorCode) -> None:
    ada = share_broker.client()
    assert (await ada.fetch(epoch=1)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    await ada.fetch()
    assert (await ada.fetch(epoch=epoch)).error_code == error


async def test_requests_outside_of_a_session_or_of_acquired_records_are_refused(share_broker: ShareBroker) -> None:
    await share_broker.produce(3)
    ada = share_broker.client()
    assert (await ada.fetch((0, 1, ACCEPT))).error_code == ErrorCode.INVALID_REQUEST, "the first acknowledges nothing"
    assert await share_broker.client().acknowledge(0, 0) == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert (await share_broker.client("x" * 37).fetch()).error_code == ErrorCode.INVALID_REQUEST
    assert (await ada.fetch(is_renew_ack=True)).error_code == ErrorCode.INVALID_REQUEST
    await ada.fetch()
    bob = share_broker.client("bob")
    await bob.fetch()
    assert await bob.acknowledge(0, 0) == ErrorCode.INVALID_RECORD_STATE
    assert await ada.acknowledge(0, 1, ACCEPT, ACCEPT, ACCEPT) == ErrorCode.INVALID_REQUEST
    assert await ada.acknowledge(0, 5) == ErrorCode.INVALID_REQUEST
    assert await ada.acknowledge(0, 0, RENEW) == ErrorCode.INVALID_REQUEST, "without is_renew_ack"
    assert await ada.acknowledge(0, 0, RENEW, is_renew_ack=True) == ErrorCode.NONE
    unknown = ShareClient(share_broker.server, uuid.uuid4(), "eve")
    answer = await unknown.fetch()
    assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_a_share_partition_without_state_is_refused(share_broker: ShareBroker) -> None:
    await share_broker.server.services.coordinators.share_states.delete(share_broker.key)
    answer = await share_broker.client().fetch(max_wait_ms=1_000)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(("strategy", "first"), [("earliest", [(0, 4, 1)]), ("latest", []), ("by_duration:PT1H", [])])
async def test_a_group_begins_where_its_setting_determines(
    share_broker: ShareBroker, strategy: str, first: list[tuple[int, int, int]]
) -> None:
    await share_broker.produce(5)
    await share_broker.server.services.coordinators.share_states.initialize(share_broker.key, 1, -1)
    config = incremental_alter_configs.AlterableConfig(
        name="share.auto.offset.reset", config_operation=0, value=strategy
    )
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=32, resource_name="team", configs=[config])
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
    await share_broker.server.call("incremental_alter_configs", 1, request)
    assert acquired(await share_broker.client().fetch(max_wait_ms=300)) == first


async def test_altered_offsets_fence_the_share_partition_in_memory(share_broker: ShareBroker) -> None:
    await share_broker.produce(10)
    ada = share_broker.client()
    assert acquired(await ada.fetch()) == [(0, 9, 1)]
    await share_broker.server.services.coordinators.share_states.initialize(share_broker.key, 1, 5)
    assert await ada.acknowledge(0, 9) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert acquired(await ada.fetch(max_wait_ms=1_000)) == [(5, 9, 1)]


# ---- A step that fails after it began to change the state


def _break(broker: ShareBroker) -> None:
    """Let the state contradict itself, so that the check after the next event fails."""
    share = broker.server.services.coordinators.share_partitions.find(broker.key)
    assert share is not None
    assert share._machine is not None
    share._machine.ranges()[0].delivery_count = -1


async def _all_of(client: ShareClient, offsets: set[int]) -> None:
    """Fetch and accept, again after errors as a client does, until these offsets were delivered."""
    deadline = asyncio.get_running_loop().time() + 20
    while offsets:
        assert asyncio.get_running_loop().time() < deadline, f"not delivered: {offsets}"
        answer = await client.fetch()
        assert answer.error_code == 0
        codes = {partition.error_code for topic in answer.responses for partition in topic.partitions}
        assert codes <= {ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER}
        for first, last, _ in acquired(answer):
            if await client.acknowledge(first, last) == ErrorCode.NONE:
                offsets -= set(range(first, last + 1))


@pytest.mark.parametrize(
    "event", ["Acquire", "Acknowledge", "Release", "LocksDue", "LogStartMoved", "Persisted", "NotPersisted"]
)
async def test_a_share_partition_is_loaded_again_after_any_failed_step(
    share_broker: ShareBroker, event: str, caplog: pytest.LogCaptureFixture
) -> None:
    manager = share_broker.server.services.coordinators.share_partitions
    await share_broker.produce(4)
    ada, bob = share_broker.client("ada"), share_broker.client("bob")
    await bob.fetch(max_wait_ms=0, max_records=0)
    await ada.fetch()
    share = manager.find(share_broker.key)
    assert share is not None
    match event:
        case "Acquire":
            await share_broker.produce(1)
            _break(share_broker)
            assert acquired(await ada.fetch()) == []
        case "Acknowledge":
            _break(share_broker)
            assert await ada.acknowledge(0, 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        case "Release":
            _break(share_broker)
            await ada.fetch(epoch=-1)
            ada.epoch = 0
        case "LocksDue":
            _break(share_broker)
            share._locks_due(share._timer_ms)
        case "LogStartMoved":
            _break(share_broker)
            share_broker.partition.delete_records(1)
            await ada.fetch(max_wait_ms=0)
        case _:
            _break(share_broker)
            share._machine._pending[7] = PendingWrite(NO_TICKET)  # type: ignore[union-attr]
            result = Persisted(7) if event == "Persisted" else NotPersisted(7, ErrorCode.NOT_COORDINATOR, "")
            share._feed(result)
    assert share.failure is not None
    await _all_of(ada, set(range(share_broker.partition.log.log_start_offset, share_broker.partition.log.end_offset)))
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1, errors
    assert event in errors[0]


async def test_a_share_partition_that_fails_again_is_loaded_later(
    share_broker: ShareBroker, caplog: pytest.LogCaptureFixture
) -> None:
    await share_broker.produce(1)
    ada = share_broker.client()
    loop = asyncio.get_running_loop()
    for _ in range(2):
        while not acquired(await ada.fetch()):
            pass
        _break(share_broker)
        await ada.acknowledge(0, 0)
    began_s = loop.time()
    await _all_of(ada, {0})
    assert loop.time() - began_s > 0.8
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [error.exc_info is not None for error in errors] == [True, False]
