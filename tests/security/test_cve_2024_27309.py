"""CVE-2024-27309: the removal of one ACL of a resource hid its others, DENY too, while Kafka left ZooKeeper for KRaft."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ottla.core.acls import AclBinding, AclOperation, PatternType, PermissionType, ResourceType
from ottla.net.identity import ConnectionIdentity
from ottla.security.config import AuthorizerConfig
from tests.support.acl_list import AclClient, AclList, AclStore, exactly

ALICE, BOB = (AclClient(ConnectionIdentity("User", name)) for name in ("alice", "bob"))
READ, WRITE = AclOperation.READ, AclOperation.WRITE


def acl(
    permission: PermissionType,
    principal: str,
    operation: AclOperation = READ,
    *,
    name: str = "web",
    prefixed: bool = False,
) -> AclBinding:
    kind = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    return AclBinding(ResourceType.TOPIC, kind, name, principal, "*", operation, permission)


ACLS = (
    acl(PermissionType.ALLOW, "User:*", AclOperation.ALL),
    acl(PermissionType.DENY, "User:alice"),
    acl(PermissionType.DENY, "User:bob", WRITE),
    acl(PermissionType.ALLOW, "User:*", AclOperation.ALL, name="*"),
    acl(PermissionType.DENY, "User:alice", WRITE, name="we", prefixed=True),
)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[AclStore]:
    opened = await AclStore(tmp_path / "data", AuthorizerConfig()).open()
    yield opened
    await opened.close()


def decisions(store: AclStore) -> list[bool]:
    return [
        store.authorizer.is_allowed(client, operation, ResourceType.TOPIC, name)
        for client, operation, name in itertools.product((ALICE, BOB), (READ, WRITE), ("web", "webs", "other"))
    ]


def expected(reference: AclList) -> list[bool]:
    return [
        reference.allows(client, operation, ResourceType.TOPIC, name)
        for client, operation, name in itertools.product((ALICE, BOB), (READ, WRITE), ("web", "webs", "other"))
    ]


@pytest.mark.parametrize("order", list(itertools.permutations(range(len(ACLS))))[::11])
async def test_the_removal_of_one_acl_leaves_all_others_in_effect(store: AclStore, order: tuple[int, ...]) -> None:
    await store.create(*ACLS)
    reference = AclList(ACLS)
    for number in order:
        await store.delete(exactly(ACLS[number]))
        reference.acls.remove(ACLS[number])

        assert decisions(store) == expected(reference)
        assert sorted(store.cluster.current.acls.bindings()) == sorted(reference.acls)


@pytest.mark.parametrize("removed", range(len(ACLS)))
async def test_a_restart_and_a_migration_to_kafka_and_back_keep_the_others(store: AclStore, removed: int) -> None:
    await store.create(*ACLS)
    reference = AclList(ACLS)
    await store.delete(exactly(ACLS[removed]))
    reference.acls.remove(ACLS[removed])

    for step in (store.restart, store.reload, store.migrate):
        await step()
        assert decisions(store) == expected(reference)
    await store.create(ACLS[removed])
    assert decisions(store) == expected(AclList(ACLS))


async def test_acls_of_other_resources_stay_when_all_of_one_are_removed(store: AclStore) -> None:
    await store.create(*ACLS)
    of_web = [each for each in ACLS if each.resource_name == "web"]

    await store.delete(*map(exactly, of_web))

    reference = AclList(each for each in ACLS if each not in of_web)
    for step in (store.reload, store.restart, store.migrate):
        assert decisions(store) == expected(reference)
        await step()
    assert not store.authorizer.is_allowed(ALICE, WRITE, ResourceType.TOPIC, "web")
