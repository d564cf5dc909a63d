"""The Fetch codec of followers is held to the plans of the protocol's schema."""

from __future__ import annotations

import random
import uuid

import pytest

from ottla.wire.apis import ApiKey
from ottla.wire.codec import decode_request, encode_response
from ottla.wire.errors import MalformedRequest
from ottla.wire.generated.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ReplicaState,
)
from ottla.wire.headers import parse_request_header, response_header
from ottla.wire.hot.fetch import decode_fetch_request
from ottla.wire.hot.replica_fetch import VERSION, FetchRequestWriter, decode_fetch_answer
from tests.support.hot_messages import fetch_partition, replica_state

CORRELATION_ID = 4711
TOPICS = [uuid.UUID(int=n) for n in (1, 2 << 100)]


def request_with(writer: FetchRequestWriter) -> FetchRequest:
    """Write a request and read it by the plans."""
    frame = bytes(writer.frame(CORRELATION_ID, 7, 9, 1 << 40))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header = parse_request_header(frame[4:])
    assert header[:4] == (ApiKey.FETCH, VERSION, CORRELATION_ID, "broker-3")
    found = decode_request(ApiKey.FETCH, VERSION, frame[4:], header[4])
    assert isinstance(found, FetchRequest)
    hot = decode_fetch_request(memoryview(frame)[4:], VERSION, header[4])
    read = [[fetch_partition(partition) for partition in each.partitions] for each in hot.topics]
    assert read == [each.partitions for each in found.topics]
    assert replica_state(hot) == found.replica_state
    return found


@pytest.mark.parametrize(("named", "forgotten"), [(0, 0), (1, 0), (3, 2), (300, 200)])
def test_a_request_is_read_by_the_plans_as_it_was_meant(named: int, forgotten: int) -> None:
    writer = FetchRequestWriter("broker-3", 3, max_wait_ms=500, min_bytes=1, max_bytes=10 << 20)
    expected = FetchRequest(
        replica_state=ReplicaState(replica_id=3, replica_epoch=1 << 40),
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=10 << 20,
        session_id=7,
        session_epoch=9,
    )
    topics = [FetchTopic(topic_id=each) for each in TOPICS]
    for index in range(named):
        topic = topics[index % 2]
        writer.name(
            topic.topic_id.bytes,
            index,
            leader_epoch=5,
            fetch_offset=1 << 33,
            last_fetched_epoch=4,
            log_start=2,
            max_bytes=1 << 20,
            high_watermark=3,
        )
        topic.partitions.append(
            FetchPartition(
                partition=index,
                current_leader_epoch=5,
                fetch_offset=1 << 33,
                last_fetched_epoch=4,
                log_start_offset=2,
                partition_max_bytes=1 << 20,
                high_watermark=3,
            )
        )
    gone = [ForgottenTopic(topic_id=each) for each in TOPICS]
    for index in range(forgotten):
        writer.forget(gone[index % 2].topic_id.bytes, index)
        gone[index % 2].partitions.append(index)
    expected.topics = [each for each in topics if each.partitions]
    expected.forgotten_topics_data = [each for each in gone if each.partitions]
    assert writer.is_empty == (not named and not forgotten)
    if named <= 3:
        assert request_with(writer) == expected
    else:  # the hot decoder leaves long requests to the plans
        frame = bytes(writer.frame(CORRELATION_ID, 7, 9, 1 << 40))
        assert decode_request(ApiKey.FETCH, VERSION, frame[4:], parse_request_header(frame[4:])[4]) == expected
    assert writer.is_empty
    assert not request_with(writer).topics, "the next request names nothing"


def responses() -> list[FetchResponse]:
    """Responses with all that a broker may send."""
    rng = random.Random(1)
    data = PartitionData(
        partition_index=3,
        high_watermark=9,
        last_stable_offset=8,
        log_start_offset=1,
        aborted_transactions=None,
        records=rng.randbytes(70_000),
    )
    diverging = PartitionData(
        partition_index=4,
        high_watermark=1,
        diverging_epoch=EpochEndOffset(epoch=2, end_offset=1 << 40),
        current_leader=LeaderIdAndEpoch(leader_id=1, leader_epoch=3),
    )
    refused = PartitionData(partition_index=5, error_code=6, high_watermark=-1)
    aborted = PartitionData(
        partition_index=6,
        high_watermark=1,
        aborted_transactions=[AbortedTransaction(producer_id=1, first_offset=2)],
        records=b"x",
    )
    return [
        FetchResponse(session_id=7),
        FetchResponse(error_code=70),
        FetchResponse(
            session_id=7,
            responses=[
                FetchableTopicResponse(topic_id=TOPICS[0], partitions=[data, refused]),
                FetchableTopicResponse(topic_id=TOPICS[1], partitions=[diverging, aborted]),
            ],
            node_endpoints=[NodeEndpoint(node_id=1, host="h", port=9092, rack="r")],
        ),
    ]


def frame_of(response: FetchResponse) -> bytes:
    body = encode_response(ApiKey.FETCH, VERSION, response)
    return bytes(response_header(ApiKey.FETCH, VERSION, CORRELATION_ID)) + bytes(body)


@pytest.mark.parametrize("response", responses())
def test_a_response_of_the_plans_is_read(response: FetchResponse) -> None:
    answer = decode_fetch_answer(memoryview(frame_of(response)))
    assert (answer.correlation_id, answer.error_code, answer.session_id) == (
        CORRELATION_ID,
        response.error_code,
        response.session_id,
    )
    expected = [(topic.topic_id.bytes, each) for topic in response.responses for each in topic.partitions]
    assert [(each.topic_id, each.partition) for each in answer.partitions] == [
        (topic_id, each.partition_index) for topic_id, each in expected
    ]
    for found, (_, sent) in zip(answer.partitions, expected, strict=True):
        assert (found.error_code, found.high_watermark, found.log_start) == (
            sent.error_code,
            sent.high_watermark,
            sent.log_start_offset,
        )
        assert (found.diverging_epoch, found.diverging_end) == (
            sent.diverging_epoch.epoch,
            sent.diverging_epoch.end_offset,
        )
        assert (b"" if found.records is None else bytes(found.records)) == (sent.records or b"")


def test_a_response_that_is_cut_is_malformed() -> None:
    frame = frame_of(responses()[2])
    for size in [*range(120), *range(len(frame) - 120, len(frame))]:
        with pytest.raises(MalformedRequest):
            decode_fetch_answer(memoryview(frame)[:size])
