"""No request holds the event loop: beside the largest requests of every API each turn of the loop stays short.

The requests are generated from the messages' own schema. What is asserted is the processor time of the loop's own
thread in its longest turn, which other processes of the machine do not lengthen; `make bench-limits` measures the
latency of another client. Memory is asserted as the growth of the broker's peak.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.broker.broker import DECODED_SHARE
from ottla.broker.requests.registry import APIS
from ottla.security.sasl.jaas import PLAIN_MODULE
from ottla.wire.apis import ApiKey
from ottla.wire.compiled_codec import ELEMENTS_MAX
from tests.support.batches import batch, numbered
from tests.support.large_requests import (
    WIDE_PARTITIONS,
    WIDE_TOPIC,
    LargeRequest,
    Names,
    exchange,
    large_requests,
    prepare,
)
from tests.support.processes import usage
from tests.support.wire_client import Wire

pytestmark = pytest.mark.slow

TURN_MS_MAX = 40.0
"""Another client may wait for 50 ms; processor time grows with the load of the machine, too."""

RECEIVED_BYTES_MAX = 64 << 20
MEMORY_BYTES_MAX = RECEIVED_BYTES_MAX * (DECODED_SHARE + 1) // DECODED_SHARE
ELEMENTS = 10_001
"""So many that work of four microseconds for each, in one turn, is too long; and one more than CreateTopics creates."""

APPENDS_AWAITED = 20
"""A fetch that waits for so many appends, each answered before the next is sent, is looked at several times."""


class MeasuredBroker:
    """A broker in a process of its own that reports its longest turn."""

    def __init__(self, directory: Path, *options: str, is_prepared: bool = True) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.measured_server",
                str(directory),
                "auto.create.topics.enable=false",
                f"queued.max.request.bytes={RECEIVED_BYTES_MAX}",
                *options,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = int(self._line())
        if is_prepared:
            self.names: Names = prepare(self.port)

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def longest_turn_ms(self) -> float:
        """Return the longest of all turns since the last call; nothing may have failed unexpectedly."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answer = json.loads(self._line())
        assert not answer["error"], answer["error"]
        return float(answer["turn_ms"])

    def stop(self) -> None:
        """Kill it: what it wrote is of no use to anyone."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredBroker]:
    """One broker for all large requests."""
    measured = MeasuredBroker(tmp_path_factory.mktemp("measured"))
    yield measured
    measured.stop()


def grown_bytes(broker: MeasuredBroker, request: LargeRequest) -> int:
    """Send a request; by how much it raises the broker's memory at its peak."""
    Path(f"/proc/{broker.process.pid}/clear_refs").write_text("5")  # the peak begins again
    before = usage(broker.process.pid).rss_bytes
    exchange(broker.port, request.frame)
    return usage(broker.process.pid).peak_rss_bytes - before


@pytest.mark.parametrize("versions", ["newest", "oldest"])
@pytest.mark.parametrize("key", APIS.keys(), ids=lambda key: key.name.lower())
def test_a_large_request_holds_neither_the_loop_nor_memory(broker: MeasuredBroker, key: ApiKey, versions: str) -> None:
    for request in large_requests(broker.names, elements=ELEMENTS, versions=versions, apis=[APIS[key]]):
        broker.longest_turn_ms()
        assert grown_bytes(broker, request) <= MEMORY_BYTES_MAX, str(request)
        assert broker.longest_turn_ms() <= TURN_MS_MAX, str(request)


def test_a_request_with_more_elements_than_the_limit_ends_its_connection(broker: MeasuredBroker) -> None:
    (request,) = (
        each
        for each in large_requests(broker.names, elements=ELEMENTS_MAX + 1, apis=[APIS[ApiKey.METADATA]])
        if each.form == "empty"
    )

    assert exchange(broker.port, request.frame) == -1


@pytest.mark.parametrize("key_type", [0, 1], ids=["group", "transaction"])
def test_the_first_look_for_a_coordinator_does_not_hold_the_loop(tmp_path: Path, key_type: int) -> None:
    """Its modules are imported in a thread."""
    broker = MeasuredBroker(tmp_path, is_prepared=False)
    try:
        with Wire(broker.port, timeout_s=60) as wire:
            wire.call("api_versions", 3, client_software_name="test", client_software_version="1")
            broker.longest_turn_ms()
            wire.call("find_coordinator", 4, key_type=key_type, coordinator_keys=["readers"])

        assert broker.longest_turn_ms() <= TURN_MS_MAX
    finally:
        broker.stop()


def test_the_creation_of_many_partitions_does_not_hold_the_loop(broker: MeasuredBroker) -> None:
    broker.longest_turn_ms()

    with Wire(broker.port, timeout_s=120) as wire:
        wanted = {"name": "many", "num_partitions": 2000, "replication_factor": 1}
        answer = wire.call("create_topics", 5, topics=[wanted], timeout=100_000)

    assert answer["topics"][0]["error_code"] == 0
    assert broker.longest_turn_ms() <= TURN_MS_MAX


def test_a_session_of_many_partitions_does_not_hold_the_loop(broker: MeasuredBroker) -> None:
    broker.longest_turn_ms()

    fetch_in_a_wide_session(broker)

    assert broker.longest_turn_ms() <= TURN_MS_MAX


def fetch_in_a_wide_session(broker: MeasuredBroker) -> None:
    """Fetch in a session of many partitions, at the end of all logs, and append to one of them while it waits."""
    with Wire(broker.port, timeout_s=60) as wire:
        asked = [{"partition": index, "partition_max_bytes": 1 << 20} for index in (*range(WIDE_PARTITIONS), 0)]
        limits = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 24, "session_epoch": 0}
        first = wire.call("fetch", 12, topics=[{"topic": WIDE_TOPIC, "partitions": asked}], **limits)
        assert [len(topic["partitions"]) for topic in first["responses"]] == [WIDE_PARTITIONS]
        bytes_awaited = APPENDS_AWAITED * len(batch(numbered(1)))
        limits |= {"session_id": first["session_id"], "max_wait": 20_000, "min_bytes": bytes_awaited}
        with Wire(broker.port, timeout_s=60) as producer, ThreadPoolExecutor(1) as waiting:
            response = waiting.submit(wire.call, "fetch", 12, **(limits | {"session_epoch": 1}))
            for _ in range(APPENDS_AWAITED):
                produce(producer, [7])
            found = response.result()
            assert (found["error_code"], len(found["responses"])) == (0, 1), found
            (topic,) = found["responses"]

    assert [part["partition_index"] for part in topic["partitions"]] == [7]


def test_produce_to_many_partitions_keeps_the_order_of_each(broker: MeasuredBroker) -> None:
    partitions = [*range(100, 400), 3]
    with Wire(broker.port, timeout_s=60) as wire:
        (before,) = produce(wire, [3])
        first, second = produce(wire, partitions), produce(wire, partitions)

    assert first[-1] == before + 1
    assert [later - earlier for earlier, later in zip(first, second, strict=True)] == [1] * 301


def produce(wire: Wire, partitions: list[int]) -> list[int]:
    """Append one record to each; returns their offsets."""
    data = [{"index": index, "records": batch(numbered(1))} for index in partitions]
    answer = wire.call("produce", 9, acks=-1, timeout=60_000, topic_data=[{"name": WIDE_TOPIC, "partition_data": data}])
    parts = answer["responses"][0]["partition_responses"]
    assert [(part["index"], part["error_code"]) for part in parts] == [(index, 0) for index in partitions]
    return [part["base_offset"] for part in parts]


ACLS, TOKENS, RENEWERS = 10_000, 1_000, 200
ANY, MATCH, READ, ALLOW = 1, 2, 3, 3
ANY_ACL = {
    "resource_type_filter": ANY,
    "resource_name_filter": None,
    "pattern_type_filter": ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": ANY,
    "permission_type": ANY,
}


def acl(name: str, principal: str) -> dict[str, object]:
    return {
        "resource_type": 2,
        "resource_name": name,
        "resource_pattern_type": 3,
        "principal": principal,
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
    }


@contextmanager
def signed_in(directory: Path) -> Iterator[tuple[MeasuredBroker, Wire]]:
    """A broker with an authorizer and tokens, and a super user who has signed in."""
    broker = MeasuredBroker(
        directory,
        "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms=PLAIN",
        f'plain.sasl.jaas.config={PLAIN_MODULE} required user_root="r";',
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:root",
        "delegation.token.secret.key=key",
        is_prepared=False,
    )
    try:
        with Wire(broker.port, timeout_s=120) as wire:
            assert wire.call("sasl_handshake", 1, mechanism="PLAIN")["error_code"] == 0
            assert wire.call("sasl_authenticate", 2, auth_bytes=b"\0root\0r")["error_code"] == 0
            yield broker, wire
    finally:
        broker.stop()


def test_very_many_acls_do_not_hold_the_loop(tmp_path: Path) -> None:
    """Of 10,000 resources with one each, and of 12 with 4,000 each: created, listed by name and all, deleted."""
    with signed_in(tmp_path) as (broker, wire):
        many = [acl(f"topic-{number}", "User:alice") for number in range(ACLS)]
        large = [[acl(f"large-{at}", f"User:{number}") for number in range(4_000)] for at in range(12)]
        again = [acl(f"large-{at}", "User:last") for at in range(12)]
        broker.longest_turn_ms()
        for creations in (many, *large, again):
            created = wire.call("create_acls", 1, creations=creations)["results"]
            assert {result["error_code"] for result in created} == {0}
            assert broker.longest_turn_ms() <= TURN_MS_MAX

        everything = wire.call("describe_acls", 1, **ANY_ACL)
        assert len(everything["resources"]) == ACLS + 12
        assert broker.longest_turn_ms() <= TURN_MS_MAX
        nobody = wire.call("describe_acls", 1, **{**ANY_ACL, "host_filter": "192.0.2.1"})
        assert not nobody["resources"]
        assert broker.longest_turn_ms() <= TURN_MS_MAX
        matching = {**ANY_ACL, "resource_name_filter": "topic-77", "pattern_type_filter": MATCH}
        assert len(wire.call("describe_acls", 1, **matching)["resources"]) == 1
        assert broker.longest_turn_ms() <= TURN_MS_MAX

        chosen = {**ANY_ACL, "principal_filter": "User:alice"}
        (deleted,) = wire.call("delete_acls", 1, filters=[chosen])["filter_results"]
        assert len(deleted["matching_acls"]) == ACLS
        assert broker.longest_turn_ms() <= TURN_MS_MAX


def test_very_many_tokens_do_not_hold_the_loop(tmp_path: Path) -> None:
    with signed_in(tmp_path) as (broker, wire):
        renewers = [{"principal_type": "User", "principal_name": f"user-{number}"} for number in range(RENEWERS)]
        for _ in range(TOKENS):
            token = wire.call("create_delegation_token", 1, renewers=renewers, max_lifetime_ms=-1)
            assert token["error_code"] == 0
        broker.longest_turn_ms()
        described = wire.call("describe_delegation_token", 1, owners=None)
        assert len(described["tokens"]) == TOKENS
        assert broker.longest_turn_ms() <= TURN_MS_MAX
        renewed = wire.call("renew_delegation_token", 1, hmac=token["hmac"], renew_period_ms=1000)
        assert renewed["error_code"] == 0
        assert broker.longest_turn_ms() <= TURN_MS_MAX
