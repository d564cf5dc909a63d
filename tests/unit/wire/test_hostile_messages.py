"""Bytes from a peer that lies: nothing is allocated on its word, and nothing but MalformedRequest comes out."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from ottla.core.errors import UnsupportedVersion
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.errors import MalformedRequest
from ottla.wire.generated.describe_transactions import DescribeTransactionsResponse, TransactionState
from ottla.wire.generated.metadata import MetadataRequest, MetadataRequestTopic
from ottla.wire.hot.fetch import decode_fetch_request, encode_fetch_response
from ottla.wire.hot.produce import decode_produce_request, write_produce_response
from tests.support.hot_messages import fetch_request
from tests.support.messages import MESSAGE_APIS

COUNTS = {
    "compact 2^31": b"\x80\x80\x80\x80\x08",
    "compact 2^32 - 1": b"\xff\xff\xff\xff\x0f",
    "compact of 33 bits": b"\xff\xff\xff\xff\x1f",
    "compact without end": b"\xff" * 12,
}
LEGACY_COUNTS = {"2^31 - 1": b"\x7f\xff\xff\xff", "-2": b"\xff\xff\xff\xfe"}


def refused_cheaply(read: Callable[[], Any]) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedRequest):
            read()
        assert tracemalloc.get_traced_memory()[1] < 256 << 10
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", COUNTS.values(), ids=COUNTS)
def test_a_compact_count_that_lies_is_refused_before_memory_is_spent(count: bytes) -> None:
    filler = bytes(64)
    refused_cheaply(lambda: codec.decode_request(ApiKey.METADATA, 12, count + filler))
    refused_cheaply(lambda: decode_produce_request(memoryview(b"\0" + bytes(6) + count + filler), 9))
    refused_cheaply(lambda: decode_fetch_request(memoryview(bytes(25) + count + filler), 12))


@pytest.mark.parametrize("count", LEGACY_COUNTS.values(), ids=LEGACY_COUNTS)
def test_a_count_that_lies_is_refused_before_memory_is_spent(count: bytes) -> None:
    filler = bytes(64)
    refused_cheaply(lambda: codec.decode_request(ApiKey.METADATA, 8, count + filler))
    refused_cheaply(lambda: decode_produce_request(memoryview(b"\xff\xff" + bytes(6) + count + filler), 8))
    refused_cheaply(lambda: decode_fetch_request(memoryview(bytes(25) + count + filler), 11))


@pytest.mark.parametrize("length", [b"\x7f\xff", b"\xff\xfe", b"\xff\xff"], ids=["too long", "-2", "null"])
def test_a_string_length_that_cannot_be_is_refused(length: bytes) -> None:
    with pytest.raises(MalformedRequest):
        codec.decode_request(ApiKey.METADATA, 1, b"\0\0\0\1" + length + b"abc")
    with pytest.raises(MalformedRequest):
        decode_produce_request(memoryview(b"\xff\xff" + bytes(6) + b"\0\0\0\1" + length + b"abc"), 7)


def test_text_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(MalformedRequest):
        codec.decode_request(ApiKey.METADATA, 1, b"\0\0\0\1\0\2\xff\xff")


@pytest.mark.parametrize("key", MESSAGE_APIS, ids=lambda key: key.name.lower())
def test_bytes_missing_are_refused_and_bytes_after_a_request_overlooked_in_every_version(key: ApiKey) -> None:
    info = MESSAGE_APIS[key]
    for version in range(info.min_version, info.max_version + 1):
        body = codec.encode_request(key, version, codec.shape_class(key, "Request")())
        assert codec.decode_request(key, version, body + b"\0") == codec.decode_request(key, version, body)
        for end in range(len(body)):
            with pytest.raises(MalformedRequest):
                codec.decode_request(key, version, body[:end])


def with_unknown_tag(body: bytes) -> bytes:
    """A flexible body with tag 9000 in its last section of tags, which must have been empty."""
    assert body[-1] == 0
    return body[:-1] + b"\x01" + b"\xa8\x46" + b"\x05" + b"extra"


@pytest.mark.parametrize("key", MESSAGE_APIS, ids=lambda key: key.name.lower())
def test_unknown_tags_are_skipped_in_every_flexible_version(key: ApiKey) -> None:
    info = MESSAGE_APIS[key]
    for version in range(max(info.min_version, info.flexible_since), info.max_version + 1):
        body = codec.encode_request(key, version, codec.shape_class(key, "Request")())
        tagged = with_unknown_tag(body)
        assert codec.decode_request(key, version, tagged) == codec.decode_request(key, version, body)
        if key is ApiKey.FETCH:
            plain = fetch_request(decode_fetch_request(memoryview(body), version))
            assert fetch_request(decode_fetch_request(memoryview(tagged), version)) == plain
        if key is ApiKey.PRODUCE:
            assert decode_produce_request(memoryview(tagged), version).topics == []


def test_unknown_tags_are_skipped_inside_structs() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    body = codec.encode_request(ApiKey.METADATA, 9, request)
    topic_end = body.index(b"\x02t") + 2
    tagged = body[:topic_end] + b"\x01\x07\x03abc" + body[topic_end + 1 :]
    assert codec.decode_request(ApiKey.METADATA, 9, tagged) == codec.decode_request(ApiKey.METADATA, 9, body)


def test_a_tag_that_ends_after_the_message_is_refused() -> None:
    body = codec.encode_request(ApiKey.METADATA, 12, MetadataRequest())
    with pytest.raises(MalformedRequest):
        codec.decode_request(ApiKey.METADATA, 12, body[:-1] + b"\x01\x63\x7f")


def test_a_known_tag_must_fill_its_size() -> None:
    # ApiVersions response, tag 1 (the epoch of finalized features), eight bytes in nine
    body = b"\0\0" + b"\x01" + b"\0\0\0\0" + b"\x01" + b"\x01\x09" + bytes(9)
    with pytest.raises(MalformedRequest):
        codec.decode_response(ApiKey.API_VERSIONS, 3, body)


@pytest.mark.parametrize("version", [-1, 2, 14, 32767])
def test_versions_that_do_not_exist_are_unsupported(version: int) -> None:
    with pytest.raises(UnsupportedVersion):
        codec.decode_request(ApiKey.PRODUCE, version, b"")
    with pytest.raises(UnsupportedVersion):
        decode_produce_request(memoryview(b""), version)
    with pytest.raises(UnsupportedVersion):
        next(write_produce_response(bytearray(), [], version, 1))
    with pytest.raises(UnsupportedVersion):
        decode_fetch_request(memoryview(b""), version * 10)
    with pytest.raises(UnsupportedVersion):
        encode_fetch_response([], version * 10, 1)


def test_apis_that_do_not_exist_are_unsupported() -> None:
    with pytest.raises(UnsupportedVersion):
        codec.decode_request(ApiKey.LEADER_AND_ISR, 0, b"")
    with pytest.raises(UnsupportedVersion):
        codec.decode_request(9999, 0, b"")  # type: ignore[arg-type]


def test_an_unknown_error_code_is_decoded_as_a_number() -> None:
    response = codec.shape_class(ApiKey.HEARTBEAT, "Response")(error_code=31999, throttle_time_ms=-1)
    body = codec.encode_response(ApiKey.HEARTBEAT, 4, response)
    assert codec.decode_response(ApiKey.HEARTBEAT, 4, body) == response


def test_a_null_where_the_version_has_none_is_a_bug_that_shows() -> None:
    with pytest.raises(TypeError):
        codec.encode_request(ApiKey.METADATA, 0, MetadataRequest(topics=None))
    assert codec.encode_request(ApiKey.METADATA, 1, MetadataRequest(topics=None))[:4] == b"\xff\xff\xff\xff"


@pytest.mark.parametrize(
    ("key", "version", "field", "value"),
    [
        (ApiKey.OFFSET_COMMIT, 2, "retention_time_ms", 2**63 - 1),
        (ApiKey.OFFSET_COMMIT, 4, "retention_time_ms", -(2**63)),
        (ApiKey.OFFSET_COMMIT, 3, "retention_time_ms", 2**53 + 1),
        (ApiKey.CREATE_TOPICS, 7, "timeout_ms", -(2**31)),
    ],
)
def test_every_number_of_the_wire_type_travels(key: ApiKey, version: int, field: str, value: int) -> None:
    request = codec.shape_class(key, "Request")(**{field: value})
    assert codec.decode_request(key, version, codec.encode_request(key, version, request)) == request


def test_a_transaction_that_never_began_has_a_start_time_of_minus_one() -> None:
    state = TransactionState(transactional_id="t", transaction_start_time_ms=-1)
    answer = DescribeTransactionsResponse(transaction_states=[state])
    body = codec.encode_response(ApiKey.DESCRIBE_TRANSACTIONS, 0, answer)
    assert codec.decode_response(ApiKey.DESCRIBE_TRANSACTIONS, 0, body) == answer
