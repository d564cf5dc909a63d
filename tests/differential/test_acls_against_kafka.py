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
from ottla.testing.kit.kafka import kafka
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
from tests.support.authorized_broker import SUPER_USER, authorize, authorizer_of
from tests.support.processes import free_port
from tests.support.real_kafka import RealKafka
from tests.support.requests_of_users import CASES, NODE_ID, SETTINGS, TOPIC, Case, fields_of
from tests.support.wire_client import KEYS, NO_ID, ConnectionEnded, Wire

pytestmark = [pytest.mark.external, pytest.mark.slow, pytest.mark.timeout(900)]

USERS = list(users())
PASSWORD = "p"
NAMES_OF_APIS = {number: name for name, number in KEYS.items()}
SIGNING_IN = {"sasl_handshake", "sasl_authenticate", "api_versions"}

ONLY_DENIALS = {
    "describe_quorum": "there is no quorum to describe: UNSUPPORTED_VERSION for who may",
    "describe_acls": "the ACLs of this test are not in the metadata store: SECURITY_DISABLED for who may",
    "create_acls": "the same",
    "delete_acls": "the same",
    "share_fetch a new session": "the first response of Kafka names partitions without records, too",
    "alter_share_group_offsets": "Kafka discloses the id of a topic that is denied",
}
"""Requests to which the responses differ for another reason. Of these it is compared who is denied something."""


class Side:
    """One of the two brokers, with a connection for each user."""

    def __init__(self, port: int, *, signs_in: bool, super_port: int) -> None:
        self.super = Wire(super_port, client_id=SUPER_USER)
        self.topic_id, self.secret = uuid.UUID(int=0), b""
        self._port, self._signs_in = port, signs_in
        self._wires: dict[str, Wire] = {}

    def prepare(self) -> None:
        """Create what the requests are about."""
        self.topic_id = prepare(self.super)
        self.secret = create_token(self.wire("everything"))

    def wire(self, user: str) -> Wire:
        """The connection of a user."""
        if user not in self._wires:
            wire = self._wires[user] = Wire(self._port, timeout_s=20, client_id=user)
            if self._signs_in:
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


@pytest.fixture(scope="module")
def kafka_side(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    port = free_port()
    passwords = " ".join(f'user_{user.name}="{PASSWORD}"' for user in USERS)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    broker = RealKafka(kafka_jars, tmp_path_factory.mktemp("acls") / "kafka", node_id=NODE_ID, settings=SETTINGS)
    listeners = f"PLAINTEXT://127.0.0.1:{broker.port},SASL_PLAINTEXT://127.0.0.1:{port}"
    settings = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{broker.controller_port}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{module} required {passwords};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with broker.properties.open("a", encoding="utf-8") as file:
        file.writelines(f"{name}={value}\n" for name, value in settings.items())
    broker.start()
    side = Side(port, signs_in=True, super_port=broker.port)
    try:
        creations = [
            {
                "resource_type": int(acl.resource_type),
                "resource_name": acl.resource_name,
                "resource_pattern_type": int(acl.pattern_type),
                "principal": acl.principal,
                "host": acl.host,
                "operation": int(acl.operation),
                "permission_type": int(acl.permission_type),
            }
            for user in USERS
            for acl in user.acls
        ]
        created = side.super.call("create_acls", 3, creations=creations)
        assert {result["error_code"] for result in created["results"]} == {0}
        side.prepare()
        yield side
    finally:
        side.close()
        broker.stop()


@pytest.fixture(scope="module")
def ottla_side() -> Iterator[Side]:
    with kafka(options=SETTINGS) as broker:
        port = int(broker.bootstrap.rpartition(":")[2])
        authorize(broker._running.brokers[NODE_ID], authorizer_of(acl for user in USERS for acl in user.acls))
        side = Side(port, signs_in=False, super_port=port)
        try:
            side.prepare()
            yield side
        finally:
            side.close()


@pytest.fixture(scope="module")
def versions(kafka_side: Side) -> dict[str, range]:
    """The versions that both serve, by the name of the API."""
    keys = kafka_side.super.call("api_versions", 2)["api_keys"]
    theirs = {key["api_key"]: (key["min_version"], key["max_version"]) for key in keys}
    return {
        NAMES_OF_APIS[int(key)]: range(max(api.min_version, theirs[key][0]), min(api.max_version, theirs[key][1]) + 1)
        for key, api in APIS.items()
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
            if case.api in ONLY_DENIALS or str(case) in ONLY_DENIALS:
                expected, found = is_denied(expected), is_denied(found)
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
