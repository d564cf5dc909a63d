"""What a broker answers about partitions that another one leads: hints, follower reads, offsets after an election."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast
from uuid import UUID

import pytest

from ottla.broker.fetch.replica_selector import RACK_AWARE_SELECTOR
from ottla.broker.handlers import fetch as fetch_handler
from ottla.broker.handlers import produce as produce_handler
from ottla.broker.requests.request import Request
from ottla.core.errors import ErrorCode
from ottla.testing.cluster import TestCluster
from ottla.testing.requests import request_to
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.generated import fetch as messages
from ottla.wire.generated.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.wire.generated.fetch import FetchResponse
from ottla.wire.generated.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.wire.generated.metadata import MetadataRequest, MetadataRequestTopic
from ottla.wire.generated.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from ottla.wire.headers import parse_response_header
from ottla.wire.hot.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.support.batches import Written, batch
from tests.support.hot_messages import CollectedResponse, hot_produce_request
from tests.support.waiting import until
from tests.unit.broker.test_replicated_topic import create, equal_replicas, in_sync, leader_of, read, replica, send

pytestmark = pytest.mark.simulated_time

FETCH_VERSION, PRODUCE_VERSION = 17, 12
RACKS: Mapping[int, Mapping[str, str]] = {node_id: {"broker.rack": f"rack-{node_id}"} for node_id in (1, 2, 3)}


def context(cluster: TestCluster, node_id: int, version: int) -> Request:
    return request_to(cluster.services(node_id), version)


async def fetch(
    cluster: TestCluster,
    node_id: int,
    *,
    offset: int = 0,
    leader_epoch: int = -1,
    last_epoch: int = -1,
    rack: str = "",
    version: int = FETCH_VERSION,
    max_wait_ms: int = 0,
) -> FetchResponse:
    request = FetchRequest()
    request.rack_id, request.max_wait_ms, request.min_bytes = rack, max_wait_ms, 1
    topic_id = cluster.services(node_id).cluster.current.topics["web"].topic_id.bytes
    named = FetchPartition(
        partition=0,
        current_leader_epoch=leader_epoch,
        last_fetched_epoch=last_epoch,
        fetch_offset=offset,
        partition_max_bytes=1 << 20,
    )
    by_id = version >= 13
    request.topics.append(FetchTopic("" if by_id else "web", topic_id if by_id else bytes(16), [named]))
    collected = CollectedResponse()
    fetch_handler.handle(context(cluster, node_id, version), request, collected.pending)
    return await fetched_by(collected, version)


async def fetched_by(collected: CollectedResponse, version: int) -> FetchResponse:
    frame = await asyncio.wait_for(collected.frame(), 10)
    _, at = parse_response_header(frame, ApiKey.FETCH, version)
    return cast("FetchResponse", codec.decode_response(ApiKey.FETCH, version, frame, at))


async def produce(cluster: TestCluster, node_id: int) -> ProduceResponse:
    records = batch([Written(b"x")], base_timestamp_ms=cluster.services(node_id).clock.wall_ms())
    topic = TopicProduceData(name="web", partition_data=[PartitionProduceData(index=0, records=records)])
    asked = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])
    collected = CollectedResponse()
    produce_handler.handle(
        context(cluster, node_id, PRODUCE_VERSION), hot_produce_request(asked, PRODUCE_VERSION), collected.pending
    )
    frame = await asyncio.wait_for(collected.frame(), 10)
    _, at = parse_response_header(frame, ApiKey.PRODUCE, PRODUCE_VERSION)
    return cast("ProduceResponse", codec.decode_response(ApiKey.PRODUCE, PRODUCE_VERSION, frame, at))


def follower_of(cluster: TestCluster) -> int:
    return next(node_id for node_id in cluster.brokers if node_id != leader_of(cluster))


async def test_a_refusal_names_the_new_leader_and_its_endpoint(cluster: TestCluster) -> None:
    await create(cluster)
    leader, other = leader_of(cluster), follower_of(cluster)
    produced = await produce(cluster, other)
    failed = produced.responses[0].partition_responses[0]
    assert failed.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (failed.current_leader.leader_id, failed.current_leader.leader_epoch) == (leader, 0)
    assert [(each.node_id, each.port) for each in produced.node_endpoints] == [(leader, cluster.ports[leader])]
    fetched = await fetch(cluster, other, version=16, leader_epoch=7)
    assert fetched.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert not fetched.node_endpoints


async def test_long_responses_name_the_endpoint_of_the_new_leader_too(cluster: TestCluster) -> None:
    await create(cluster)
    was = leader_of(cluster)
    await cluster.kill(was)
    await cluster.until(lambda: leader_of(cluster) not in {-1, was})
    leader, other = leader_of(cluster), follower_of(cluster)
    topic_id = cluster.services(other).cluster.current.topics["web"].topic_id

    refused = TopicProduceData(name="web", partition_data=[PartitionProduceData(index=0, records=None)])
    asked = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[refused])
    body = bytearray(codec.encode_request(ApiKey.PRODUCE, PRODUCE_VERSION, asked))
    collected = CollectedResponse()
    await asyncio.create_task(
        produce_handler.handle_long(context(cluster, other, PRODUCE_VERSION), body, 0, collected.pending)
    )
    produced = await collected.produce(PRODUCE_VERSION)
    assert [(each.node_id, each.port) for each in produced.node_endpoints] == [(leader, cluster.ports[leader])]

    fenced = messages.FetchTopic(topic_id=topic_id, partitions=[messages.FetchPartition(current_leader_epoch=0)])
    wanted = messages.FetchRequest(session_epoch=-1, topics=[fenced])
    collected = CollectedResponse()
    await fetch_handler.handle_long(
        context(cluster, other, FETCH_VERSION),
        bytes(codec.encode_request(ApiKey.FETCH, FETCH_VERSION, wanted)),
        0,
        collected.pending,
    )
    fetched = await fetched_by(collected, FETCH_VERSION)
    assert fetched.responses[0].partitions[0].current_leader.leader_id == leader
    assert [(each.node_id, each.port) for each in fetched.node_endpoints] == [(leader, cluster.ports[leader])]


async def test_a_fenced_consumer_learns_the_new_leader(cluster: TestCluster) -> None:
    await create(cluster)
    await send(cluster, range(10))
    was = leader_of(cluster)
    await cluster.kill(was)
    await cluster.until(lambda: leader_of(cluster) not in {-1, was})
    leader, other = leader_of(cluster), follower_of(cluster)
    for asked in (leader, other):
        response = await fetch(cluster, asked, leader_epoch=0)
        (data,) = response.responses[0].partitions
        assert data.error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert data.current_leader.leader_id == leader
        assert data.current_leader.leader_epoch > 0
        assert [(each.node_id, each.port) for each in response.node_endpoints] == [(leader, cluster.ports[leader])]


async def test_a_consumer_reads_from_a_follower_up_to_its_high_watermark(cluster: TestCluster) -> None:
    await create(cluster)
    await send(cluster, range(10))
    await equal_replicas(cluster, 10)
    other = follower_of(cluster)
    (data,) = (await fetch(cluster, other)).responses[0].partitions
    assert data.error_code == ErrorCode.NONE
    assert data.records
    assert data.high_watermark == 10
    (data,) = (await fetch(cluster, other, offset=11)).responses[0].partitions
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    old = await fetch(cluster, other, version=10)  # such a consumer knows leaders only
    assert old.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    replica(cluster, other).log.high_watermark = 7  # as if the leader had not reported more yet
    (data,) = (await fetch(cluster, other, offset=7)).responses[0].partitions
    assert (data.error_code, data.records or b"") == (ErrorCode.NONE, b"")
    (data,) = (await fetch(cluster, other, offset=8)).responses[0].partitions
    assert data.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    replica(cluster, other).log.high_watermark = 10
    assert not replica(cluster, other).watchers
    waiting = asyncio.ensure_future(fetch(cluster, other, offset=10, max_wait_ms=30_000))
    await until(lambda: replica(cluster, other).watchers)
    assert not waiting.done()
    await send(cluster, range(10, 12))
    (data,) = (await waiting).responses[0].partitions  # the follower's high watermark ends the wait
    assert data.error_code == ErrorCode.NONE
    assert data.records


@pytest.mark.options({"replica.selector.class": RACK_AWARE_SELECTOR})
@pytest.mark.own_options(RACKS)
async def test_the_leader_directs_a_consumer_to_a_replica_in_its_rack(cluster: TestCluster) -> None:
    await create(cluster)
    await send(cluster, range(10))
    await equal_replicas(cluster, 10)
    leader, other = leader_of(cluster), follower_of(cluster)
    (data,) = (await fetch(cluster, leader, rack=f"rack-{other}")).responses[0].partitions
    assert data.preferred_read_replica == other
    assert not data.records
    for rack in (f"rack-{leader}", "rack-9", ""):
        (data,) = (await fetch(cluster, leader, rack=rack)).responses[0].partitions
        assert data.preferred_read_replica == -1
        assert data.records
    (data,) = (await fetch(cluster, other, rack=f"rack-{other}")).responses[0].partitions
    assert data.records
    await cluster.kill(other)
    await cluster.until(lambda: other not in cluster.services(leader).cluster.current.brokers)
    (data,) = (await fetch(cluster, leader, rack=f"rack-{other}")).responses[0].partitions
    assert data.preferred_read_replica == -1


@pytest.mark.own_options(RACKS)
async def test_without_a_selector_the_leader_serves_all_racks(cluster: TestCluster) -> None:
    await create(cluster)
    await send(cluster, range(10))
    leader, other = leader_of(cluster), follower_of(cluster)
    (data,) = (await fetch(cluster, leader, rack=f"rack-{other}")).responses[0].partitions
    assert data.preferred_read_replica == -1


async def test_an_unknown_epoch_of_a_consumer_is_out_of_range(cluster: TestCluster) -> None:
    """The answer (-1, -1) would mean that nothing diverges: the reader would go on with records that are not here."""
    await create(cluster)
    leader = leader_of(cluster)
    await send(cluster, range(10))
    (data,) = (await fetch(cluster, leader, offset=3, last_epoch=5)).responses[0].partitions
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    (data,) = (await fetch(cluster, leader, offset=3, last_epoch=0)).responses[0].partitions
    assert data.error_code == ErrorCode.NONE
    (data,) = (await fetch(cluster, leader, offset=30, last_epoch=0)).responses[0].partitions
    assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (0, 10)


async def latest(cluster: TestCluster, node_id: int, *, version: int = 7, replica_id: int = -1) -> tuple[int, int]:
    asked = ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(replica_id=replica_id, topics=[ListOffsetsTopic(name="web", partitions=[asked])])
    answer = await cluster.handlers(node_id).call("list_offsets", version, request)
    found = answer.topics[0].partitions[0]
    return found.error_code, found.offset


async def test_a_new_leader_does_not_report_the_latest_offset_before_it_knows_it(cluster: TestCluster) -> None:
    await create(cluster)
    await send(cluster, range(10))
    await equal_replicas(cluster, 10)
    leader = leader_of(cluster)
    assert await latest(cluster, leader) == (ErrorCode.NONE, 10)
    state = replica(cluster, leader).leader_state
    assert state is not None
    state.term_start = 11  # as if the high watermark were below the start of the term
    assert await latest(cluster, leader) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    assert await latest(cluster, leader, version=4) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert await latest(cluster, leader, replica_id=2) == (ErrorCode.NONE, 10)


@pytest.mark.parametrize("follower_dies", [False, True])
async def test_records_are_deleted_on_all_live_replicas_before_the_answer(
    cluster: TestCluster, *, follower_dies: bool
) -> None:
    await create(cluster)
    await send(cluster, range(10))
    await equal_replicas(cluster, 10)
    leader, other = leader_of(cluster), follower_of(cluster)
    if follower_dies:
        await cluster.kill(other)
        await cluster.until(lambda: other not in cluster.services(leader).cluster.current.brokers)
    asked = DeleteRecordsTopic(name="web", partitions=[DeleteRecordsPartition(partition_index=0, offset=6)])
    request = DeleteRecordsRequest(topics=[asked], timeout_ms=10_000)
    answer = await cluster.handlers(leader).call("delete_records", 2, request)
    result = answer.topics[0].partitions[0]
    assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, 6)
    assert {replica(cluster, node_id).log.log_start_offset for node_id in cluster.brokers} == {6}


async def test_metadata_shows_dead_brokers_as_offline_replicas(cluster: TestCluster) -> None:
    await create(cluster)
    other = follower_of(cluster)
    await cluster.kill(other)
    await in_sync(cluster, 2)
    request = MetadataRequest(topics=[MetadataRequestTopic(name="web", topic_id=UUID(int=0))])
    for node_id in cluster.brokers:
        answer = await cluster.handlers(node_id).call("metadata", 12, request)
        (partition,) = answer.topics[0].partitions
        assert partition.error_code == ErrorCode.NONE
        assert partition.leader_id == leader_of(cluster)
        assert sorted(partition.replica_nodes) == [1, 2, 3]
        assert partition.offline_replicas == [other]
        assert other not in partition.isr_nodes
    await cluster.restart(other)
    await in_sync(cluster, 3)
    assert await read(cluster, 0) == []
