"""Every API and version, as users who may do nothing, one thing, everything but one, and everything: who learns what.

What a user learns is held against what the handlers declare: one permission changes an answer only where it is
declared, and each declared permission changes one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from ottla.broker.requests.authorization import Access
from ottla.core.acls import AclOperation, ResourceType
from ottla.core.error_codes import ErrorCode
from ottla.wire.apis import ApiKey
from tests.support.acl_answers import is_denied
from tests.support.acl_sweep import (
    ALL_CASES,
    DELETED,
    FILE,
    PERMISSIONS,
    ROWS,
    Permission,
    Swept,
    permissions_of,
    sweep,
    versions_of,
)
from tests.support.requests_of_users import MISSING, TOPIC, Case
from tests.support.wire_client import KEYS

pytestmark = pytest.mark.timeout(300)

SIGNING_IN = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
"""The APIs that require nothing of a client."""
OF_EACH_CLIENT = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}
"""The APIs that require nothing of a client that has signed in, as in Kafka; the broker answers each about itself."""
OF_OWNERS = {ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN}
"""The APIs that require no permission, but that the client is the owner or a renewer of the token: no ACL gives that."""
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
    "describe_delegation_token",
}
"""Requests that no client is denied: who may do nothing gets an empty response."""
OTHERWISE_WRONG = {"find_coordinator share", "sync_group without protocol", "create_delegation_token for itself"}
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


@pytest.fixture(scope="module")
def swept() -> Swept:
    return sweep()


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
    assert {
        ApiKey(key) for key, row in ROWS.items() if not row.handler().access
    } == SIGNING_IN | OF_OWNERS | OF_EACH_CLIENT


def test_each_version_of_each_api_is_sent(swept: Swept) -> None:
    sent = {(KEYS[case.api], version) for case in ALL_CASES for version in versions_of(case)}
    served = {(key, version) for key, row in ROWS.items() for version in range(row.min_version, row.max_version + 1)}
    assert {each for each in served - sent if each[0] not in SIGNING_IN | OF_EACH_CLIENT} == set()
    assert len(swept.answers) >= len(sent)


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
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


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_the_permissions_that_matter_are_those_in_the_file(swept: Swept, case: Case) -> None:
    assert permissions_of(swept, case) == tomllib.loads(FILE.read_text(encoding="utf-8"))[str(case)]


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_a_permission_matters_only_where_it_is_declared(swept: Swept, case: Case) -> None:
    for version in versions_of(case):
        answers = swept.answers[str(case), version]
        for resource, operation in PERMISSIONS:
            if not may_matter(case.api, resource, operation):
                name = f"{resource.name}-{operation.name}"
                assert answers[f"only-{name}"] == answers["nothing"], (version, name)
                assert answers[f"all-but-{name}"] == answers["everything"], (version, name)


@pytest.mark.parametrize("api", sorted({case.api for case in ALL_CASES}))
def test_each_declared_permission_matters(swept: Swept, api: str) -> None:
    without_effect = {each for each in declared(api) if each in PERMISSIONS and (api, each) != OF_A_SESSION}
    for (case, _), answers in swept.answers.items():
        if case.split(" ")[0] == api:
            for resource, operation in list(without_effect):
                name = f"{resource.name}-{operation.name}"
                if answers[f"only-{name}"] != answers["nothing"] or answers[f"all-but-{name}"] != answers["everything"]:
                    without_effect.discard((resource, operation))
    assert without_effect == set()


@pytest.mark.parametrize("api", sorted({case.api for case in ALL_CASES}))
def test_the_authorizer_is_asked_what_is_declared(swept: Swept, api: str) -> None:
    extra = {permission for permission in PERMISSIONS if permission[0] in WITH_OPERATIONS.get(api, ())}
    asked = {each for each in declared(api) if (api, each) != OF_A_SESSION}
    assert asked <= swept.asked.get(KEYS[api], set()) <= set(declared(api)) | extra


@pytest.mark.parametrize("api", ["share_fetch", "share_acknowledge"])
def test_records_of_a_denied_topic_are_not_acknowledged(swept: Swept, api: str) -> None:
    answers = {user: swept.acknowledged[api, user] for user in ("everything", "all-but-TOPIC-READ", "nothing")}
    assert {user: is_denied(answer) for user, answer in answers.items()} == {
        "everything": False,
        "all-but-TOPIC-READ": True,
        "nothing": True,
    }


@pytest.mark.parametrize("is_by_id", [False, True], ids=["by name", "by id"])
def test_a_topic_is_deleted_by_who_may_delete_it_and_named_to_who_may_describe_it(swept: Swept, is_by_id: bool) -> None:
    found = {user: (each["error_code"], each["name"]) for (user, by), each in swept.deleted.items() if by is is_by_id}
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert found == {
        "nothing": (denied, None if is_by_id else DELETED),
        "only-TOPIC-READ": (denied, DELETED),
        "only-TOPIC-DESCRIBE": (denied, DELETED),
        "only-TOPIC-DELETE": (ErrorCode.NONE, DELETED),
    }


def test_a_topic_is_created_for_who_may_describe_and_create_it(swept: Swept) -> None:
    created = {user for user, (_, exists) in swept.created.items() if exists}
    lacks_description = "all-but-TOPIC-DESCRIBE"
    assert created == {"everything", *(user for user in swept.created if user.startswith("all-but-"))} - {
        lacks_description
    }
    codes = {exists: code for code, exists in swept.created.values()}
    assert codes == {True: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False: ErrorCode.TOPIC_AUTHORIZATION_FAILED}


def test_a_pattern_does_not_match_a_topic_that_is_denied(swept: Swept) -> None:
    assert swept.assigned == {TOPIC}


@pytest.mark.parametrize("case", [case for case in ALL_CASES if case.label.startswith("all")], ids=str)
def test_a_denied_topic_that_was_not_named_is_left_out(swept: Swept, case: Case) -> None:
    for version in versions_of(case):
        assert not is_denied(swept.answers[str(case), version]["all-but-TOPIC-DESCRIBE"])


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
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
