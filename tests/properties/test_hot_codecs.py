"""The hand-tuned codecs of Produce and Fetch against the plans and against kio, every version, both ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.core.files import File, FileRegion
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.errors import MalformedRequest
from ottla.wire.generated.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from ottla.wire.generated.fetch import ForgottenTopic as ForgottenTopicData
from ottla.wire.generated.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from ottla.wire.hot.fetch import JOIN_BYTES_MAX, FetchTopic, ForgottenTopic, decode_fetch_request, write_fetch_response
from ottla.wire.hot.fetch import read_topics as read_fetch_topics
from ottla.wire.hot.produce import decode_produce_request, in_chunks, read_topics, write_produce_response
from ottla.wire.hot.reading import AT_ONCE
from ottla.wire.schema import RecordBytes
from tests.properties.kio_twin import kio_bytes, kio_class, kio_entity
from tests.properties.shapes import shapes, without_illegal_nulls
from tests.support.examples import examples
from tests.support.hot_messages import (
    CORRELATION_ID,
    body_of,
    fetch_body,
    fetch_partition,
    fetch_parts,
    fetch_request,
    fetched_topics,
    produce_body,
    produce_request,
    produced_topics,
)

EVERY_PRODUCE = range(3, 14)
EVERY_FETCH = range(4, 19)
some = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))


def joined(parts: list[RecordBytes]) -> bytes:
    assert all(isinstance(part, bytes | bytearray | memoryview) for part in parts)
    return b"".join(parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", EVERY_PRODUCE)
@some
@given(request=shapes(ProduceRequest))
def test_a_produce_request_is_read_as_the_plans_read_what_kio_wrote(version: int, request: ProduceRequest) -> None:
    cls = kio_class(ApiKey.PRODUCE, version, "Request")
    data = kio_bytes(kio_entity(cls, without_illegal_nulls(request, version)))
    found = decode_produce_request(memoryview(b"...." + data), version, 4)
    assert produce_request(found, version) == codec.decode_request(ApiKey.PRODUCE, version, data)


@pytest.mark.parametrize("version", EVERY_PRODUCE)
@some
@given(response=shapes(ProduceResponse))
def test_a_produce_response_is_written_byte_for_byte_as_kio_writes_it(version: int, response: ProduceResponse) -> None:
    entity = kio_entity(kio_class(ApiKey.PRODUCE, version, "Response"), response)
    assert produce_body(response, version) == kio_bytes(entity)


@pytest.mark.parametrize("version", EVERY_PRODUCE)
@some
@given(request=shapes(ProduceRequest), at_once=st.integers(1, 5))
def test_a_produce_request_is_read_in_chunks_as_it_is_read_at_once(
    version: int, request: ProduceRequest, at_once: int
) -> None:
    body = memoryview(codec.encode_request(ApiKey.PRODUCE, version, request))
    found = decode_produce_request(body, version, is_long=True)
    while not read_topics(body, version, found, at_once):
        pass
    expected = codec.decode_request(ApiKey.PRODUCE, version, bytes(body))
    assert produce_request(found, version) == expected
    chunks = list(in_chunks(found.topics, at_once))
    assert all(sum(1 + len(topic.partitions) for topic in chunk) <= 2 * at_once for chunk in chunks)
    names = [(topic.wire_name, part) for topic in found.topics for part in topic.partitions]
    assert [(topic.wire_name, part) for chunk in chunks for topic in chunk for part in topic.partitions] == names
    assert {topic.wire_name for chunk in chunks for topic in chunk} == {topic.wire_name for topic in found.topics}


@pytest.mark.parametrize("version", EVERY_PRODUCE)
def test_the_response_for_one_appended_partition_is_written_as_any_other(version: int) -> None:
    appended = PartitionProduceResponse(index=3, base_offset=1 << 40, log_append_time_ms=-1, log_start_offset=7)
    topics = [TopicProduceResponse(name="t", topic_id=UUID(int=5), partition_responses=[appended])]
    response = ProduceResponse(responses=topics, throttle_time_ms=12)
    assert produce_body(response, version) == codec.encode_response(ApiKey.PRODUCE, version, response)


@pytest.mark.parametrize("version", EVERY_PRODUCE)
def test_a_long_produce_response_is_written_in_steps(version: int) -> None:
    partitions = [PartitionProduceResponse(index=index, base_offset=index) for index in range(3 * AT_ONCE)]
    response = ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=partitions)])
    frame = bytearray()
    steps = len(list(write_produce_response(frame, produced_topics(response, version), version, CORRELATION_ID)))
    assert steps == 3
    assert body_of(frame, ApiKey.PRODUCE, version) == codec.encode_response(ApiKey.PRODUCE, version, response)


@pytest.mark.parametrize("version", EVERY_FETCH)
@some
@given(request=shapes(FetchRequest))
def test_a_fetch_request_is_read_as_the_plans_read_what_kio_wrote(version: int, request: FetchRequest) -> None:
    data = kio_bytes(kio_entity(kio_class(ApiKey.FETCH, version, "Request"), request))
    found = decode_fetch_request(memoryview(b"...." + data), version, 4)
    assert fetch_request(found) == codec.decode_request(ApiKey.FETCH, version, data)


@pytest.mark.parametrize("version", EVERY_FETCH)
@some
@given(request=shapes(FetchRequest), at_once=st.integers(1, 5))
def test_a_fetch_request_is_read_in_chunks_as_it_is_read_at_once(
    version: int, request: FetchRequest, at_once: int
) -> None:
    body = memoryview(codec.encode_request(ApiKey.FETCH, version, request))
    found = decode_fetch_request(body, version, is_long=True)
    while not read_fetch_topics(body, version, found, at_once):
        pass
    assert all(len(topic.partitions) <= at_once for topic in found.topics)
    at_once_found = decode_fetch_request(body, version)
    assert partitions_of(found.topics) == partitions_of(at_once_found.topics)
    assert partitions_of(found.forgotten_topics_data) == partitions_of(at_once_found.forgotten_topics_data)
    found.topics, found.forgotten_topics_data = at_once_found.topics, at_once_found.forgotten_topics_data
    assert fetch_request(found) == fetch_request(at_once_found)


def partitions_of(topics: Sequence[FetchTopic] | Sequence[ForgottenTopic]) -> list[tuple[str, bytes, object]]:
    return [
        (topic.topic, topic.topic_id, partition if isinstance(partition, int) else fetch_partition(partition))
        for topic in topics
        for partition in topic.partitions
    ]


@pytest.mark.parametrize("version", EVERY_FETCH)
def test_a_topic_of_many_forgotten_partitions_is_read_as_several(version: int) -> None:
    forgotten = [ForgottenTopicData(topic="t", partitions=list(range(2 * AT_ONCE + 1)))]
    body = memoryview(codec.encode_request(ApiKey.FETCH, version, FetchRequest(forgotten_topics_data=forgotten)))
    found = decode_fetch_request(body, version, is_long=True)
    assert read_fetch_topics(body, version, found, AT_ONCE)
    sizes = [len(topic.partitions) for topic in found.forgotten_topics_data]
    assert sizes == ([] if version < 7 else [AT_ONCE, AT_ONCE, 1])


@pytest.mark.parametrize("version", EVERY_FETCH)
def test_a_long_fetch_response_is_written_in_steps(version: int) -> None:
    partitions = [PartitionData(partition_index=index, records=b"") for index in range(3 * AT_ONCE)]
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
    parts: list[RecordBytes] = []
    steps = len(list(write_fetch_response(parts, fetched_topics(response), version, CORRELATION_ID)))
    assert steps == 3
    assert body_of(joined(parts), ApiKey.FETCH, version) == codec.encode_response(ApiKey.FETCH, version, response)


@pytest.mark.parametrize("version", EVERY_FETCH)
@some
@given(response=shapes(FetchResponse))
def test_a_fetch_response_is_written_byte_for_byte_as_kio_writes_it(version: int, response: FetchResponse) -> None:
    for topic in response.responses:
        for partition in topic.partitions:
            partition.records = partition.records or b""
    entity = kio_entity(kio_class(ApiKey.FETCH, version, "Response"), response)
    assert fetch_body(response, version) == kio_bytes(entity)


@pytest.mark.parametrize("version", EVERY_FETCH)
def test_null_records_go_out_as_empty_ones(version: int) -> None:
    def answer(records: bytes | None) -> bytes:
        topic = FetchableTopicResponse(topic="t", partitions=[PartitionData(records=records)])
        return fetch_body(FetchResponse(responses=[topic]), version)

    assert answer(None) == answer(b"")


@pytest.mark.parametrize("version", EVERY_FETCH)
def test_large_records_and_regions_are_parts_of_their_own(version: int) -> None:
    large, region = memoryview(b"x" * (JOIN_BYTES_MAX + 1)), FileRegion(cast("File", None), 0, 70_000)
    partitions = [
        PartitionData(partition_index=0, records=large),
        PartitionData(partition_index=1, records=region),
        PartitionData(partition_index=2, records=b"small"),
    ]
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
    parts = fetch_parts(response, version)
    assert parts[1] is large
    assert parts[3] is region
    assert len(parts) == 5

    as_bytes = [b"y" * 70_000 if part is region else part for part in parts]
    partitions[1].records = b"y" * 70_000
    expected = codec.encode_response(ApiKey.FETCH, version, response)
    assert body_of(joined(as_bytes), ApiKey.FETCH, version) == expected
    assert sum(part.size if isinstance(part, FileRegion) else len(part) for part in parts) == len(joined(as_bytes))


@pytest.mark.parametrize("version", EVERY_PRODUCE)
def test_records_are_a_slice_of_the_buffer_they_came_in(version: int) -> None:
    topic = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=3, records=b"RECORDS")])
    request = ProduceRequest(topic_data=[topic])
    buffer = bytearray(codec.encode_request(ApiKey.PRODUCE, version, request))
    records = decode_produce_request(memoryview(buffer), version).topics[0].partitions[0].records
    assert isinstance(records, memoryview)
    records[:] = b"STAMPED"
    assert b"STAMPED" in buffer


@some
@given(data=st.binary(max_size=80), version=st.sampled_from(EVERY_PRODUCE))
def test_no_bytes_make_the_produce_reader_raise_anything_but_malformed(data: bytes, version: int) -> None:
    try:
        decode_produce_request(memoryview(data), version)
    except MalformedRequest:
        pass


@some
@given(data=st.binary(max_size=80), version=st.sampled_from(EVERY_FETCH))
def test_no_bytes_make_the_fetch_reader_raise_anything_but_malformed(data: bytes, version: int) -> None:
    try:
        decode_fetch_request(memoryview(data), version)
    except MalformedRequest:
        pass
