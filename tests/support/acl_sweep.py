"""Sends every request of requests_of_users.py as every user to a broker in this process.

    python -m tests.support.acl_sweep             writes tests/security/permissions.toml

The file says, for each request, which permissions change its answer: those without which a user who may do all else gets
another answer than one who may do everything, and those with which alone a user gets another than one who may do
nothing. tests/differential/test_acls_against_kafka.py shows that the answers are those of Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ottla.broker.requests.authorization import AuthorizableRequest
from ottla.broker.requests.registry import APIS, INTER_BROKER_APIS
from ottla.core.acls import AclOperation, ResourceType
from ottla.net.identity import ConnectionIdentity
from ottla.security.authorizer import AclAuthorizer
from ottla.testing.kit.kafka import kafka
from tests.support.acl_answers import compared
from tests.support.acl_scene import (
    acknowledge,
    assigned_by_pattern,
    create,
    create_by_metadata,
    create_token,
    delete,
    prepare,
)
from tests.support.acl_users import OPERATIONS, PREFIX, users
from tests.support.authorized_broker import SUPER_USER, authorize, authorizer_of
from tests.support.requests_of_users import BETWEEN_BROKERS, CASES, NODE_ID, SETTINGS, Case, fields_of
from tests.support.wire_client import KEYS, NO_ID, Answer, Wire

FILE = Path(__file__).parents[1] / "security" / "permissions.toml"
ALL_CASES = (*CASES, *BETWEEN_BROKERS)
USERS = [user.name for user in users()]
ROWS = {int(key): row for key, row in (APIS | INTER_BROKER_APIS).items()}
Permission = tuple[ResourceType, AclOperation]
PERMISSIONS: list[Permission] = [
    (resource, AclOperation[operation]) for resource, operations in OPERATIONS.items() for operation in operations
]
DELETED = f"{PREFIX}deleted"


class Recording:
    """An authorizer that notes what it is asked, by the API of the request."""

    def __init__(self, authorizer: AclAuthorizer) -> None:
        self.asked: dict[int, set[Permission]] = {}
        self._authorizer = authorizer

    def is_super_user(self, identity: ConnectionIdentity) -> bool:
        return self._authorizer.is_super_user(identity)

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
    deleted: dict[tuple[str, bool], Answer]  # what came of a topic, by the user and whether it was named by its id
    created: dict[str, tuple[int, bool]]  # by requests for metadata: the error, and whether there was a topic then


def sweep() -> Swept:
    """Send every request as every user."""
    authorizer = Recording(authorizer_of(acl for user in users() for acl in user.acls))
    answers: dict[tuple[str, int], dict[str, Any]] = {}
    with kafka(options=SETTINGS) as broker:
        port = int(broker.bootstrap.rpartition(":")[2])
        authorize(broker._running.brokers[NODE_ID], authorizer)
        wires = {name: Wire(port, client_id=name) for name in (SUPER_USER, *USERS)}
        topic_id = prepare(wires[SUPER_USER])
        secret = create_token(wires["everything"])
        authorizer.asked.clear()
        for case in ALL_CASES:
            for version in versions_of(case):
                fields = fields_of(case, topic_id, secret)
                answers[str(case), version] = {
                    user: compared(wires[user].call(case.api, version, **fields)) for user in USERS
                }
        acknowledged = {
            (api, user): acknowledge(wires[SUPER_USER], wires[user], topic_id, api, 2)
            for api in ("share_fetch", "share_acknowledge")
            for user in USERS
        }
        deleted = {
            (user, is_by_id): delete(wires[user], DELETED, topic_id_of if is_by_id else NO_ID, 6)["responses"][0]
            for user in ("nothing", "only-TOPIC-READ", "only-TOPIC-DESCRIBE", "only-TOPIC-DELETE")
            for is_by_id in (False, True)
            for topic_id_of in [create(wires[SUPER_USER], DELETED)]
        }
        assigned = assigned_by_pattern(wires["everything"], wires[SUPER_USER])
        created = {
            user: create_by_metadata(wires[user], wires[SUPER_USER], f"{PREFIX}created-{number}")
            for number, user in enumerate(USERS)
        }
        for wire in wires.values():
            wire.close()
    return Swept(answers, authorizer.asked, acknowledged, assigned, deleted, created)


def versions_of(case: Case) -> Iterator[int]:
    """The versions in which a case is sent."""
    row = ROWS[KEYS[case.api]]
    return (version for version in range(row.min_version, row.max_version + 1) if case.since <= version <= case.until)


def permissions_of(swept: Swept, case: Case) -> dict[str, list[str]]:
    """The permissions that change the answer to a request in some version: alone, and where all others are there."""
    names = [f"{resource.name}-{operation.name}" for resource, operation in PERMISSIONS]
    answers = [swept.answers[str(case), version] for version in versions_of(case)]
    return {
        "alone": [name for name in names if any(each[f"only-{name}"] != each["nothing"] for each in answers)],
        "lacking": [name for name in names if any(each[f"all-but-{name}"] != each["everything"] for each in answers)],
    }


def main() -> None:
    """Write the file."""
    swept = sweep()
    lines = ["# Written by `python -m tests.support.acl_sweep`, which explains it."]
    for case in ALL_CASES:
        lines += ["", f'["{case}"]']
        lines += [f"{key} = {found}".replace("'", '"') for key, found in permissions_of(swept, case).items()]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
