"""What the controller serves is decided by who the client is, whichever broker it has asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ottla.broker.handlers.envelope import FORWARDED_IN_PART
from ottla.broker.requests.registry import APIS
from ottla.testing.kit.kafka import kafka
from ottla.wire.apis import ApiKey
from tests.support.acl_answers import compared, is_denied
from tests.support.acl_scene import create, create_token
from tests.support.acl_users import users
from tests.support.authorized_broker import SUPER_USER, authorize, authorizer_of
from tests.support.requests_of_users import CASES, SETTINGS, TOPIC, Case, fields_of
from tests.support.wire_client import KEYS, Wire

pytestmark = pytest.mark.timeout(300)

USERS = [user.name for user in users()]
FORWARDED = [
    case
    for case in CASES
    for row in [APIS[ApiKey(KEYS[case.api])]]
    if (row.controller_only or row.key in FORWARDED_IN_PART) and case.until >= row.max_version
]
Answers = dict[str, dict[str, Any]]
"""By case and user."""


@pytest.fixture(scope="module")
def answers() -> tuple[Answers, Answers]:
    """The answers of the controller, and of a broker that forwards to it."""
    with kafka(brokers=2, options=SETTINGS) as kit:
        cluster = kit._running
        for broker in cluster.brokers.values():
            authorize(broker, authorizer_of(acl for user in users() for acl in user.acls))
        ports = {node_id: int(address.rpartition(":")[2]) for node_id, address in kit.brokers.items()}
        with Wire(ports[cluster.controller], client_id=SUPER_USER) as wire:
            topic_id = create(wire, TOPIC)
        with Wire(ports[cluster.controller], client_id="everything") as wire:
            secret = create_token(wire)
        controller, other = (
            answers_of(ports[node_id], topic_id, secret)
            for node_id in sorted(ports, key=lambda node: node != cluster.controller)
        )
        return controller, other


def answers_of(port: int, topic_id: Any, secret: bytes) -> Answers:
    """What each user gets from the broker at a port."""
    found: Answers = {str(case): {} for case in FORWARDED}
    for user in USERS:
        with Wire(port, client_id=user) as wire:
            for case in FORWARDED:
                version = APIS[ApiKey(KEYS[case.api])].max_version
                found[str(case)][user] = compared(wire.call(case.api, version, **fields_of(case, topic_id, secret)))
    return found


def denials(answer: Any) -> Iterator[Any]:
    """Yield the parts of a response that say that something is denied, without what they are about."""
    if isinstance(answer, dict):
        if is_denied({key: value for key, value in answer.items() if not isinstance(value, dict | list)}):
            yield answer.get("error_code"), answer.get("name"), answer.get("resource_name")
        for value in answer.values():
            yield from denials(value)
    elif isinstance(answer, list):
        for each in answer:
            yield from denials(each)


@pytest.mark.parametrize("case", FORWARDED, ids=str)
def test_both_brokers_deny_the_same(answers: tuple[Answers, Answers], case: Case) -> None:
    controller, other = (each[str(case)] for each in answers)
    assert is_denied(controller["nothing"]) and is_denied(other["nothing"])
    for user in USERS:
        # the settings of broker 1 are altered by itself alone
        ours, theirs = sorted(denials(controller[user]), key=repr), sorted(denials(other[user]), key=repr)
        assert [each for each in ours if each[2] != "1"] == [each for each in theirs if each[2] != "1"], user
