"""CreateAcls, DescribeAcls and DeleteAcls to a real Kafka with StandardAuthorizer and to Ottla: the bytes are compared.

Where a response has several ACLs, Kafka's order is that of hash tables, and the elements of both are compared. Then
Kafka's directory is taken over by Ottla, and goes back to Kafka: the ACLs stay.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.main import run
from tests.support.ottla_process import OttlaProcess
from tests.support.real_kafka import RealKafka
from tests.support.wire_client import Answer, ConnectionEnded, Wire, decode

pytestmark = [pytest.mark.external, pytest.mark.slow, pytest.mark.timeout(300)]

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
OPTIONS = [f"-o{key}={value}" for key, value in SETTINGS.items()]
ACL: dict[str, Any] = {
    "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:a", "host": "*", "operation": 3,
    "permission_type": 3,
}  # fmt: skip
ANY: dict[str, Any] = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
HOSTS = (
    "", "/", "10.0.0.0/8", "10.0.0.0/33", "10.0.0.256/8", "10.0.0/8", "10.0.0.0/8/8", "a/8", "/8", "127.1/8", "*/8", "10.0.0.0/-1",
    "010.0.0.0/08", "1.2.3.4/0", "10.0.0.0/٨", "host name", "2001:db8::/32", "2001:db8::/129", "2001:db8::/x", "2001:db8::/",
    "2001:db8::/-1", "2001:db8::/+8", "2001:db8::/32/32", "::/0", "::/1000000000000", "g::/8", "::ffff:10.0.0.1/96", "[::1]/64",
    "::1.2.3.4/96", "::1", "10.0.0.1",
)  # fmt: skip
PRINCIPALS = ("", "a", "User", "User:", ":a", "a:b:c", "User:*", "Group:g", ":", "User:é", "User:CN=a,O=b")
RESOURCES = (
    (4, "kafka-cluster"), (4, "x"), (4, ""), (2, ""), (2, "a/b"), (3, "x" * 1000), (2, "a b?"), (6, "token"), (7, "User:x"), (5, "é"),
    (2, "*"), (3, "."), (3, ".."), (3, "/"), (3, "a\nb"), (3, "😀"),
)  # fmt: skip
CODES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 99, -1)

Request = tuple[str, dict[str, Any]]


def creations() -> Iterator[Request]:
    def one(**changed: Any) -> Request:
        return "create_acls", {"creations": [{**ACL, **changed}]}

    for _ in range(2):
        yield one()
    for field in ("resource_type", "resource_pattern_type", "operation", "permission_type"):
        for code in CODES:
            yield one(**{field: code})
    yield from (one(host=host) for host in HOSTS)
    yield from (one(principal=principal) for principal in PRINCIPALS)
    yield from (one(resource_type=kind, resource_name=name) for kind, name in RESOURCES)
    yield from (one(resource_pattern_type=4, resource_type=kind, resource_name=name) for kind, name in RESOURCES)
    mixed = [{**ACL, "resource_name": ""}, {**ACL, "host": "/"}, ACL, {**ACL, "resource_type": 4}, ACL]
    yield "create_acls", {"creations": mixed}
    yield "create_acls", {"creations": [*mixed, {**ACL, "operation": 1}]}
    yield "create_acls", {"creations": []}


def filters() -> Iterator[dict[str, Any]]:
    yield ANY
    for field in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"):
        for code in CODES:
            yield {**ANY, field: code}
    for name in ("", "t", "*", "no", "a/b", ".", "x" * 1000):
        for pattern_type in (1, 2, 3, 4):
            yield {**ANY, "resource_name_filter": name, "pattern_type_filter": pattern_type}
    yield from ({**ANY, "principal_filter": principal} for principal in ("", *PRINCIPALS))
    yield from ({**ANY, "host_filter": host} for host in ("", "*", "10.0.0.0/8", "10.0.0.1"))


def deletions() -> Iterator[Request]:
    for chosen in filters():
        yield "delete_acls", {"filters": [{"resource_name_filter": "no such name", **chosen, **_named(chosen)}]}
    yield "delete_acls", {"filters": []}
    same = {**ANY, "resource_type_filter": 7}
    yield "delete_acls", {"filters": [same, same, {**same, "operation": 99}, {**ANY, "resource_name_filter": "no"}]}
    for chosen in filters():
        if chosen != ANY:
            yield "delete_acls", {"filters": [chosen]}
            yield "create_acls", {"creations": [{**ACL, "host": host} for host in ("*", "10.0.0.0/8", "10.0.0.1")]}
    yield "delete_acls", {"filters": [ANY]}


def _named(chosen: dict[str, Any]) -> dict[str, Any]:
    return {"resource_name_filter": "no such name"} if chosen["resource_name_filter"] is None else {}


@pytest.fixture(scope="module")
def kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    started = RealKafka(kafka_jars, tmp_path_factory.mktemp("acls") / "kafka", settings=SETTINGS).start()
    yield started
    if started.process is not None and started.process.poll() is None:
        started.stop()


@pytest.fixture
def ottla(tmp_path: Path) -> Iterator[OttlaProcess]:
    server = OttlaProcess(tmp_path / "ottla", options=OPTIONS).start()
    yield server
    server.stop()
    server.assert_log_is_clean()


def frame_of(wire: Wire, port: int, request: Request, version: int) -> tuple[Wire, bytes]:
    """Send a request; the response, empty if the connection was closed instead, and the connection for the next."""
    api, fields = request
    try:
        wire.send(api, version, **fields)
        return wire, wire.receive_frame()[4:]  # after the correlation id
    except ConnectionEnded:
        return Wire(port, timeout_s=20), b""


def ordered(value: Any) -> Any:
    """Return a response with its arrays sorted, but for those of a request's elements."""
    if isinstance(value, list):
        return sorted(map(ordered, value), key=repr)
    if isinstance(value, dict):
        return {
            key: [ordered(each) for each in item] if key in {"results", "filter_results"} else ordered(item)
            for key, item in value.items()
        }
    return value


def assert_alike(kafka: RealKafka, ottla: OttlaProcess, requests: list[Request], version: int) -> int:
    """Send each request to both; returns how many responses were equal byte for byte."""
    theirs, ours = Wire(kafka.port, timeout_s=20), Wire(ottla.port, timeout_s=20)
    equal = 0
    for request in requests:
        theirs, expected = frame_of(theirs, kafka.port, request, version)
        ours, given = frame_of(ours, ottla.port, request, version)
        if expected == given:
            equal += 1
            continue
        assert expected, f"Kafka closed the connection: {request} v{version}"
        assert given, f"Ottla closed the connection: {request} v{version}"
        api = request[0]
        assert ordered(answer(api, version, given)) == ordered(answer(api, version, expected)), (request, version)
        assert len(given) == len(expected), (request, version)
    return equal


def answer(api: str, version: int, frame: bytes) -> Answer:
    return decode(api, version, bytes(4) + frame)[1]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_requests_about_acls_are_answered_as_kafka_answers_them(
    kafka: RealKafka, ottla: OttlaProcess, version: int
) -> None:
    described = [("describe_acls", chosen) for chosen in filters()]

    created = list(creations())
    assert assert_alike(kafka, ottla, created, version) == len(created)
    equal = assert_alike(kafka, ottla, described, version)
    equal += assert_alike(kafka, ottla, list(deletions()), version)

    assert equal > 100, "where there is one ACL at most the bytes are equal"


def all_acls(port: int) -> Any:
    with Wire(port) as wire:
        return ordered(wire.call("describe_acls", 3, **ANY)["resources"])


def test_acls_go_from_kafka_to_ottla_and_back(kafka: RealKafka, kafka_jars: Path, tmp_path: Path) -> None:
    acls = [
        {**ACL, "host": "10.0.0.0/8", "permission_type": 2},
        {**ACL, "resource_pattern_type": 4, "operation": 15},
        {**ACL, "resource_type": 3, "resource_name": "a/b"},
        {**ACL, "resource_type": 4, "resource_name": "kafka-cluster", "operation": 9, "principal": "User:*"},
    ]
    gone = {**ACL, "resource_name": "gone"}
    with Wire(kafka.port) as wire:
        wire.call("create_acls", 3, creations=[*acls, gone])
        wire.call("delete_acls", 3, filters=[{**ANY, "resource_name_filter": "gone"}])
    before = all_acls(kafka.port)
    assert len(before) == 4
    kafka.stop()

    server = OttlaProcess(tmp_path / "ottla", options=OPTIONS)
    shutil.copytree(kafka.data, server.data)
    server.start()
    try:
        assert all_acls(server.port) == before
        more = {**ACL, "resource_name": "more"}
        with Wire(server.port) as wire:
            wire.call("create_acls", 3, creations=[more])
        after = all_acls(server.port)
    finally:
        server.stop()
    assert run(["cluster", "export-kafka", str(server.data)]) == 0
    back = RealKafka(kafka_jars, tmp_path / "back", settings={**SETTINGS, "log.dirs": str(server.data)})
    back.data = server.data
    back.start()
    try:
        assert len(after) == 5
        assert all_acls(back.port) == after
    finally:
        back.stop()
