"""Every API and version, as users who may do nothing, one thing, everything but one, and everything: who learns what.

What a user learns is held against what the handlers declare: one permission changes an answer only where it is
declared, and each declared permission changes one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import pytest

from ottla.broker.requests.authorization import Access, AuthorizableRequest
from ottla.broker.requests.registry import APIS, INTER_BROKER_APIS
from ottla.core.acls import AclOperation, ResourceType
from ottla.security.authorizer import AclAuthorizer
from ottla.testing.kit.kafka import kafka
from ottla.wire.apis import ApiKey
from tests.support.acl_answers import compared, is_denied
from tests.support.acl_scene import acknowledge, assigned_by_pattern, prepare
from tests.support.acl_users import OPERATIONS, users
from tests.support.authorized_broker import SUPER_USER, authorize, authorizer_of
from tests.support.requests_of_users import CASES, GROUP_SETTINGS, MISSING, NODE_ID, TOPIC, Case, fields_of
from tests.support.wire_client import KEYS, Wire

pytestmark = pytest.mark.timeout(300)

USERS = [user.name for user in users()]
ROWS = {int(key): row for key, row in (APIS | INTER_BROKER_APIS).items()}
Permission = tuple[ResourceType, AclOperation]
PERMISSIONS: list[Permission] = [
    (resource, AclOperation[operation]) for resource, operations in OPERATIONS.items() for operation in operations
]
FREE = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
"""The APIs that require nothing of a client."""
NOT_BY_CLIENTS = {ApiKey.ALTER_PARTITION, ApiKey.ENVELOPE}
"""Between brokers: tests/unit/broker/test_request_driver.py."""

IMPLIED = {
    AclOperation.DESCRIBE: {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER},
    AclOperation.DESCRIBE_CONFIGS: {AclOperation.ALTER_CONFIGS},
}
SAYS_NOTHING = {
    "metadata all",
    "metadata all by an empty list",
    "list_groups",
    "list_transactions",
    "describe_topic_partitions all",
    "describe_cluster",
}
"""Requests that no client is denied: who may do nothing gets an empty response."""
OTHERWISE_WRONG = {"find_coordinator share", "sync_group without protocol"}
"""Requests that are refused for another reason before the authorizer is asked, as in Kafka."""
OF_A_SESSION = ("share_acknowledge", (ResourceType.TOPIC, AclOperation.READ))
"""Needs a share session, which another test has."""
WITH_OPERATIONS = {
    "metadata": {ResourceType.TOPIC, ResourceType.CLUSTER},
    "describe_topic_partitions": {ResourceType.TOPIC},
    "describe_cluster": {ResourceType.CLUSTER},
    "describe_groups": {ResourceType.GROUP},
    "consumer_group_describe": {ResourceType.GROUP},
    "share_group_describe": {ResourceType.GROUP},
}
"""The APIs whose responses have what the client may do with resources of these types."""


class Recording:
    """An authorizer that notes what it is asked, by the API of the request."""

    def __init__(self, authorizer: AclAuthorizer) -> None:
        self.asked: dict[int, set[Permission]] = {}
        self._authorizer = authorizer

    def is_allowed(
        self,
        request: AuthorizableRequest,
        operation: AclOperation,
        resource: ResourceType,
        name: str,
        *,
        log_if_denied: bool = True,
    ) -> bool:
        self.asked.setdefault(request.header[0], set()).add((resource, operation))
        return self._authorizer.is_allowed(request, operation, resource, name, log_if_denied=log_if_denied)

    def is_allowed_for_any(self, request: AuthorizableRequest, operation: AclOperation, resource: ResourceType) -> bool:
        self.asked.setdefault(request.header[0], set()).add((resource, operation))
        return self._authorizer.is_allowed_for_any(request, operation, resource)


class Swept(NamedTuple):
    """The answers of all users, by case and version, and what the authorizer was asked."""

    answers: dict[tuple[str, int], dict[str, Any]]
    asked: dict[int, set[Permission]]
    acknowledged: dict[tuple[str, str], Any]
    assigned: set[str]  # to a member that subscribes to every topic


@pytest.fixture(scope="module")
def swept() -> Swept:
    """Send every request as every user."""
    authorizer = Recording(authorizer_of(acl for user in users() for acl in user.acls))
    answers: dict[tuple[str, int], dict[str, Any]] = {}
    with kafka(options=GROUP_SETTINGS) as broker:
        port = int(broker.bootstrap.rpartition(":")[2])
        authorize(broker._running.brokers[NODE_ID], authorizer)
        wires = {name: Wire(port, client_id=name) for name in (SUPER_USER, *USERS)}
        topic_id = prepare(wires[SUPER_USER])
        authorizer.asked.clear()
        for case in CASES:
            for version in versions_of(case):
                fields = fields_of(case, topic_id)
                answers[str(case), version] = {
                    user: compared(wires[user].call(case.api, version, **fields)) for user in USERS
                }
        acknowledged = {
            (api, user): acknowledge(wires[SUPER_USER], wires[user], topic_id, api, 2)
            for api in ("share_fetch", "share_acknowledge")
            for user in USERS
        }
        assigned = assigned_by_pattern(wires["everything"], wires[SUPER_USER])
        for wire in wires.values():
            wire.close()
    return Swept(answers, authorizer.asked, acknowledged, assigned)


def versions_of(case: Case) -> Iterator[int]:
    """The versions in which a case is sent."""
    row = ROWS[KEYS[case.api]]
    return (version for version in range(row.min_version, row.max_version + 1) if case.since <= version <= case.until)


@cache
def declared(api: str) -> dict[Permission, Access]:
    """What a handler declares, with what would do in place of it."""
    found: dict[Permission, Access] = {}
    for access in ROWS[KEYS[api]].handler().access:
        found[access.resource, access.operation] = access
        if access.or_cluster is not None:
            found[ResourceType.CLUSTER, access.or_cluster] = access
    return found


def may_matter(api: str, resource: ResourceType, operation: AclOperation) -> bool:
    """Whether an answer of the API may depend on a permission."""
    return resource in WITH_OPERATIONS.get(api, ()) or any(
        resource is asked_of and (operation is asked or operation in IMPLIED.get(asked, ()))
        for asked_of, asked in declared(api)
    )


def test_each_api_declares_what_it_requires_and_few_require_nothing() -> None:
    assert {ApiKey(key) for key, row in ROWS.items() if not row.handler().access} == FREE


def test_each_version_of_each_api_is_sent(swept: Swept) -> None:
    sent = {(KEYS[case.api], version) for case in CASES for version in versions_of(case)}
    served = {(key, version) for key, row in ROWS.items() for version in range(row.min_version, row.max_version + 1)}
    assert {each for each in served - sent if each[0] not in FREE | NOT_BY_CLIENTS} == set()
    assert len(swept.answers) >= len(sent)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_who_may_do_nothing_learns_nothing(swept: Swept, case: Case) -> None:
    for version in versions_of(case):
        answer = swept.answers[str(case), version]["nothing"]
        if str(case) in SAYS_NOTHING:
            assert answer.get("cluster_authorized_operations", 0) in (0, -(2**31))
            assert answer.keys() <= {"error_code", "cluster_authorized_operations"} and not answer.get("error_code")
        elif str(case) in OTHERWISE_WRONG and not is_denied(answer):
            assert has_error(answer) and not successes(answer), version
        elif answer:  # the oldest responses to DescribeLogDirs have no error codes
            assert is_denied(answer) and not successes(answer), version


def has_error(answer: Any) -> bool:
    """Whether a response has an error."""
    if isinstance(answer, dict):
        return bool(answer.get("error_code")) or any(map(has_error, answer.values()))
    return isinstance(answer, list) and any(map(has_error, answer))


def successes(answer: Any, *, is_element: bool = False) -> list[Any]:
    """The elements of a response that have no error."""
    if isinstance(answer, list):
        return [found for each in answer for found in successes(each, is_element=True)]
    if not isinstance(answer, dict):
        return []
    codes = [value for key, value in answer.items() if key in ("error_code", "partition_error_code")]
    inner = [found for value in answer.values() for found in successes(value)]
    if is_element and codes and not any(codes) and not any(isinstance(value, list) for value in answer.values()):
        return [answer]
    return inner


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_permission_matters_only_where_it_is_declared(swept: Swept, case: Case) -> None:
    for version in versions_of(case):
        answers = swept.answers[str(case), version]
        for resource, operation in PERMISSIONS:
            if not may_matter(case.api, resource, operation):
                name = f"{resource.name}-{operation.name}"
                assert answers[f"only-{name}"] == answers["nothing"], (version, name)
                assert answers[f"all-but-{name}"] == answers["everything"], (version, name)


@pytest.mark.parametrize("api", sorted({case.api for case in CASES}))
def test_each_declared_permission_matters(swept: Swept, api: str) -> None:
    without_effect = {each for each in declared(api) if each in PERMISSIONS and (api, each) != OF_A_SESSION}
    for (case, _), answers in swept.answers.items():
        if case.split(" ")[0] == api:
            for resource, operation in list(without_effect):
                name = f"{resource.name}-{operation.name}"
                if answers[f"only-{name}"] != answers["nothing"] or answers[f"all-but-{name}"] != answers["everything"]:
                    without_effect.discard((resource, operation))
    assert without_effect == set()


@pytest.mark.parametrize("api", sorted({case.api for case in CASES}))
def test_the_authorizer_is_asked_what_is_declared(swept: Swept, api: str) -> None:
    extra = {permission for permission in PERMISSIONS if permission[0] in WITH_OPERATIONS.get(api, ())}
    asked = {each for each in declared(api) if (api, each) != OF_A_SESSION}
    assert asked <= swept.asked[KEYS[api]] <= set(declared(api)) | extra


@pytest.mark.parametrize("api", ["share_fetch", "share_acknowledge"])
def test_records_of_a_denied_topic_are_not_acknowledged(swept: Swept, api: str) -> None:
    answers = {user: swept.acknowledged[api, user] for user in ("everything", "all-but-TOPIC-READ", "nothing")}
    assert {user: is_denied(answer) for user, answer in answers.items()} == {
        "everything": False,
        "all-but-TOPIC-READ": True,
        "nothing": True,
    }


def test_a_pattern_does_not_match_a_topic_that_is_denied(swept: Swept) -> None:
    assert swept.assigned == {TOPIC}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_denied_topic_looks_like_a_missing_one(swept: Swept, case: Case) -> None:
    for version in versions_of(case):
        for about in elements_named(swept.answers[str(case), version]["nothing"], (TOPIC, MISSING)):
            assert about[TOPIC] == about[MISSING], version


def elements_named(answer: Any, names: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield, of each list in a response that has elements of all these names, what they say besides their names."""
    if isinstance(answer, dict):
        for value in answer.values():
            yield from elements_named(value, names)
    elif isinstance(answer, list):
        found = {}
        for each in answer:
            yield from elements_named(each, names)
            for key in ("name", "topic", "topic_name", "resource_name"):
                if isinstance(each, dict) and each.get(key) in names:
                    found[each[key]] = {other: value for other, value in each.items() if other != key}
        if len(found) == len(names):
            yield found
