"""Headers: the rules a client trips over when one of them is wrong."""

from __future__ import annotations

import pytest
from kafka.protocol.api_header import RequestHeader as KafkaPythonHeader

from ottla.wire.apis import API_INFO, NEVER, ApiKey
from ottla.wire.errors import MalformedRequest
from ottla.wire.headers import encode_request_header, parse_request_header, parse_response_header, response_header


def test_a_header_before_flexible_versions_has_no_tags() -> None:
    frame = bytes.fromhex("0003 0008 0000002a 0004 726f7074 ff".replace(" ", ""))
    assert parse_request_header(frame) == (3, 8, 42, "ropt", 14)


def test_the_client_id_of_a_flexible_header_keeps_its_two_byte_length() -> None:
    frame = bytes.fromhex("0003 0009 0000002a 0004 726f7074 00 ff".replace(" ", ""))
    assert parse_request_header(frame) == (3, 9, 42, "ropt", 15)


def test_a_client_may_send_no_id_at_all() -> None:
    assert parse_request_header(encode_request_header(3, 9, 1, None))[3] is None
    assert parse_request_header(encode_request_header(3, 9, 1, ""))[3] == ""


def test_unknown_tags_of_a_header_are_skipped() -> None:
    tags = bytes([2, 0, 3]) + b"abc" + bytes([0xC8, 0x01, 1]) + b"x"
    frame = encode_request_header(3, 12, 7, "c")[:-1] + tags + b"BODY"
    header = parse_request_header(memoryview(frame))
    assert frame[header[4] :] == b"BODY"


def test_api_versions_is_answered_without_tags_because_its_asker_cannot_know_better() -> None:
    for version in range(10):
        assert response_header(ApiKey.API_VERSIONS, version, 5) == b"\0\0\0\5"
    assert response_header(ApiKey.METADATA, 8, 5) == b"\0\0\0\5"
    assert response_header(ApiKey.METADATA, 9, 5) == b"\0\0\0\5\0"


def test_a_version_from_the_future_is_parsed_so_that_it_can_be_answered() -> None:
    header = parse_request_header(encode_request_header(ApiKey.API_VERSIONS, 3, 9, "new") + b"?")
    future = bytearray(encode_request_header(ApiKey.API_VERSIONS, 3, 9, "new"))
    future[2:4] = (32767).to_bytes(2, "big")
    assert parse_request_header(bytes(future))[2:] == header[2:]


def test_an_unknown_api_is_parsed_so_that_it_can_be_refused() -> None:
    assert parse_request_header(b"\x7f\xff\0\0\0\0\0\1\xff\xff")[0] == 32767
    assert parse_request_header(b"\xff\xff\0\0\0\0\0\1\xff\xff")[0] == -1


@pytest.mark.parametrize("key", API_INFO, ids=lambda key: key.name.lower())
def test_headers_come_back_as_they_went_for_every_version(key: ApiKey) -> None:
    info = API_INFO[key]
    for version in range(info.min_version, info.max_version + 1):
        header = parse_request_header(encode_request_header(key, version, -7, "client"))
        assert header[:4] == (key, version, -7, "client")
        head = response_header(key, version, 77)
        assert parse_response_header(head + b"body", key, version) == (77, len(head))


@pytest.mark.parametrize("flexible", [False, True])
def test_kafka_python_writes_the_same_header(flexible: bool) -> None:
    theirs = KafkaPythonHeader(request_api_key=3, request_api_version=12, correlation_id=9, client_id="me")
    version = 12 if flexible else 4
    theirs.request_api_version = version
    assert encode_request_header(3, version, 9, "me") == theirs.encode(flexible=flexible)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\3\0\1\0\0\0",
        b"\0\3\0\1\0\0\0\1\0",
        b"\0\3\0\1\0\0\0\1\0\5abc",
        b"\0\3\0\1\0\0\0\1\xff\xfe",
        b"\0\3\0\1\0\0\0\1\0\1\xff",
        b"\0\3\0\x0c\0\0\0\1\xff\xff",
        b"\0\3\0\x0c\0\0\0\1\xff\xff\1\0\x7f",
        b"\0\3\0\x0c\0\0\0\1\xff\xff\xff\xff\xff\xff\xff\xff",
    ],
    ids=[
        "empty",
        "short",
        "half a length",
        "id too long",
        "id of -2",
        "id not UTF-8",
        "no tags",
        "tag too long",
        "varint",
    ],
)
def test_a_header_that_is_none_is_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedRequest):
        parse_request_header(memoryview(frame))


def test_apis_without_a_flexible_version_never_have_tags() -> None:
    assert API_INFO[ApiKey.SASL_HANDSHAKE].flexible_since == NEVER
    assert response_header(ApiKey.SASL_HANDSHAKE, 1, 1) == b"\0\0\0\1"
