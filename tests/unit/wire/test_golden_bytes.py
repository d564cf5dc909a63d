"""Messages of an independent codec, made from Kafka's own JSON: requests of kafka-python, and answers that it reads."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse, JoinGroupRequest, OffsetCommitRequest
from kafka.protocol.metadata import ApiVersionsResponse, MetadataRequest, MetadataResponse
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from ottla.wire import codec
from ottla.wire.apis import API_INFO, ApiKey
from ottla.wire.generated import api_versions, fetch, join_group, metadata, offset_commit, produce
from ottla.wire.headers import parse_request_header, response_header
from ottla.wire.hot.fetch import decode_fetch_request
from ottla.wire.hot.produce import decode_produce_request
from tests.support.hot_messages import fetch_body, fetch_request, produce_body, produce_request

TOPIC_ID = UUID("12345678-1234-5678-1234-567812345678")


def versions(key: ApiKey) -> range:
    info = API_INFO[key]
    return range(info.min_version, info.max_version + 1)


def frame_of(request: Any, version: int) -> bytes:
    request.API_VERSION = version
    request.with_header(correlation_id=11, client_id="kafka-python")
    return bytes(request.encode(header=True))


def body_of(frame: bytes, key: ApiKey, version: int) -> memoryview:
    header = parse_request_header(frame)
    assert header[:4] == (key, version, 11, "kafka-python")
    return memoryview(frame)[header[4] :]


@pytest.mark.parametrize("version", versions(ApiKey.METADATA))
def test_a_metadata_request_of_kafka_python_is_decoded(version: int) -> None:
    asked = [MetadataRequest.MetadataRequestTopic(topic_id=TOPIC_ID, name="web-access")]
    frame = frame_of(MetadataRequest(topics=asked, allow_auto_topic_creation=False, version=version), version)
    request = codec.decode_request(ApiKey.METADATA, version, body_of(frame, ApiKey.METADATA, version))
    assert request.topics[0].name == "web-access"
    assert request.topics[0].topic_id == (TOPIC_ID if version >= 10 else UUID(int=0))
    assert request.allow_auto_topic_creation is (version < 4)


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_a_join_group_request_of_kafka_python_is_decoded(version: int) -> None:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\0\1")
    written = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        group_instance_id="static",
        protocol_type="consumer",
        protocols=[protocol],
        reason="because",
        version=version,
    )
    body = body_of(frame_of(written, version), ApiKey.JOIN_GROUP, version)
    assert codec.decode_request(ApiKey.JOIN_GROUP, version, body) == join_group.JoinGroupRequest(
        group_id="g",
        session_timeout_ms=30_000,
        rebalance_timeout_ms=60_000 if version >= 1 else -1,
        group_instance_id="static" if version >= 5 else None,
        protocol_type="consumer",
        protocols=[join_group.JoinGroupRequestProtocol(name="range", metadata=b"\0\1")],
        reason="because" if version >= 8 else None,
    )


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
def test_an_offset_commit_request_of_kafka_python_is_decoded(version: int) -> None:
    topic_class = OffsetCommitRequest.OffsetCommitRequestTopic
    partition = topic_class.OffsetCommitRequestPartition(
        partition_index=4, committed_offset=9, committed_leader_epoch=2, committed_metadata=None
    )
    written = OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=3,
        member_id="m",
        group_instance_id=None,
        retention_time_ms=-1,
        topics=[topic_class(name="t", topic_id=TOPIC_ID, partitions=[partition])],
        version=version,
    )
    body = body_of(frame_of(written, version), ApiKey.OFFSET_COMMIT, version)
    request = codec.decode_request(ApiKey.OFFSET_COMMIT, version, body)
    assert request.generation_id_or_member_epoch == 3
    assert request.topics[0].partitions == [
        offset_commit.OffsetCommitRequestPartition(
            partition_index=4,
            committed_offset=9,
            committed_leader_epoch=2 if version >= 6 else -1,
            committed_metadata=None,
        )
    ]


@pytest.mark.parametrize("version", versions(ApiKey.PRODUCE))
def test_a_produce_request_of_kafka_python_is_decoded_and_it_reads_the_answer(version: int) -> None:
    data_class = ProduceRequest.TopicProduceData
    data = data_class.PartitionProduceData(index=6, records=b"BATCH")
    written = ProduceRequest(
        transactional_id="txn",
        acks=-1,
        timeout_ms=1500,
        version=version,
        topic_data=[data_class(name="web-access", topic_id=TOPIC_ID, partition_data=[data])],
    )
    hot = decode_produce_request(body_of(frame_of(written, version), ApiKey.PRODUCE, version), version)
    request = produce_request(hot, version)
    assert (request.transactional_id, request.acks, request.timeout_ms) == ("txn", -1, 1500)
    (topic,) = request.topic_data
    assert (topic.topic_id == TOPIC_ID) if version >= 13 else (topic.name == "web-access")
    assert topic.partition_data == [produce.PartitionProduceData(index=6, records=b"BATCH")]

    outcome = produce.PartitionProduceResponse(
        index=6, error_code=6, base_offset=77, log_append_time_ms=-1, log_start_offset=5, error_message="moved"
    )
    outcome.current_leader = produce.LeaderIdAndEpoch(leader_id=2, leader_epoch=8)
    answer = produce.ProduceResponse(
        responses=[produce.TopicProduceResponse(name="web-access", topic_id=TOPIC_ID, partition_responses=[outcome])],
        node_endpoints=[produce.NodeEndpoint(node_id=2, host="two", port=9092)],
        throttle_time_ms=3,
    )
    read = ProduceResponse.decode(produce_body(answer, version), version=version)
    found = read.responses[0].partition_responses[0]
    assert (found.index, found.error_code, found.base_offset, read.throttle_time_ms) == (6, 6, 77, 3)
    if version >= 8:
        assert found.error_message == "moved"
    if version >= 10:
        assert (found.current_leader.leader_id, found.current_leader.leader_epoch) == (2, 8)
        assert [(node.node_id, node.host, node.port) for node in read.node_endpoints] == [(2, "two", 9092)]


@pytest.mark.parametrize("version", versions(ApiKey.FETCH))
def test_a_fetch_request_of_kafka_python_is_decoded_and_it_reads_the_answer(version: int) -> None:
    topic_class = FetchRequest.FetchTopic
    asked = topic_class.FetchPartition(
        partition=3,
        current_leader_epoch=4,
        fetch_offset=5,
        last_fetched_epoch=-1,
        log_start_offset=-1,
        partition_max_bytes=1 << 20,
    )
    written = FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 << 20,
        isolation_level=1,
        session_id=0,
        session_epoch=-1,
        topics=[topic_class(topic="web-access", topic_id=TOPIC_ID, partitions=[asked])],
        rack_id="r1",
        version=version,
    )
    request = fetch_request(decode_fetch_request(body_of(frame_of(written, version), ApiKey.FETCH, version), version))
    (topic,) = request.topics
    assert (topic.topic_id == TOPIC_ID) if version >= 13 else (topic.topic == "web-access")
    assert topic.partitions[0].fetch_offset == 5
    assert topic.partitions[0].current_leader_epoch == (4 if version >= 9 else -1)
    assert request.isolation_level == 1
    assert request.rack_id == ("r1" if version >= 11 else "")

    data = fetch.PartitionData(partition_index=3, high_watermark=9, last_stable_offset=8, log_start_offset=0)
    data.aborted_transactions = [fetch.AbortedTransaction(producer_id=1, first_offset=2)]
    data.records = b"R" * 5000
    data.current_leader = fetch.LeaderIdAndEpoch(leader_id=1, leader_epoch=4)
    answer = fetch.FetchResponse(
        responses=[fetch.FetchableTopicResponse(topic="web-access", topic_id=TOPIC_ID, partitions=[data])],
        node_endpoints=[fetch.NodeEndpoint(node_id=1, host="one", port=9092)],
        session_id=12,
    )
    read = FetchResponse.decode(fetch_body(answer, version), version=version)
    found = read.responses[0].partitions[0]
    assert (found.partition_index, found.high_watermark, bytes(found.records)) == (3, 9, b"R" * 5000)
    assert [(a.producer_id, a.first_offset) for a in found.aborted_transactions] == [(1, 2)]
    if version >= 12:
        assert found.current_leader.leader_epoch == 4


@pytest.mark.parametrize("version", versions(ApiKey.METADATA))
def test_kafka_python_reads_a_metadata_response(version: int) -> None:
    partition = metadata.MetadataResponsePartition(
        partition_index=0, leader_id=1, leader_epoch=3, replica_nodes=[1, 2], isr_nodes=[1], offline_replicas=[2]
    )
    topic = metadata.MetadataResponseTopic(name="web-access", topic_id=TOPIC_ID, partitions=[partition])
    answer = metadata.MetadataResponse(
        brokers=[metadata.MetadataResponseBroker(node_id=1, host="one", port=9092, rack=None)],
        cluster_id="cluster",
        controller_id=1,
        topics=[topic],
    )
    read = MetadataResponse.decode(codec.encode_response(ApiKey.METADATA, version, answer), version=version)
    assert [(b.node_id, b.host, b.port) for b in read.brokers] == [(1, "one", 9092)]
    found = read.topics[0].partitions[0]
    assert (found.leader_id, list(found.replica_nodes), list(found.isr_nodes)) == (1, [1, 2], [1])
    assert read.topics[0].name == "web-access"


@pytest.mark.parametrize("version", range(5))  # kafka-python knows no later one
def test_kafka_python_reads_an_api_versions_response_after_its_plain_header(version: int) -> None:
    answer = api_versions.ApiVersionsResponse(
        api_keys=[api_versions.ApiVersion(api_key=0, min_version=0, max_version=12)],
        supported_features=[api_versions.SupportedFeatureKey(name="group.version", min_version=1, max_version=1)],
    )
    frame = response_header(ApiKey.API_VERSIONS, version, 11) + codec.encode_response(
        ApiKey.API_VERSIONS, version, answer
    )
    read = ApiVersionsResponse.decode(frame, version=version, header=True)
    assert read.header.correlation_id == 11
    assert [(api.api_key, api.min_version, api.max_version) for api in read.api_keys] == [(0, 0, 12)]


def test_the_first_frame_of_librdkafka_is_decoded() -> None:
    frame = bytes.fromhex(
        "0012 0003 00000001 0007 72646b61666b61 00"  # ApiVersions v3, correlation 1, "rdkafka", no tags
        "0b 6c696272646b61666b61 07 322e31312e30 00"  # "librdkafka", "2.11.0", no tags
    )
    header = parse_request_header(frame)
    assert tuple(header) == (ApiKey.API_VERSIONS, 3, 1, "rdkafka", 18)
    request = codec.decode_request(ApiKey.API_VERSIONS, 3, frame, header[4])
    assert request == api_versions.ApiVersionsRequest(
        client_software_name="librdkafka", client_software_version="2.11.0"
    )


def test_a_produce_answer_has_kafkas_bytes() -> None:
    partition = produce.PartitionProduceResponse(index=1, base_offset=258, log_start_offset=2)
    topic = produce.TopicProduceResponse(name="ab", partition_responses=[partition])
    flexible = "02 03 6162 02 00000001 0000 0000000000000102 ffffffffffffffff 0000000000000002 01 00 00 00 00000000 00"
    legacy = "00000001 0002 6162 00000001 00000001 0000 0000000000000102 ffffffffffffffff 0000000000000002 00000000"
    answer = produce.ProduceResponse(responses=[topic])
    assert produce_body(answer, 9) == bytes.fromhex(flexible)
    assert produce_body(answer, 7) == bytes.fromhex(legacy)
