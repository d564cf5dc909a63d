"""The same requests of the same users to a real Kafka with StandardAuthorizer and to Ottla: what they learn is compared.

Each user has one permission, lacks one, has none or has all (tests/support/requests_of_users.py). Every version of
every API is sent as each of them. Of the responses all error codes, authorized operations and names are compared.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.requests.registry import APIS
from ottla.core.acls import AclBinding
from tests.support.acl_answers import compared, is_denied
from tests.support.acl_scene import (
    acknowledge,
    assigned_by_pattern,
    create,
    create_by_metadata,
    create_token,
    delete,
    prepare,
)
from tests.support.acl_users import PREFIX, users
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import free_port
from tests.support.real_kafka import RealKafka
from tests.support.requests_of_users import CASES, NODE_ID, SETTINGS, TOPIC, Case, fields_of
from tests.support.wire_client import KEYS, NO_ID, ConnectionEnded, Wire

pytestmark = [pytest.mark.external, pytest.mark.slow, pytest.mark.timeout(900)]

USERS = list(users())
PASSWORD = "p"
NAMES_OF_APIS = {number: name for name, number in KEYS.items()}
SIGNING_IN = {"sasl_handshake", "sasl_authenticate", "api_versions"}

LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SECURITY = {
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        f"{LOGIN} required " + " ".join(f'user_{user.name}="{PASSWORD}"' for user in USERS) + ";"
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""Settings of both: users sign in on one listener, and on the other are super users who do not."""


def _without_quorum(answer: Any) -> Any:
    """A broker of Ottla has no quorum to describe: UNSUPPORTED_VERSION for who may."""
    return {"error_code": 35} if answer["error_code"] == 0 else answer


def _without_ids_of_denied(answer: Any) -> Any:
    """Kafka discloses the id of a topic that is denied, and so that there is one."""
    topics = [
        {key: value for key, value in topic.items() if key != "has_topic_id" or not is_denied(topic)}
        for topic in answer.get("responses", ())
    ]
    return {**answer, "responses": topics} if topics else answer


INTENDED = {"describe_quorum": _without_quorum, "alter_share_group_offsets": _without_ids_of_denied}
"""What Ottla responds where it is not what Kafka does, by the API: a function of what Kafka responds."""


class Side:
    """One of the two brokers, with a connection for each user."""

    def __init__(self, port: int, *, super_port: int) -> None:
        self.super = Wire(super_port, timeout_s=20)
        self.topic_id, self.secret = uuid.UUID(int=0), b""
        self._port = port
        self._wires: dict[str, Wire] = {}

    def prepare(self) -> None:
        """Create the ACLs of all users, and what the requests are about."""
        created = self.super.call("create_acls", 3, creations=[creation(acl) for user in USERS for acl in user.acls])
        assert {result["error_code"] for result in created["results"]} == {0}
        self.topic_id = prepare(self.super)
        self.secret = create_token(self.wire("everything"))

    def wire(self, user: str) -> Wire:
        """The connection of a user."""
        if user not in self._wires:
            wire = self._wires[user] = Wire(self._port, timeout_s=20, client_id=user)
            wire.call("sasl_handshake", 1, mechanism="PLAIN")
            answer = wire.call("sasl_authenticate", 2, auth_bytes=f"\0{user}\0{PASSWORD}".encode())
            assert answer["error_code"] == 0, answer
        return self._wires[user]

    def ask(self, user: str, case: Case, version: int) -> Any:
        """Send a request as a user; what is compared of the response."""
        try:
            return compared(self.wire(user).call(case.api, version, **fields_of(case, self.topic_id, self.secret)))
        except ConnectionEnded:
            self._wires.pop(user).close()
            return "connection closed"

    def close(self) -> None:
        """Close every connection."""
        for wire in (self.super, *self._wires.values()):
            wire.close()


def creation(acl: AclBinding) -> dict[str, Any]:
    """An element of CreateAcls."""
    return {
        "resource_type": int(acl.resource_type),
        "resource_name": acl.resource_name,
        "resource_pattern_type": int(acl.pattern_type),
        "principal": acl.principal,
        "host": acl.host,
        "operation": int(acl.operation),
        "permission_type": int(acl.permission_type),
    }


@pytest.fixture(scope="module")
def kafka_side(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    port = free_port()
    broker = RealKafka(kafka_jars, tmp_path_factory.mktemp("acls") / "kafka", node_id=NODE_ID, settings=SETTINGS)
    listeners = f"PLAINTEXT://127.0.0.1:{broker.port},SASL_PLAINTEXT://127.0.0.1:{port}"
    settings = {
        **SECURITY,
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{broker.controller_port}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
    }
    with broker.properties.open("a", encoding="utf-8") as file:
        file.writelines(f"{name}={value}\n" for name, value in settings.items())
    broker.start()
    yield from prepared(port, broker)


@pytest.fixture(scope="module")
def ottla_side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    port, super_port = free_port(), free_port()
    settings = {
        **SETTINGS,
        **SECURITY,
        "listeners": f"PLAINTEXT://127.0.0.1:{super_port},SASL_PLAINTEXT://127.0.0.1:{port}",
        "auto.create.topics.enable": "true",
    }
    options = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
    broker = OttlaProcess(tmp_path_factory.mktemp("acls") / "ottla", options=options).start()
    broker.port = super_port
    yield from prepared(port, broker)
    broker.assert_log_is_clean()


def prepared(port: int, broker: RealKafka | OttlaProcess) -> Iterator[Side]:
    side = Side(port, super_port=broker.port)
    try:
        side.prepare()
        yield side
    finally:
        side.close()
        broker.stop()


@pytest.fixture(scope="module")
def versions(kafka_side: Side) -> dict[str, range]:
    """The versions that both serve, by the name of the API."""
    keys = kafka_side.super.call("api_versions", 2)["api_keys"]
    theirs = {key["api_key"]: (key["min_version"], key["max_version"]) for key in keys}
    return {
        NAMES_OF_APIS[int(key)]: range(max(api.min_version, theirs[key][0]), min(api.max_version, theirs[key][1]) + 1)
        for key, api in APIS.items()
        if key in theirs  # it has those of clients' metrics only with a receiver of them
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_user_learns_the_same_from_both(
    kafka_side: Side, ottla_side: Side, versions: dict[str, range], case: Case
) -> None:
    differences: dict[str, list[str]] = {}
    for version in versions[case.api]:
        if not case.since <= version <= case.until:
            continue
        for user in USERS:
            expected, found = (side.ask(user.name, case, version) for side in (kafka_side, ottla_side))
            expected = INTENDED.get(case.api, lambda answer: answer)(expected)
            if expected != found:
                differences.setdefault(f"Kafka {expected}\n here {found}", []).append(f"{user.name} v{version}")
    shown = [f"{text}\n   of {len(of)}: {' '.join(of[:12])}" for text, of in differences.items()]
    if shown:
        pytest.fail("\n".join([f"{len(shown)} differences", *shown[:5]]), pytrace=False)


def test_every_version_of_every_api_was_compared(versions: dict[str, range]) -> None:
    asked = {
        (case.api, version) for case in CASES for version in versions[case.api] if case.since <= version <= case.until
    }
    served = {(api, version) for api, of_api in versions.items() for version in of_api if api not in SIGNING_IN}
    assert served == asked


@pytest.mark.parametrize("api", ["share_fetch", "share_acknowledge"])
def test_the_same_users_acknowledge_records(
    kafka_side: Side, ottla_side: Side, versions: dict[str, range], api: str
) -> None:
    for version in versions[api]:
        for user in USERS:
            expected, found = (
                compared(acknowledge(side.super, side.wire(user.name), side.topic_id, api, version))
                for side in (kafka_side, ottla_side)
            )
            assert found == expected, (user.name, version)


def test_a_pattern_matches_the_same_topics(kafka_side: Side, ottla_side: Side) -> None:
    expected, found = (assigned_by_pattern(side.wire("everything"), side.super) for side in (kafka_side, ottla_side))
    assert found == expected == {TOPIC}


def test_topics_are_created_for_the_same_users(kafka_side: Side, ottla_side: Side) -> None:
    for number, user in enumerate(USERS):
        expected, found = (
            create_by_metadata(side.wire(user.name), side.super, f"{PREFIX}created-{number}")
            for side in (kafka_side, ottla_side)
        )
        assert found == expected, user.name


@pytest.mark.parametrize("is_by_id", [False, True], ids=["by name", "by id"])
def test_the_same_users_delete_a_topic(
    kafka_side: Side, ottla_side: Side, versions: dict[str, range], is_by_id: bool
) -> None:
    for version in versions["delete_topics"]:
        if is_by_id and version < 6:
            continue
        for user in USERS:
            answers = []
            name = f"{PREFIX}{version}-{user.name}-{is_by_id}"  # Kafka may show a topic that is deleted for a while
            for side in (kafka_side, ottla_side):
                topic_id = create(side.super, name)
                answers.append(compared(delete(side.wire(user.name), name, topic_id if is_by_id else NO_ID, version)))
            assert answers[0] == answers[1], (user.name, version)
