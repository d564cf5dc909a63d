"""Fetches that wait, against a whole broker in this process: which partitions are read, and when they respond."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import cast

import pytest

from ottla.broker.fetch.delayed_fetch import DelayedFetch
from ottla.broker.handlers import fetch as fetch_handler
from ottla.broker.handlers import produce as produce_handler
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode
from ottla.core.ids import TopicPartition
from ottla.net.connection import PendingResponse
from ottla.security.authorizer import AclAuthorizer
from ottla.security.config import AuthorizerConfig
from ottla.storage.log.segment_list import SegmentList
from ottla.testing.cluster import BrokerHandlers
from ottla.testing.requests import request_to
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.generated import create_topics
from ottla.wire.generated.fetch import FetchResponse
from ottla.wire.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.wire.headers import parse_response_header
from ottla.wire.hot.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchTopic
from tests.support.batches import Written, batch
from tests.support.hot_messages import CollectedResponse, hot_produce_request
from tests.support.waiting import until

pytestmark = pytest.mark.simulated_time

FETCH_VERSION, PRODUCE_VERSION = 12, 9
PARTITIONS = 20


def context(server: BrokerHandlers, version: int) -> Request:
    return request_to(server.services, version)


async def fetch(
    server: BrokerHandlers,
    *,
    session: tuple[int, int] = (0, -1),
    offsets: dict[int, int] | None = None,
    max_wait_ms: int = 10_000,
    min_bytes: int = 1,
    throttle_time_ms: int = 0,
) -> CollectedResponse:
    """Ask for partitions from some offsets; all from their start if none are given."""
    request = FetchRequest()
    request.session_id, request.session_epoch = session
    request.max_wait_ms, request.min_bytes = max_wait_ms, min_bytes
    asked = dict.fromkeys(range(PARTITIONS), 0) if offsets is None else offsets
    partitions = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        for index, offset in asked.items()
    ]
    request.topics.append(FetchTopic("t", NO_TOPIC_ID, partitions))
    collected = CollectedResponse()
    collected.pending.throttle_time_ms = throttle_time_ms
    await begin(context(server, FETCH_VERSION), request, collected.pending)
    return collected


async def begin_short(ctx: Request, request: FetchRequest, response: PendingResponse) -> None:
    assert fetch_handler.handle(ctx, request, response) is None


async def begin_long(ctx: Request, request: FetchRequest, response: PendingResponse) -> None:
    """Serve the request in slices, as if it had many partitions."""
    session, wanted = ctx.services.fetch_sessions.resolve(request, ctx.identity, by_id=False, now=0)
    long = DelayedFetch(ctx.services, FETCH_VERSION, ctx.listener, request, session, wanted, response)
    if (rest := await long.serve_in_slices(ctx)) is not None:
        LEFT.append(asyncio.create_task(rest))


LEFT: list[asyncio.Task[None]] = []
begin = begin_short


@pytest.fixture(autouse=True, params=[begin_short, begin_long], ids=["short", "long"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with both forms of the operation."""
    monkeypatch.setattr(sys.modules[__name__], "begin", request.param)
    LEFT.clear()


def produce(server: BrokerHandlers, index: int, size: int = 100) -> CollectedResponse:
    records = batch([Written(bytes(size))], base_timestamp_ms=server.services.clock.wall_ms())
    topic = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=index, records=records)])
    request = hot_produce_request(ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[topic]), PRODUCE_VERSION)
    collected = CollectedResponse()
    produce_handler.handle(context(server, PRODUCE_VERSION), request, collected.pending)
    return collected


async def response_of(collected: CollectedResponse) -> FetchResponse:
    frame = await asyncio.wait_for(collected.frame(), 20)
    _, at = parse_response_header(frame, ApiKey.FETCH, FETCH_VERSION)
    found = codec.decode_response(ApiKey.FETCH, FETCH_VERSION, frame, at)
    assert isinstance(found, FetchResponse)
    return found


def sizes(response: FetchResponse) -> dict[int, int]:
    """The bytes of records of each partition in a response."""
    return {part.partition_index: len(part.records or b"") for topic in response.responses for part in topic.partitions}


def watchers(server: BrokerHandlers) -> int:
    return sum(len(partition.watchers) for partition in server.services.replicas.partitions.values())


async def until_found(server: BrokerHandlers, size: int) -> None:
    """Wait until the only fetch has found so many bytes; it completes in the turn in which they are enough."""
    partitions = server.services.replicas.partitions.values()
    (waiting,) = {watcher for partition in partitions for watcher in partition.watchers}
    assert isinstance(waiting, DelayedFetch)
    await until(lambda: waiting._bytes >= size)


@pytest.fixture
async def server(broker: BrokerHandlers) -> BrokerHandlers:
    """A broker with a topic."""
    new = create_topics.CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1)
    made = await broker.call("create_topics", 5, create_topics.CreateTopicsRequest(topics=[new], timeout_ms=20_000))
    assert not made.topics[0].error_code
    return broker


async def test_a_topic_that_was_unknown_is_not_taken_for_one_that_the_client_may_read(server: BrokerHandlers) -> None:
    services, ctx = server.services, context(server, FETCH_VERSION + 1)
    ctx.authorizer = AclAuthorizer(services.cluster, AuthorizerConfig())
    view = services.cluster.current
    request = FetchRequest()
    request.session_epoch = -1
    request.topics.append(FetchTopic("", view.topics["t"].topic_id.bytes, [FetchPartition(partition=0)]))
    denied = []
    for current in (replace(view, topic_by_id={}), view):
        services.cluster.current = current
        session, wanted = services.fetch_sessions.resolve(request, ctx.identity, by_id=True, now=0)
        waiting = DelayedFetch(services, ctx.api_version, ctx.listener, request, session, wanted, ctx.pending)
        waiting.authorize(ctx)
        denied.append(waiting._denied)
    assert denied == [None, {0}]


async def test_a_waiting_fetch_gets_the_records_of_the_partition_that_moved(server: BrokerHandlers) -> None:
    waiting = await fetch(server)
    assert not waiting.is_sent
    assert watchers(server) == PARTITIONS
    await produce(server, 7).frame()
    found = sizes(await response_of(waiting))
    assert [index for index, size in found.items() if size] == [7]
    assert len(found) == PARTITIONS, "without a session all partitions are in the response"
    assert watchers(server) == 0


async def test_a_waiting_fetch_adds_up_the_bytes_of_all_partitions_until_they_are_enough(
    server: BrokerHandlers,
) -> None:
    waiting = await fetch(server, min_bytes=1500)
    for count, index in enumerate((3, 4, 3), start=1):
        await produce(server, index, size=400).frame()
        await until_found(server, 400 * count)
        assert not waiting.is_sent
    await produce(server, 5, size=400).frame()
    found = sizes(await response_of(waiting))
    assert {index for index, size in found.items() if size} == {3, 4, 5}
    assert found[3] > 800, "both batches"


async def test_large_records_that_were_found_while_waiting_are_read_again_for_the_response(
    server: BrokerHandlers,
) -> None:
    waiting = await fetch(server, min_bytes=60_000)
    await produce(server, 1, size=40_000).frame()
    await until_found(server, 40_000)
    assert not waiting.is_sent
    await produce(server, 2, size=40_000).frame()
    found = sizes(await response_of(waiting))
    assert found[1] > 40_000
    assert found[2] > 40_000


async def test_at_the_deadline_a_fetch_responds_with_what_there_is(server: BrokerHandlers) -> None:
    waiting = await fetch(server, min_bytes=1 << 20, max_wait_ms=200)
    await produce(server, 1).frame()
    found = sizes(await response_of(waiting))
    assert found[1] > 100
    assert watchers(server) == 0


async def test_in_a_session_only_partitions_with_something_new_are_in_the_response(server: BrokerHandlers) -> None:
    first = await response_of(await fetch(server, session=(0, 0), max_wait_ms=0))
    assert len(sizes(first)) == PARTITIONS
    waiting = await fetch(server, session=(first.session_id, 1), offsets={})
    await produce(server, 9).frame()
    found = sizes(await response_of(waiting))
    assert list(found) == [9]
    again = await response_of(await fetch(server, session=(first.session_id, 2), offsets={9: 1}, max_wait_ms=0))
    assert sizes(again) == {}


async def test_a_response_has_the_throttle_time_that_its_request_was_given(server: BrokerHandlers) -> None:
    response = await response_of(await fetch(server, max_wait_ms=0, throttle_time_ms=7))
    assert response.throttle_time_ms == 7


async def test_a_partition_that_does_not_exist_ends_no_wait_unless_there_is_no_other(server: BrokerHandlers) -> None:
    unknown = PARTITIONS + 5
    waiting = await fetch(server, offsets={unknown: 0, 3: 0}, max_wait_ms=60_000)
    assert not waiting.is_sent
    await produce(server, 3).frame()
    response = await response_of(waiting)
    errors = {part.partition_index: part.error_code for part in response.responses[0].partitions}
    assert errors == {unknown: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 3: ErrorCode.NONE}
    assert sizes(response)[3] > 0
    alone = await response_of(await fetch(server, offsets={unknown: 0}, max_wait_ms=60_000))
    assert alone.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_deleted_topic_ends_a_wait_with_an_error(server: BrokerHandlers) -> None:
    waiting = await fetch(server)
    server.services.replicas.partition(TopicPartition("t", 2)).remove()
    response = await response_of(waiting)
    errors = {part.partition_index: part.error_code for part in response.responses[0].partitions}
    assert [index for index, code in errors.items() if code] == [2]


async def test_a_stop_ends_all_waits_and_lets_no_new_one_begin(server: BrokerHandlers) -> None:
    waiting = await fetch(server)
    server.services.delayed_operations.stop()
    await asyncio.wait_for(waiting.sent(), 5)
    assert (await fetch(server)).is_sent


async def test_a_fetch_whose_client_disconnects_releases_the_partitions(server: BrokerHandlers) -> None:
    if begin is begin_short:
        return  # it releases them at its deadline
    await fetch(server)
    assert watchers(server) == PARTITIONS
    await asyncio.sleep(0)  # the driver waits for it at once
    LEFT[0].cancel()
    await asyncio.wait(LEFT)
    assert watchers(server) == 0


class BrokenSegments:
    """Segments that meet a bug whenever they are read."""

    @property
    def checks(self) -> int:
        raise RuntimeError("a bug")


@pytest.mark.plain_form("puts a fault in place of a compiled class's attribute")
async def test_an_unexpected_error_while_a_fetch_waits_closes_the_connection_before_the_deadline(
    server: BrokerHandlers,
) -> None:
    waiting = await fetch(server)
    partition = server.services.replicas.partition(TopicPartition("t", 2))
    segments, partition.log.segment_list = partition.log.segment_list, cast("SegmentList", BrokenSegments())
    try:
        for watcher in tuple(partition.watchers):
            watcher.partition_changed(partition)
        await asyncio.sleep(0)
    finally:
        partition.log.segment_list = segments
    assert waiting.is_closed
    assert watchers(server) == 0
