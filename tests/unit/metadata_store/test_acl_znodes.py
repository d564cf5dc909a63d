"""Kafka's znodes of ACLs, and the ACLs of the snapshot that is read from them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from ottla.core.acls import AccessControlEntry, AclOperation, PatternType, PermissionType, ResourcePattern, ResourceType
from ottla.metadata_store import acl_znodes, broker_registration, znodes
from ottla.metadata_store.acl_index import ResourceAcls
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore, EmbeddedSession
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.metadata_store.store import Create, Delete, Put

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED, UNKNOWN = PatternType.LITERAL, PatternType.PREFIXED, PatternType.UNKNOWN
ALICE = AccessControlEntry("User:alice", "*", AclOperation.READ, PermissionType.ALLOW)
BOB = AccessControlEntry("User:bób", "10.0.0.0/8", AclOperation.CLUSTER_ACTION, PermissionType.DENY)
TEXT = (
    '{"version":1,"acls":[{"principal":"User:alice","permissionType":"Allow","operation":"Read","host":"*"},'
    '{"principal":"User:bób","permissionType":"Deny","operation":"ClusterAction","host":"10.0.0.0/8"}]}'
)
"""As Kafka 3.6 writes it (kafka.security.authorizer.AclEntry)."""


def test_acls_are_written_and_read_as_kafka_does() -> None:
    assert acl_znodes.encode_acls([ALICE, BOB]) == TEXT.encode()
    assert acl_znodes.decode_acls("/p", TEXT.encode()) == (ALICE, BOB)
    assert acl_znodes.decode_acls("/p", b"") == ()
    ordered_otherwise = json.dumps({"acls": json.loads(TEXT)["acls"], "version": 1})  # as by Kafka 3.9
    assert acl_znodes.decode_acls("/p", ordered_otherwise.encode()) == (ALICE, BOB)


@pytest.mark.parametrize("operation", [each for each in AclOperation if each > AclOperation.ANY])
@pytest.mark.parametrize("permission", [PermissionType.ALLOW, PermissionType.DENY])
def test_every_operation_and_permission_comes_back(operation: AclOperation, permission: PermissionType) -> None:
    entry = AccessControlEntry("User:a", "*", operation, permission)

    assert acl_znodes.decode_acls("/p", acl_znodes.encode_acls([entry])) == (entry,)


def malformed() -> list[str]:
    """Return values that are not understood in whole."""
    one = {"principal": "User:a", "permissionType": "Allow", "operation": "Read", "host": "*"}
    entries: list[object] = [
        {**one, "operation": "Fly"},
        {**one, "operation": "READ"},
        {**one, "operation": "Any"},
        {**one, "operation": 3},
        {**one, "permissionType": "Maybe"},
        {**one, "permissionType": "Any"},
        {**one, "principal": "alice"},
        {**one, "principal": None},
        {**one, "host": None},
        {**one, "host": ["*"]},
        {**one, "operation": ["Read"]},
        "x",
        None,
        [],
        *[{key: value for key, value in one.items() if key != missing} for missing in one],
    ]
    wholes: list[object] = [
        {"version": 2, "acls": []},
        {"version": "1", "acls": []},
        {"version": True, "acls": []},
        {"acls": []},
        {"version": 1},
        {"version": 1, "acls": {"a": 1}},
        {"version": 1, "acls": None},
        {"version": 1, "acls": "x"},
        [],
        1,
        None,
        *[{"version": 1, "acls": [one, entry]} for entry in entries],
    ]
    return ["{", "\x00", "[" * 100_000, *map(json.dumps, wholes)]


@pytest.mark.parametrize("text", malformed(), ids=range(len(malformed())))
def test_a_value_that_is_not_understood_in_whole_is_malformed(text: str) -> None:
    with pytest.raises(znodes.MalformedNode):
        acl_znodes.decode_acls("/p", text.encode())
    with pytest.raises(znodes.MalformedNode):
        acl_znodes.decode_acls("/p", b"\xff" + text.encode())


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ((TOPIC, LITERAL, "web"), "/kafka-acl/Topic/web"),
        ((TOPIC, LITERAL, "*"), "/kafka-acl/Topic/*"),
        ((TOPIC, PREFIXED, "we"), "/kafka-acl-extended/prefixed/Topic/we"),
        ((ResourceType.CLUSTER, LITERAL, "kafka-cluster"), "/kafka-acl/Cluster/kafka-cluster"),
        ((ResourceType.TRANSACTIONAL_ID, LITERAL, "a b%2F"), "/kafka-acl/TransactionalId/a b%2F"),
        ((ResourceType.DELEGATION_TOKEN, LITERAL, "x"), "/kafka-acl/DelegationToken/x"),
        ((ResourceType.USER, LITERAL, "User:é"), "/kafka-acl/User/User:é"),
        ((GROUP, LITERAL, "a/b"), "/ottla_acls/literal/Group/a%2Fb"),
        ((GROUP, PREFIXED, "/"), "/ottla_acls/prefixed/Group/%2F"),
        ((GROUP, LITERAL, "."), "/ottla_acls/literal/Group/%2E"),
        ((GROUP, LITERAL, ".."), "/ottla_acls/literal/Group/%2E%2E"),
        ((GROUP, LITERAL, "..."), "/kafka-acl/Group/..."),
        ((GROUP, LITERAL, "a\nb\x7f%"), "/ottla_acls/literal/Group/a%0Ab%7F%25"),
        ((GROUP, LITERAL, "😀"), "/ottla_acls/literal/Group/%F0%9F%98%80"),
    ],
)
def test_each_pattern_has_a_node_that_zookeeper_takes(
    pattern: tuple[ResourceType, PatternType, str], path: str
) -> None:
    assert acl_znodes.acl_path(ResourcePattern(*pattern)) == path
    assert acl_znodes.parse_acl_path(path) == pattern
    assert znodes.is_acl_path(path)
    assert path.rpartition("/")[0] in acl_znodes.directories([ResourcePattern(*pattern)])


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("/kafka-acl/Topic", None),
        ("/kafka-acl-extended/prefixed", None),
        ("/kafka-acl-extended/prefixed/Topic", None),
        ("/kafka-acl-changes/acl_changes_0000000001", None),
        ("/kafka-acl/Unheard/x", None),
        ("/kafka-acl-extended/suffixed/Topic/x", (TOPIC, UNKNOWN, "/kafka-acl-extended/suffixed/Topic/x")),
        ("/kafka-acl-extended/prefixed/Topic/a/b", (TOPIC, UNKNOWN, "/kafka-acl-extended/prefixed/Topic/a/b")),
        ("/kafka-acl/Group/a/b", (GROUP, UNKNOWN, "/kafka-acl/Group/a/b")),
    ],
)
def test_a_node_of_a_pattern_that_is_not_known_may_be_about_the_whole_type(
    path: str, pattern: tuple[ResourceType, PatternType, str] | None
) -> None:
    assert acl_znodes.parse_acl_path(path) == pattern


def test_notifications_of_changes_are_kafkas() -> None:
    literal, prefixed = ResourcePattern(TOPIC, LITERAL, "web"), ResourcePattern(GROUP, PREFIXED, "w")

    assert acl_znodes.change_path(literal) == "/kafka-acl-changes/acl_changes_"
    assert acl_znodes.encode_change(literal) == b"TOPIC:web"
    assert acl_znodes.change_path(prefixed) == "/kafka-acl-extended-changes/acl_changes_"
    assert acl_znodes.encode_change(prefixed) == (
        b'{"version":1,"resourceType":"GROUP","name":"w","patternType":"PREFIXED"}'
    )
    assert acl_znodes.change_path(ResourcePattern(GROUP, LITERAL, "a/b")) is None


# ---- The snapshot

WEB = ResourcePattern(TOPIC, LITERAL, "web")
PREFIX = ResourcePattern(GROUP, PREFIXED, "w")


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedSession]:
    session = EmbeddedMetadataStore().session()
    await broker_registration.join_cluster(session, "c")
    await session.commit([Create(path) for path in acl_znodes.directories([ResourcePattern(GROUP, LITERAL, "/")])])
    yield session
    await session.close()


async def write(store: EmbeddedSession, path: str, value: bytes) -> None:
    known = await store.get(path)
    await store.commit([Create(path, value) if known is None else Put(path, value)])


async def test_the_snapshot_has_the_acls_and_shares_what_is_equal(store: EmbeddedSession) -> None:
    cluster = MetadataCache(store)
    await write(store, acl_znodes.acl_path(WEB), acl_znodes.encode_acls([ALICE]))
    await write(store, acl_znodes.acl_path(PREFIX), acl_znodes.encode_acls([BOB]))
    first = await cluster.load()
    assert {binding.pattern: binding.entry for binding in first.acls.bindings()} == {WEB: ALICE, PREFIX: BOB}

    await write(store, acl_znodes.acl_path(WEB), acl_znodes.encode_acls([ALICE, BOB]))
    second = await cluster.refresh()
    assert second.acls.get(WEB) == ResourceAcls([ALICE, BOB], 1)
    assert second.acls.get(PREFIX) is first.acls.get(PREFIX)
    assert second.number == first.number + 1

    third = await cluster.load()
    assert third is second, "all nodes again are the same snapshot"
    await store.commit([Delete(acl_znodes.acl_path(WEB))])
    assert (await cluster.refresh()).acls.get(WEB) is None

    other = MetadataCache(store)
    assert list((await other.load()).acls.bindings()) == list(cluster.current.acls.bindings())


async def test_what_was_deleted_while_it_was_not_followed_is_not_in_the_next_snapshot(store: EmbeddedSession) -> None:
    cluster = MetadataCache(store)
    await write(store, acl_znodes.acl_path(WEB), acl_znodes.encode_acls([ALICE]))
    await cluster.load()
    await store.commit([Delete(acl_znodes.acl_path(WEB))])

    assert list((await cluster.load()).acls.patterns()) == []


async def test_a_change_of_anything_else_leaves_the_acls_as_they_are(store: EmbeddedSession) -> None:
    cluster = MetadataCache(store)
    await write(store, acl_znodes.acl_path(WEB), acl_znodes.encode_acls([ALICE]))
    before = await cluster.load()

    await store.commit([Create(znodes.config_path("brokers", "1"), znodes.encode_config({"a": "b"}))])

    assert (await cluster.refresh()).acls is before.acls


@pytest.mark.parametrize("text", malformed()[::5], ids=range(len(malformed()[::5])))
async def test_a_malformed_node_makes_its_resources_unreadable_and_no_others(
    store: EmbeddedSession, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = MetadataCache(store)
    await write(store, acl_znodes.acl_path(WEB), acl_znodes.encode_acls([ALICE]))
    await write(store, acl_znodes.acl_path(PREFIX), acl_znodes.encode_acls([BOB]))
    await cluster.load()

    await write(store, acl_znodes.acl_path(WEB), text.encode())
    for view in (await cluster.refresh(), await MetadataCache(store).load()):
        assert view.acls.get(WEB) == ResourceAcls([], 1, is_unreadable=True)
        assert view.acls.get(PREFIX) == ResourceAcls([BOB], 0)
    assert "/kafka-acl/Topic/web" in caplog.text
    assert "is denied until" in caplog.text

    await write(store, acl_znodes.acl_path(WEB), acl_znodes.encode_acls([BOB]))
    assert (await cluster.refresh()).acls.get(WEB) == ResourceAcls([BOB], 2)


async def test_a_pattern_of_a_newer_version_is_about_the_whole_type_unless_its_node_is_empty(
    store: EmbeddedSession,
) -> None:
    cluster = MetadataCache(store)
    await store.commit([Create("/kafka-acl-extended/suffixed"), Create("/kafka-acl-extended/suffixed/Topic")])
    await store.commit([Create("/kafka-acl-extended/suffixed/Topic/x")])
    assert (await cluster.load()).acls.about(TOPIC, "web") == []

    await write(store, "/kafka-acl-extended/suffixed/Topic/x", acl_znodes.encode_acls([ALICE]))

    assert [acls.is_unreadable for acls in (await cluster.refresh()).acls.about(TOPIC, "web")] == [True]
    assert cluster.current.acls.about(GROUP, "web") == []
