"""Every API in every version fails as a test asks, as a client sees it that sends the request by a socket."""

from __future__ import annotations

import socket
import struct
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ottla.broker.requests.registry import Api
from ottla.core.error_codes import ErrorCode
from ottla.testing import Kafka, kafka
from ottla.testing.kit.faults.names import name_of
from ottla.testing.kit.faults.responses import errors_in
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.headers import encode_request_header, parse_response_header
from tests.support.requests_of_apis import each_version, each_with_topics, request_of

_LENGTH = struct.Struct(">i")
CORRELATION_ID = 42


@pytest.fixture(scope="module")
def k() -> Iterator[Kafka]:
    options = {"delete.topic.enable": "false"}
    with kafka(topics={"orders": 2, "payments": 2}, options=options) as running:
        yield running


def ask(k: Kafka, key: ApiKey, version: int, body: Any) -> Any:
    """Send a request; return the decoded response."""
    host, port = k.bootstrap.split(":")
    frame = encode_request_header(key, version, CORRELATION_ID, "asks") + codec.encode_request(key, version, body)
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(_LENGTH.pack(len(frame)) + frame)
        reader = connection.makefile("rb")
        (length,) = _LENGTH.unpack(reader.read(_LENGTH.size))
        response = reader.read(length)
    correlation_id, body_at = parse_response_header(response, key, version)
    assert correlation_id == CORRELATION_ID
    return codec.decode_response(key, version, response, body_at)


@pytest.fixture(scope="module")
def ids(k: Kafka) -> Mapping[str, uuid.UUID]:
    """Return the ids of the topics."""
    body = codec.shape_class(ApiKey.METADATA, "Request")(topics=None)
    return {topic.name: topic.topic_id for topic in ask(k, ApiKey.METADATA, 12, body).topics}


def request_with_a_response(key: ApiKey, version: int, ids: Mapping[str, uuid.UUID]) -> Any:
    body = request_of(key, version, ids)
    if key is ApiKey.PRODUCE:
        body.acks = -1
    return body


@each_version
def test_a_whole_request_fails(k: Kafka, ids: Mapping[str, uuid.UUID], row: Api, version: int) -> None:
    with k.fail(name_of(row.key), "POLICY_VIOLATION", times=1, client_id="asks") as fault:
        response = ask(k, row.key, version, request_with_a_response(row.key, version, ids))
    assert [error.name for error in errors_in(response)] == ["POLICY_VIOLATION"]
    assert fault.count == 1


@each_with_topics
def test_one_topic_fails_and_the_others_are_served(
    k: Kafka, ids: Mapping[str, uuid.UUID], row: Api, version: int
) -> None:
    with k.fail(name_of(row.key), "POLICY_VIOLATION", topic="orders", client_id="asks") as fault:
        response = ask(k, row.key, version, request_with_a_response(row.key, version, ids))
    errors = [error.name for error in errors_in(response)]
    assert "POLICY_VIOLATION" in errors
    assert fault.count == 1


@pytest.mark.parametrize("version", range(2, 8))
def test_a_topic_is_created_beside_one_that_fails(version: int) -> None:
    with kafka() as k, k.fail("CreateTopics", "POLICY_VIOLATION", topic="orders") as fault:
        body = request_of(ApiKey.CREATE_TOPICS, version)
        for topic in body.topics:
            topic.num_partitions = topic.replication_factor = 1
        response = ask(k, ApiKey.CREATE_TOPICS, version, body)
        assert {topic.name: topic.error_code for topic in response.topics} == {"orders": 44, "payments": 0}
        assert fault.count == 1


def test_a_transaction_gets_all_its_partitions_or_none(k: Kafka) -> None:
    with k.fail("AddPartitionsToTxn", "TOPIC_AUTHORIZATION_FAILED", topic="orders", partition=1):
        response = ask(k, ApiKey.ADD_PARTITIONS_TO_TXN, 3, request_of(ApiKey.ADD_PARTITIONS_TO_TXN, 3))
    answers = {
        (topic.name, partition.partition_index): ErrorCode(partition.partition_error_code).name
        for topic in response.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    }
    assert answers == {
        ("orders", 0): "OPERATION_NOT_ATTEMPTED",
        ("orders", 1): "TOPIC_AUTHORIZATION_FAILED",
        ("payments", 0): "OPERATION_NOT_ATTEMPTED",
        ("payments", 1): "OPERATION_NOT_ATTEMPTED",
    }


def test_a_version_that_is_refused_is_answered_in_version_0(k: Kafka) -> None:
    body = codec.shape_class(ApiKey.API_VERSIONS, "Request")(client_software_name="a", client_software_version="1")
    with k.fail("ApiVersions", "UNSUPPORTED_VERSION", times=1, client_id="asks"):
        host, port = k.bootstrap.split(":")
        frame = encode_request_header(ApiKey.API_VERSIONS, 3, 1, "asks")
        frame += codec.encode_request(ApiKey.API_VERSIONS, 3, body)
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(_LENGTH.pack(len(frame)) + frame)
            reader = connection.makefile("rb")
            (length,) = _LENGTH.unpack(reader.read(_LENGTH.size))
            response = codec.decode_response(ApiKey.API_VERSIONS, 0, reader.read(length), 4)
    assert response.error_code == 35
    assert [each.api_key for each in response.api_keys] == [ApiKey.API_VERSIONS]
    assert k.requests("ApiVersions", client_id="asks")[-1].errors == ("UNSUPPORTED_VERSION",)


def test_a_malformed_request_is_refused_and_hits_no_fault(k: Kafka) -> None:
    with k.fail("Metadata", "POLICY_VIOLATION", topic="orders") as fault:
        host, port = k.bootstrap.split(":")
        frame = encode_request_header(ApiKey.METADATA, 9, 1, "asks") + b"\xff\xff"
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(_LENGTH.pack(len(frame)) + frame)
            assert connection.recv(1) == b""
    assert fault.count == 0
