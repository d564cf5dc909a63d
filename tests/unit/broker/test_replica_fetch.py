"""Fetches of a follower, against a real broker that leads: sessions, waits, and what one response has."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import cast

import pytest

from ottla.broker.fetch.replica_fetch import READS_MAX
from ottla.broker.handlers import fetch as fetch_handler
from ottla.broker.handlers import produce as produce_handler
from ottla.broker.requests.request import Request
from ottla.broker.sessions.replica_sessions import ReplicaSession
from ottla.controller.isr import ProposedIsr
from ottla.core.errors import ErrorCode
from ottla.core.ids import TopicPartition
from ottla.metadata_store import broker_registration, znodes
from ottla.replication.partition import Partition
from ottla.testing.cluster import TestCluster
from ottla.testing.requests import connection_without_socket, request_to
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.generated.fetch import FetchResponse, PartitionData
from ottla.wire.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.wire.headers import parse_response_header
from ottla.wire.hot.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from tests.support.async_tests import setup_of
from tests.support.batches import Written, batch
from tests.support.hot_messages import CollectedResponse, hot_produce_request

pytestmark = [pytest.mark.simulated_time, pytest.mark.brokers(1)]

FETCH_VERSION, PRODUCE_VERSION = 18, 9
LEADER, FOLLOWER = 1, 2


def partitions(count: int) -> pytest.MarkDecorator:
    """Give the topic of the fixture `follower` so many partitions, and the test their number."""
    return pytest.mark.parametrize(
        "partitions", [pytest.param(count, marks=pytest.mark.setup(partitions=count), id=str(count))]
    )


MANY, ONE_MORE = partitions(READS_MAX + 30), partitions(READS_MAX + 1)


class Follower:
    """A broker that is registered, and whose fetches the test sends."""

    def __init__(self, cluster: TestCluster, epoch: int) -> None:
        self.services = cluster.services(LEADER)
        self.epoch = epoch
        self.session_id, self.session_epoch = 0, 0
        self.connection = connection_without_socket()

    @classmethod
    async def register(cls, cluster: TestCluster, partitions: int = 2) -> Follower:
        """Register the broker, and create a topic that it follows."""
        endpoints = {"PLAINTEXT": znodes.Endpoint("127.0.0.1", 1)}
        broker = znodes.BrokerRegistration(FOLLOWER, endpoints, {"PLAINTEXT": "PLAINTEXT"}, None, 0)
        session = cluster.store.session()
        await broker_registration.register(session, [broker_registration.registration(broker)])
        node = await session.get(znodes.broker_path(FOLLOWER))
        assert node is not None
        await cluster.until(lambda: FOLLOWER in cluster.services(LEADER).cluster.current.brokers)
        assignments = [(index, (LEADER, FOLLOWER)) for index in range(partitions)]
        await cluster.services(LEADER).controller.create_topic("t", assignments=assignments)
        return cls(cluster, node.created)

    def partition(self, index: int = 0) -> Partition:
        return self.services.replicas.partition(TopicPartition("t", index))

    def fetch(
        self,
        offsets: dict[int, int] | None = None,
        *,
        last_epoch: int = -1,
        leader_epoch: int = 0,
        max_wait_ms: int = 10_000,
        max_bytes: int = 1 << 20,
        broker_epoch: int | None = None,
        high_watermark: int = (1 << 63) - 1,
        log_start: int = 0,
    ) -> CollectedResponse:
        """Send the next request of the session, which names these partitions."""
        request = FetchRequest()
        request.replica_state = ReplicaState(
            replica_id=FOLLOWER, replica_epoch=self.epoch if broker_epoch is None else broker_epoch
        )
        request.session_id, request.session_epoch = self.session_id, self.session_epoch
        request.max_wait_ms, request.min_bytes, request.max_bytes = max_wait_ms, 1, max_bytes
        topic_id = self.services.cluster.current.topics["t"].topic_id.bytes
        named = [
            FetchPartition(
                partition=index,
                current_leader_epoch=leader_epoch,
                fetch_offset=offset,
                last_fetched_epoch=last_epoch,
                log_start_offset=log_start,
                partition_max_bytes=max_bytes,
                high_watermark=high_watermark,
            )
            for index, offset in (offsets or {}).items()
        ]
        if named:
            request.topics.append(FetchTopic("", topic_id, named))
        self.session_epoch += 1
        collected = CollectedResponse()
        assert fetch_handler.handle(self._context(FETCH_VERSION), request, collected.pending) is None
        return collected

    async def open_session(self, offsets: dict[int, int]) -> dict[int, PartitionData]:
        """Send the first request."""
        response = await response_of(self.fetch(offsets))
        assert response.error_code == ErrorCode.NONE
        assert response.session_id
        self.session_id = response.session_id
        return partitions_of(response)

    @property
    def session(self) -> ReplicaSession:
        assert self.services.replica_sessions is not None
        return self.services.replica_sessions._sessions[self.session_id]

    def produce(self, index: int = 0, *, acks: int = -1, size: int = 100) -> CollectedResponse:
        records = batch([Written(bytes(size))], base_timestamp_ms=self.services.clock.wall_ms())
        topic = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=index, records=records)])
        request = hot_produce_request(ProduceRequest(acks=acks, timeout_ms=20_000, topic_data=[topic]), PRODUCE_VERSION)
        collected = CollectedResponse()
        produce_handler.handle(self._context(PRODUCE_VERSION), request, collected.pending)
        return collected

    def _context(self, version: int) -> Request:
        return request_to(self.services, version, connection=self.connection)


async def response_of(collected: CollectedResponse) -> FetchResponse:
    frame = await asyncio.wait_for(collected.frame(), 10)
    _, at = parse_response_header(frame, ApiKey.FETCH, FETCH_VERSION)
    return cast("FetchResponse", codec.decode_response(ApiKey.FETCH, FETCH_VERSION, frame, at))


def partitions_of(response: FetchResponse) -> dict[int, PartitionData]:
    return {part.partition_index: part for topic in response.responses for part in topic.partitions}


def is_answered(collected: CollectedResponse) -> bool:
    return collected.pending.parts is not None


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
async def follower(request: pytest.FixtureRequest, cluster: TestCluster) -> Follower:
    return await Follower.register(cluster, setup_of(request).get("partitions", 2))


async def test_an_append_ends_the_wait_and_the_next_position_confirms_it(follower: Follower) -> None:
    first = await follower.open_session({0: 0, 1: 0})
    assert {index: part.high_watermark for index, part in first.items()} == {0: 0, 1: 0}
    waiting = follower.fetch()
    await turns()
    assert not is_answered(waiting)
    assert not waiting.is_busy_polled  # its next request comes when it has written the records
    produced = follower.produce()
    found = partitions_of(await response_of(waiting))
    assert found.keys() == {0}
    assert len(found[0].records or b"") > 100
    assert follower.partition().high_watermark == 0
    assert not is_answered(produced)
    await follower_flushed(follower)
    again = follower.fetch()  # nothing is named: nothing is sent twice
    await turns()
    assert not is_answered(again)
    confirming = follower.fetch({0: 1}, last_epoch=0)
    assert is_answered(again)  # by the request after it
    await turns()
    assert follower.partition().high_watermark == 1
    assert is_answered(produced)
    assert not is_answered(confirming)


async def follower_flushed(follower: Follower, index: int = 0) -> None:
    """Wait until the leader's own log is durable."""
    partition = follower.partition(index)
    while partition.log.flushed_offset < partition.log.end_offset:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_a_follower_reads_what_is_not_replicated_yet(follower: Follower) -> None:
    follower.produce(acks=1)
    found = await follower.open_session({0: 0})
    assert found[0].records
    assert found[0].high_watermark == 0


@pytest.mark.setup(partitions=20)
async def test_only_what_has_news_is_read(follower: Follower) -> None:
    await follower.open_session(dict.fromkeys(range(20), 0))
    assert not follower.session.news
    follower.fetch()
    follower.produce(7, acks=1)
    assert [each.asked.partition for each in follower.session.news] == [7]
    await turns()
    assert not follower.session.news
    follower.produce(7, acks=1)  # the follower has to name its next position first
    assert not follower.session.news


async def test_a_moved_high_watermark_is_sent_when_the_wait_ends(follower: Follower) -> None:
    await follower.open_session({0: 0, 1: 0})
    follower.produce(acks=1)
    waiting = follower.fetch()
    await response_of(waiting)
    await follower_flushed(follower)
    waiting = follower.fetch({0: 1}, last_epoch=0, max_wait_ms=200)
    await turns()
    assert follower.partition().high_watermark == 1
    assert not is_answered(waiting)
    found = partitions_of(await response_of(waiting))
    assert {index: (part.high_watermark, part.records or b"") for index, part in found.items()} == {0: (1, b"")}
    assert not partitions_of(await response_of(follower.fetch(max_wait_ms=50)))  # it is known now


@pytest.mark.setup(partitions=1)
async def test_a_high_watermark_that_a_follower_could_not_use_is_sent_again(follower: Follower) -> None:
    await follower.open_session({0: 0})
    follower.produce(acks=1)
    await response_of(follower.fetch())
    await follower_flushed(follower)
    sent = partitions_of(await response_of(follower.fetch({0: 1}, last_epoch=0, max_wait_ms=50)))
    assert sent[0].high_watermark == 1
    dropped = follower.fetch({0: 1}, last_epoch=0, max_wait_ms=50, high_watermark=0)
    assert partitions_of(await response_of(dropped))[0].high_watermark == 1
    known = follower.fetch({0: 1}, last_epoch=0, max_wait_ms=50, high_watermark=1)
    assert not partitions_of(await response_of(known))


@pytest.mark.setup(partitions=1)
async def test_a_log_start_that_a_follower_could_not_use_is_sent_again(follower: Follower) -> None:
    """Otherwise DeleteRecords waits for it until there is a new record, and deleted records return after a fail-over."""
    await follower.open_session({0: 0})
    follower.produce(acks=1)
    await response_of(follower.fetch())
    await follower_flushed(follower)
    await response_of(follower.fetch({0: 1}, last_epoch=0, max_wait_ms=50))
    assert follower.partition().delete_records(1) == 1
    sent = partitions_of(await response_of(follower.fetch(max_wait_ms=50)))
    assert sent[0].log_start_offset == 1
    dropped = follower.fetch({0: 1}, last_epoch=0, max_wait_ms=50)
    assert partitions_of(await response_of(dropped))[0].log_start_offset == 1
    known = follower.fetch({0: 1}, last_epoch=0, max_wait_ms=50, log_start=1)
    assert not partitions_of(await response_of(known))
    assert follower.partition().low_watermark == 1


async def test_a_diverging_log_is_reported_and_changes_nothing(follower: Follower) -> None:
    follower.produce(acks=1)
    await follower_flushed(follower)
    found = await follower.open_session({0: 5})
    assert found[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    response = await response_of(follower.fetch({0: 5}, last_epoch=0))
    (data,) = partitions_of(response).values()
    assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (0, 1)
    state = follower.partition().leader_state
    assert state is not None
    assert state.followers[FOLLOWER].end_offset == -1
    assert follower.partition().high_watermark == 0


async def test_stale_epochs_are_refused(follower: Follower) -> None:
    found = await follower.open_session({0: 0})
    assert found[0].error_code == ErrorCode.NONE
    response = await response_of(follower.fetch({0: 0}, leader_epoch=1))
    assert partitions_of(response)[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    response = await response_of(follower.fetch({0: 0}, broker_epoch=follower.epoch - 1))
    assert partitions_of(response)[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_the_log_of_a_deleted_topic_of_the_same_name_is_not_served(follower: Follower) -> None:
    follower.partition(1).log.set_topic_id(uuid.UUID(int=9))  # as long as the deletion is not applied here
    found = await follower.open_session({0: 0, 1: 0})
    assert [found[index].error_code for index in (0, 1)] == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID]


async def test_the_end_of_the_term_ends_the_wait(follower: Follower) -> None:
    await follower.open_session({0: 0, 1: 0})
    waiting = follower.fetch()
    follower.partition(1).remove()
    found = partitions_of(await response_of(waiting))
    assert {index: part.error_code for index, part in found.items()} == {1: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    again = follower.fetch()  # the error is reported once
    await turns()
    assert not is_answered(again)


async def test_a_session_ends_with_its_connection(follower: Follower) -> None:
    await follower.open_session({0: 0, 1: 0})
    waiting = follower.fetch()
    partition = follower.partition()
    assert partition.end_watchers
    assert partition.watchers
    follower.connection.connection_lost(None)
    assert is_answered(waiting)
    assert not partition.end_watchers
    assert not partition.watchers
    assert follower.services.replica_sessions is not None
    assert not len(follower.services.replica_sessions)
    response = await response_of(follower.fetch())
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_request_out_of_turn_is_refused(follower: Follower) -> None:
    await follower.open_session({0: 0})
    follower.session_epoch += 1
    response = await response_of(follower.fetch())
    assert response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    follower.session_epoch = 0  # a new session of this connection replaces the old one
    await follower.open_session({0: 0})
    assert follower.services.replica_sessions is not None
    assert len(follower.services.replica_sessions) == 1


async def test_a_partition_without_space_in_a_response_is_in_the_next(follower: Follower) -> None:
    for index in range(2):
        follower.produce(index, acks=1, size=1000)
    request = {0: 0, 1: 0}
    response = await response_of(follower.fetch(request, max_bytes=1100))
    follower.session_id = response.session_id
    assert [index for index, part in partitions_of(response).items() if part.records] == [0]
    response = await response_of(follower.fetch(max_bytes=1100))
    assert [index for index, part in partitions_of(response).items() if part.records] == [1]


@MANY
async def test_a_response_reads_a_bounded_number_of_partitions(follower: Follower, partitions: int) -> None:
    await follower.open_session(dict.fromkeys(range(partitions), 0))
    assert len(follower.session.news) == 30
    follower.fetch()
    await turns()
    assert not follower.session.news


@pytest.mark.parametrize("is_rate_raised", [True, False], ids=["rate raised", "no longer throttled"])
@MANY
async def test_a_follower_that_is_held_back_in_many_partitions_is_not_answered_again_and_again(
    follower: Follower, partitions: int, *, is_rate_raised: bool
) -> None:
    services = follower.services
    topic_id = services.cluster.current.topics["t"].topic_id
    epoch = services.cluster.current.brokers[LEADER].epoch
    proposals = [ProposedIsr(topic_id, index, 0, 0, [(LEADER, epoch)]) for index in range(partitions)]
    await services.controller.alter_partitions(LEADER, epoch, proposals)
    quota = services.replicas.context.leader_quota
    quota.configure(10)
    unthrottled = follower.partition().log.config
    for index in range(partitions):
        partition = follower.partition(index)
        partition.reconfigure(replace(unthrottled, leader_throttled_replicas=("*",)))
        follower.produce(index, acks=1)
    await turns()
    await follower.open_session(dict.fromkeys(range(partitions), 0))
    await response_of(follower.fetch(max_wait_ms=0))
    waiting = follower.fetch(max_wait_ms=500)
    await turns()
    assert not is_answered(waiting)
    if is_rate_raised:
        quota.configure(1 << 40)
    else:
        for index in range(partitions):
            follower.partition(index).reconfigure(unthrottled)
    response = await response_of(follower.fetch() if is_rate_raised else waiting)
    assert len([each for each in partitions_of(response).values() if each.records]) == READS_MAX


@ONE_MORE
async def test_no_high_watermark_is_sent_for_a_position_that_was_not_read_yet(
    follower: Follower, partitions: int
) -> None:
    last = partitions - 1
    await follower.open_session(dict.fromkeys(range(partitions), 0))
    await response_of(follower.fetch(max_wait_ms=0))
    follower.produce(last, acks=1)
    await response_of(follower.fetch())
    await follower_flushed(follower, last)
    await response_of(follower.fetch({last: 1}, last_epoch=0, max_wait_ms=0))
    follower.partition(last).delete_records(1)
    positions = dict.fromkeys(range(last), 0) | {last: 5}
    assert last not in partitions_of(await response_of(follower.fetch(positions, last_epoch=0)))
    found = partitions_of(await response_of(follower.fetch()))
    assert (found[last].diverging_epoch.epoch, found[last].diverging_epoch.end_offset) == (0, 1)


async def test_a_stranger_gets_no_records(follower: Follower) -> None:
    await follower.services.controller.create_topic("alone", assignments=[(0, (LEADER,))])
    topic_id = follower.services.cluster.current.topics["alone"].topic_id.bytes
    request = FetchRequest()
    request.replica_state = ReplicaState(replica_id=FOLLOWER, replica_epoch=follower.epoch)
    named = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    request.topics.append(FetchTopic("", topic_id, [named]))
    collected = CollectedResponse()
    fetch_handler.handle(follower._context(FETCH_VERSION), request, collected.pending)
    (data,) = partitions_of(await response_of(collected)).values()
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (LEADER, 0)
    partition = follower.services.replicas.partition(TopicPartition("alone", 0))
    assert not partition.end_watchers  # a request without a session leaves nothing
