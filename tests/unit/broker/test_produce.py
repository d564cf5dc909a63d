"""Produce against a whole broker in this process: when it is answered, and what is visible then."""

from __future__ import annotations

import asyncio
import time

import pytest

from ottla.broker.handlers import fetch, produce
from ottla.broker.requests.request import Request
from ottla.core.error_codes import ErrorCode
from ottla.core.ids import TopicPartition
from ottla.testing.cluster import BrokerHandlers
from ottla.testing.requests import request_to
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.errors import MalformedRequest
from ottla.wire.generated import create_topics, find_coordinator, list_offsets, offset_commit
from ottla.wire.generated.fetch import PartitionData as FetchPartitionData
from ottla.wire.generated.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from ottla.wire.headers import parse_response_header
from ottla.wire.hot.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.support.async_tests import setup_of
from tests.support.batches import batch, numbered
from tests.support.hot_messages import CollectedResponse, hot_produce_request

pytestmark = pytest.mark.simulated_time

VERSION, FETCH_VERSION = 9, 11
ACKS_ALL, ACKS_LEADER, ACKS_NONE = -1, 1, 0
LATEST = -1


def context_of(server: BrokerHandlers, version: int) -> Request:
    return request_to(server.services, version)


def sent(
    server: BrokerHandlers, topic: str, *, acks: int, timeout_ms: int, is_long: bool = False, throttle_time_ms: int = 0
) -> CollectedResponse:
    """Send a request; with `is_long` serve it as one of many partitions is served."""
    part = PartitionProduceData(index=0, records=batch(numbered(1), base_timestamp_ms=server.services.clock.wall_ms()))
    request = ProduceRequest(
        acks=acks, timeout_ms=timeout_ms, topic_data=[TopicProduceData(name=topic, partition_data=[part])]
    )
    response = CollectedResponse()
    response.pending.throttle_time_ms = throttle_time_ms
    context = context_of(server, VERSION)
    if is_long:
        body = bytearray(codec.encode_request(ApiKey.PRODUCE, VERSION, request))
        task = asyncio.create_task(produce.handle_long(context, body, 0, response.pending))
        response.connection.cancel_when_lost(task)  # and holds it
    else:
        produce.handle(context, hot_produce_request(request, VERSION), response.pending)
    return response


async def answered(response: CollectedResponse) -> PartitionProduceResponse:
    (topic,) = (await asyncio.wait_for(response.produce(VERSION), 20)).responses
    (part,) = topic.partition_responses
    return part


async def latest_offset(server: BrokerHandlers, topic: str) -> int:
    asked = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    request = list_offsets.ListOffsetsRequest(
        replica_id=-1, topics=[list_offsets.ListOffsetsTopic(name=topic, partitions=[asked])]
    )
    answer = await server.call("list_offsets", 5, request)
    offset: int = answer.topics[0].partitions[0].offset
    return offset


@pytest.fixture
async def server(request: pytest.FixtureRequest, broker: BrokerHandlers) -> BrokerHandlers:
    """A broker with one topic of one partition."""
    config = setup_of(request).get("config", {})
    configs = [create_topics.CreatableTopicConfig(name=key, value=value) for key, value in config.items()]
    topic = create_topics.CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=configs)
    made = await broker.call("create_topics", 5, create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=20_000))
    assert not made.topics[0].error_code, made
    return broker


async def fetched(server: BrokerHandlers, topic: str, offset: int) -> FetchPartitionData:
    """Fetch from one partition without waiting for records."""
    request = FetchRequest()
    request.max_wait_ms = 0
    wanted = FetchPartition(partition=0, current_leader_epoch=-1, fetch_offset=offset, partition_max_bytes=1 << 20)
    request.topics.append(FetchTopic(topic, bytes(16), [wanted]))
    response = CollectedResponse()
    fetch.handle(context_of(server, FETCH_VERSION), request, response.pending)
    frame = await asyncio.wait_for(response.frame(), 20)
    _, at = parse_response_header(frame, ApiKey.FETCH, FETCH_VERSION)
    answer = codec.decode_response(ApiKey.FETCH, FETCH_VERSION, frame, at)
    found: FetchPartitionData = answer.responses[0].partitions[0]
    return found


async def test_after_the_answer_to_acks_1_list_offsets_and_fetches_see_the_record(server: BrokerHandlers) -> None:
    for count in range(1, 21):
        response = sent(server, "t", acks=ACKS_LEADER, timeout_ms=20_000)
        assert (await answered(response)).error_code == ErrorCode.NONE
        found = await fetched(server, "t", count - 1)
        assert found.high_watermark == count
        assert found.records
        assert await latest_offset(server, "t") == count


class _BusyDisk:
    """A job that keeps the group commit's thread busy, as a fsync does that takes longer than any of the timeouts."""

    def run(self) -> None:
        time.sleep(0.01)

    def finished(self) -> None:
        pass


@pytest.mark.parametrize("acks", [ACKS_LEADER, ACKS_ALL])
@pytest.mark.parametrize("timeout_ms", [1, 0, -1, -(2**31)])
async def test_a_short_timeout_does_not_fail_a_write_to_the_only_in_sync_replica(
    server: BrokerHandlers, acks: int, timeout_ms: int
) -> None:
    (commit,) = server.services.replicas.group_commits.values()
    for _ in range(3):
        commit._executor.submit(_BusyDisk())
        response = sent(server, "t", acks=acks, timeout_ms=timeout_ms)
        part = await answered(response)
        assert part.error_code == ErrorCode.NONE
        assert await latest_offset(server, "t") == part.base_offset + 1


@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.parametrize("acks", [ACKS_LEADER, ACKS_ALL])
async def test_a_producer_that_waits_is_answered_when_the_partition_is_removed(
    server: BrokerHandlers, acks: int, is_long: bool
) -> None:
    partition = server.services.replicas.partition(TopicPartition("t", 0))
    response = sent(server, "t", acks=acks, timeout_ms=1, is_long=is_long)
    while not len(partition.waiters):  # noqa: ASYNC110 - a task appends, and the flush must not be over
        await asyncio.sleep(0)
    partition.remove()
    assert (await answered(response)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("is_long", [False, True])
async def test_a_response_has_the_throttle_time_that_its_request_was_given(
    server: BrokerHandlers, is_long: bool
) -> None:
    response = sent(server, "t", acks=ACKS_ALL, timeout_ms=20_000, is_long=is_long, throttle_time_ms=7)
    assert (await asyncio.wait_for(response.produce(VERSION), 20)).throttle_time_ms == 7


@pytest.mark.parametrize("is_long", [False, True])
async def test_a_refusal_with_acks_0_closes_the_connection(server: BrokerHandlers, is_long: bool) -> None:
    response = sent(server, "unknown", acks=ACKS_NONE, timeout_ms=20_000, is_long=is_long)
    if is_long:  # the driver closes it
        with pytest.raises(MalformedRequest, match="acks=0"):
            await asyncio.gather(*response.connection._tasks)
    else:
        assert response.is_closed


@pytest.mark.setup(config={"durability": "page-cache"})
async def test_with_durability_page_cache_acks_1_does_not_wait_for_the_disk(server: BrokerHandlers) -> None:
    response = sent(server, "t", acks=ACKS_LEADER, timeout_ms=20_000)
    assert response.is_sent
    assert await latest_offset(server, "t") == 1


@pytest.mark.options({"min.insync.replicas": "2"})
async def test_one_broker_with_min_insync_replicas_2_accepts_acks_all_and_offset_commits(
    server: BrokerHandlers,
) -> None:
    response = sent(server, "t", acks=ACKS_ALL, timeout_ms=20_000)
    assert (await answered(response)).error_code == ErrorCode.NONE
    await server.call("find_coordinator", 4, find_coordinator.FindCoordinatorRequest(coordinator_keys=["g"]))
    assert await commit_offset(server, "g", "t") == ErrorCode.NONE


async def commit_offset(server: BrokerHandlers, group: str, topic: str) -> int:
    """Commit an offset once the group's coordinator is loaded."""
    part = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    request = offset_commit.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[offset_commit.OffsetCommitRequestTopic(name=topic, partitions=[part])],
    )
    passing = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}
    while True:
        answer = await server.call("offset_commit", 8, request)
        code: int = answer.topics[0].partitions[0].error_code
        if code not in passing:
            return code
        await asyncio.sleep(0.01)
