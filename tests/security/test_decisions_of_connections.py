"""What a connection remembers of its client's rights counts for the present ACLs and the present client only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.requests.allowed_topics import NAMES_MAX, AllowedTopics
from ottla.core.errors import ErrorCode
from ottla.security.config import AUTHORIZERS
from ottla.security.sasl.jaas import PLAIN_MODULE
from tests.support.batches import batch, numbered
from tests.support.ottla_process import OttlaProcess
from tests.support.wire_client import Wire

READ, WRITE, ALLOW, DENY = 3, 4, 3, 2
DENIED = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    options = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_root="p" user_alice="p" user_bob="p";',
        "authorizer.class.name": AUTHORIZERS[0],
        "super.users": "User:root",
    }
    broker = OttlaProcess(tmp_path, options=[text for item in options.items() for text in ("-o", "=".join(item))])
    broker.start()
    yield broker.port
    broker.stop()


def sign_in(wire: Wire, user: str) -> int:
    assert not wire.call("sasl_handshake", 1, mechanism="PLAIN")["error_code"]
    return int(wire.call("sasl_authenticate", 2, auth_bytes=f"\0{user}\0p".encode())["error_code"])


def acl(operation: int, permission: int = ALLOW, user: str = "User:alice") -> dict[str, Any]:
    return {
        "resource_type": 2,
        "resource_name": "orders",
        "resource_pattern_type": 3,
        "principal": user,
        "host": "*",
        "operation": operation,
        "permission_type": permission,
    }


def produced(wire: Wire) -> int:
    data = [{"name": "orders", "partition_data": [{"index": 0, "records": batch(numbered(1))}]}]
    answer = wire.call("produce", 9, acks=-1, timeout=10_000, topic_data=data)
    return int(answer["responses"][0]["partition_responses"][0]["error_code"])


def fetched(wire: Wire) -> int:
    asked = [{"topic": "orders", "partitions": [{"partition": 0, "partition_max_bytes": 1 << 20}]}]
    answer = wire.call("fetch", 11, max_wait=0, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=asked)
    return int(answer["responses"][0]["partitions"][0]["error_code"])


def test_a_change_of_acls_counts_for_the_next_request_of_an_open_connection(port: int) -> None:
    with Wire(port) as root, Wire(port) as alice, Wire(port) as bob:
        for wire, user in ((root, "root"), (alice, "alice"), (bob, "bob")):
            assert sign_in(wire, user) == 0
        root.call("create_topics", 5, topics=[{"name": "orders", "num_partitions": 1, "replication_factor": 1}])
        assert (produced(alice), fetched(alice)) == (DENIED, DENIED)
        root.call("create_acls", 1, creations=[acl(READ), acl(WRITE)])
        assert [produced(alice), produced(alice), fetched(alice), fetched(alice)] == [0, 0, 0, 0]
        assert (produced(bob), fetched(bob)) == (DENIED, DENIED)
        root.call("create_acls", 1, creations=[acl(WRITE, DENY)])
        assert (produced(alice), fetched(alice)) == (DENIED, 0)
        root.call("create_acls", 1, creations=[acl(READ, DENY, "User:*")])
        assert (produced(alice), fetched(alice)) == (DENIED, DENIED)


def test_what_a_connection_remembers_is_bounded() -> None:
    allowed = AllowedTopics()
    for number in range(3 * NAMES_MAX):
        allowed.add(allowed.readable, f"topic-{number}")
        assert len(allowed.readable) <= NAMES_MAX
    allowed.is_kept = False
    allowed.add(allowed.writable, "topic")
    assert not allowed.writable
