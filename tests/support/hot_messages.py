"""Converts between the shapes of the hot codecs and the generated ones, and collects responses without a socket."""

from __future__ import annotations

from uuid import UUID

from ottla.core.files import FileRegion
from ottla.net.connection import PendingResponse
from ottla.testing.requests import connection_without_socket
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.generated import fetch, produce
from ottla.wire.headers import parse_response_header
from ottla.wire.hot import fetch as hot_fetch
from ottla.wire.hot import produce as hot_produce
from ottla.wire.hot.writing import string_bytes
from ottla.wire.schema import RecordBytes
from tests.support.waiting import until

CORRELATION_ID = 77
PRODUCE_FLEXIBLE_SINCE, TOPIC_IDS_SINCE = 9, 13


def produce_request(hot: hot_produce.ProduceRequest, version: int) -> produce.ProduceRequest:
    """The generated shape of a request that the hot codec has read."""
    topics = [
        produce.TopicProduceData(
            topic_id=UUID(bytes=topic.wire_name) if version >= TOPIC_IDS_SINCE else UUID(int=0),
            name=topic.name,
            partition_data=[
                produce.PartitionProduceData(
                    index=part.index, records=None if part.records is None else bytes(part.records)
                )
                for part in topic.partitions
            ],
        )
        for topic in hot.topics
    ]
    return produce.ProduceRequest(
        transactional_id=hot.transactional_id, acks=hot.acks, timeout_ms=hot.timeout_ms, topic_data=topics
    )


def hot_produce_request(request: produce.ProduceRequest, version: int) -> hot_produce.ProduceRequest:
    """The request as the hot codec reads it, in a buffer of its own."""
    data = bytearray(codec.encode_request(ApiKey.PRODUCE, version, request))
    return hot_produce.decode_produce_request(memoryview(data), version)


def produced_topics(response: produce.ProduceResponse, version: int) -> list[hot_produce.ProduceTopic]:
    """A response in the shapes that the hot codec writes: successful partitions without a failure."""
    topics = []
    for topic in response.responses:
        parts = []
        for each in topic.partition_responses:
            part = hot_produce.ProducePartition(each.index, None)
            part.base_offset, part.log_append_time_ms = each.base_offset, each.log_append_time_ms
            part.log_start_offset = each.log_start_offset
            is_plain = each == produce.PartitionProduceResponse(
                index=each.index,
                base_offset=each.base_offset,
                log_append_time_ms=each.log_append_time_ms,
                log_start_offset=each.log_start_offset,
            )
            part.failure = None if is_plain else each
            parts.append(part)
        is_id = version >= TOPIC_IDS_SINCE
        wire_name = topic.topic_id.bytes if is_id else string_bytes(topic.name, version >= PRODUCE_FLEXIBLE_SINCE)
        topics.append(hot_produce.ProduceTopic(wire_name, topic.name, parts))
    return topics


def fetch_request(hot: hot_fetch.FetchRequest) -> fetch.FetchRequest:
    """The generated shape of a request that the hot codec has read."""
    return fetch.FetchRequest(
        cluster_id=hot.cluster_id,
        replica_state=replica_state(hot),
        replica_id=hot.replica_id,
        max_wait_ms=hot.max_wait_ms,
        min_bytes=hot.min_bytes,
        max_bytes=hot.max_bytes,
        isolation_level=hot.isolation_level,
        session_id=hot.session_id,
        session_epoch=hot.session_epoch,
        topics=[
            fetch.FetchTopic(
                topic_id=UUID(bytes=each.topic_id),
                topic=each.topic,
                partitions=[fetch_partition(partition) for partition in each.partitions],
            )
            for each in hot.topics
        ],
        forgotten_topics_data=[
            fetch.ForgottenTopic(topic_id=UUID(bytes=each.topic_id), topic=each.topic, partitions=each.partitions)
            for each in hot.forgotten_topics_data
        ],
        rack_id=hot.rack_id,
    )


def replica_state(hot: hot_fetch.FetchRequest) -> fetch.ReplicaState:
    """The generated shape of the follower that sent a request."""
    state = hot.replica_state
    return fetch.ReplicaState(replica_id=state.replica_id, replica_epoch=state.replica_epoch)


def fetch_partition(hot: hot_fetch.FetchPartition) -> fetch.FetchPartition:
    """The generated shape of a partition that the hot codec has read."""
    return fetch.FetchPartition(**{name: getattr(hot, name) for name in fetch.FetchPartition.__slots__})


def fetched_topics(response: fetch.FetchResponse) -> list[hot_fetch.FetchedTopic]:
    """A response's topics in the shapes that the hot codec writes."""
    return [
        hot_fetch.FetchedTopic(topic.topic, topic.topic_id.bytes, [partition_data(each) for each in topic.partitions])
        for topic in response.responses
    ]


def partition_data(generated: fetch.PartitionData) -> hot_fetch.PartitionData:
    """One partition of a response in the shape that the hot codec writes."""
    data = hot_fetch.PartitionData(generated.partition_index, generated.high_watermark)
    for name in fetch.PartitionData.__slots__:
        setattr(data, name, getattr(generated, name))
    return data


def body_of(frame: bytes | bytearray, key: ApiKey, version: int) -> bytes:
    """The body of a response's frame; its length and header are checked."""
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    correlation_id, at = parse_response_header(bytes(frame[4:]), key, version)
    assert correlation_id == CORRELATION_ID
    return bytes(frame[4 + at :])


def produce_body(response: produce.ProduceResponse, version: int) -> bytes:
    """The body of a response as the hot codec writes it."""
    topics, frame = produced_topics(response, version), bytearray()
    throttle_time_ms, endpoints = response.throttle_time_ms, response.node_endpoints
    for _ in hot_produce.write_produce_response(
        frame, topics, version, CORRELATION_ID, throttle_time_ms=throttle_time_ms, endpoints=endpoints
    ):
        pass
    at_once = hot_produce.encode_produce_response(
        topics, version, CORRELATION_ID, throttle_time_ms=throttle_time_ms, endpoints=endpoints
    )
    assert at_once == frame
    return body_of(frame, ApiKey.PRODUCE, version)


def fetch_parts(response: fetch.FetchResponse, version: int) -> list[RecordBytes]:
    """The parts of a response's frame as the hot codec writes them."""
    return hot_fetch.encode_fetch_response(
        fetched_topics(response),
        version,
        CORRELATION_ID,
        session_id=response.session_id,
        error_code=response.error_code,
        throttle_time_ms=response.throttle_time_ms,
        endpoints=response.node_endpoints,
    )


def fetch_body(response: fetch.FetchResponse, version: int) -> bytes:
    """The body of a response, which has no file regions."""
    return body_of(b"".join(fetch_parts(response, version)), ApiKey.FETCH, version)  # type: ignore[arg-type]


class CollectedResponse:
    """A response to one request, on a connection without a transport."""

    def __init__(self) -> None:
        self.connection = connection_without_socket()
        self.pending = PendingResponse(self.connection)

    @property
    def is_closed(self) -> bool:
        """Whether the connection was closed."""
        return self.connection._closing

    @property
    def is_busy_polled(self) -> bool:
        """Whether the client's next request is expected soon."""
        return self.connection.is_busy_polled

    @property
    def is_sent(self) -> bool:
        """Whether the response has come."""
        return self.pending.parts is not None

    async def sent(self) -> None:
        """Wait for the response."""
        await until(lambda: self.is_sent)

    async def pending_bytes(self) -> bytes:
        """All bytes of the response, once it has come."""
        await self.sent()
        parts = self.pending.parts or ()
        data = b"".join(part.read() if isinstance(part, FileRegion) else bytes(part) for part in parts)
        assert len(data) == sum(part.size if isinstance(part, FileRegion) else len(part) for part in parts)
        return data

    async def frame(self) -> bytes:
        """The frame without its length, once it has come; empty if the request has no response."""
        data = await self.pending_bytes()
        if data:
            assert int.from_bytes(data[:4], "big") == len(data) - 4
        return data[4:]

    async def produce(self, version: int) -> produce.ProduceResponse:
        """The response to a Produce request."""
        frame = await self.frame()
        _, at = parse_response_header(frame, ApiKey.PRODUCE, version)
        found = codec.decode_response(ApiKey.PRODUCE, version, frame, at)
        assert isinstance(found, produce.ProduceResponse)
        return found
