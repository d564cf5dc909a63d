"""The decisions of the authorizer, as those of StandardAuthorizer of Apache Kafka 4.4."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

import pytest

from ottla.core.acls import AccessControlEntry, AclOperation, PatternType, PermissionType, ResourcePattern, ResourceType
from ottla.core.clock import SystemClock
from ottla.metadata_store.acl_index import NO_ACLS, AclIndex, ResourceAcls
from ottla.metadata_store.cluster_view import ClusterView
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.net.identity import ConnectionIdentity
from ottla.security import authorizer as module
from ottla.security.audit_log import AuditEntry, AuditLog
from ottla.security.authorizer import AclAuthorizer
from ottla.security.config import AuthorizerConfig
from ottla.wire.headers import RequestHeader

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
ALLOW, DENY = PermissionType.ALLOW, PermissionType.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED

Acl = tuple[PatternType, str, PermissionType, AclOperation]


@dataclass
class Client:
    """A request as the authorizer knows it."""

    identity: ConnectionIdentity
    client_host: str = "10.1.2.3"
    header: RequestHeader = (3, 12, 1, "c", 0)
    client_id: str | None = "c"
    listener: str = "PLAINTEXT"


ALICE = Client(ConnectionIdentity("User", "alice"))
BOB = Client(ConnectionIdentity("User", "bob"))


def entry(
    operation: AclOperation = READ, permission: PermissionType = ALLOW, principal: str = "User:alice", host: str = "*"
) -> AccessControlEntry:
    """Return an entry of an ACL."""
    return AccessControlEntry(principal, host, operation, permission)


def index_of(acls: dict[tuple[PatternType, str], list[AccessControlEntry]], resource: ResourceType = TOPIC) -> AclIndex:
    """Return an index of ACLs of resources of one type."""
    return NO_ACLS.with_changes(
        {ResourcePattern(resource, kind, name): ResourceAcls(entries, 0) for (kind, name), entries in acls.items()}
    )


def authorizer_of(index: AclIndex, **settings: Any) -> AclAuthorizer:
    """Return an authorizer with these ACLs."""
    cluster = MetadataCache(EmbeddedMetadataStore().session())
    cluster.current = ClusterView(acls=index)
    return AclAuthorizer(cluster, AuthorizerConfig(**settings))


def of(*acls: Acl) -> AclAuthorizer:
    """Return an authorizer with ACLs of alice about topics."""
    index: dict[tuple[PatternType, str], list[AccessControlEntry]] = {}
    for kind, name, permission, operation in acls:
        index.setdefault((kind, name), []).append(entry(operation, permission))
    return authorizer_of(index_of(index))


def test_nothing_is_allowed_without_acls() -> None:
    assert not of().is_allowed(ALICE, READ, TOPIC, "web")


def test_a_literal_name_the_wildcard_and_a_prefix_are_about_a_resource() -> None:
    assert of((LITERAL, "web", ALLOW, READ)).is_allowed(ALICE, READ, TOPIC, "web")
    assert of((LITERAL, "*", ALLOW, READ)).is_allowed(ALICE, READ, TOPIC, "web")
    assert of((PREFIXED, "we", ALLOW, READ)).is_allowed(ALICE, READ, TOPIC, "web")
    assert of((PREFIXED, "web", ALLOW, READ)).is_allowed(ALICE, READ, TOPIC, "web")
    assert not of((LITERAL, "we", ALLOW, READ)).is_allowed(ALICE, READ, TOPIC, "web")
    assert not of((PREFIXED, "webs", ALLOW, READ)).is_allowed(ALICE, READ, TOPIC, "web")
    assert not of((PREFIXED, "*", ALLOW, READ)).is_allowed(ALICE, READ, TOPIC, "web")


def test_an_acl_is_about_its_type_of_resource_only() -> None:
    authorizer = of((LITERAL, "web", ALLOW, READ))

    assert not authorizer.is_allowed(ALICE, READ, GROUP, "web")


@pytest.mark.parametrize("kind_and_name", [(LITERAL, "web"), (LITERAL, "*"), (PREFIXED, "w")])
@pytest.mark.parametrize("operation", [READ, AclOperation.ALL])
def test_one_deny_wins_over_everything_that_is_allowed(
    kind_and_name: tuple[PatternType, str], operation: AclOperation
) -> None:
    allowed: list[Acl] = [(LITERAL, "web", ALLOW, READ), (LITERAL, "*", ALLOW, READ), (PREFIXED, "we", ALLOW, READ)]

    assert of(*allowed).is_allowed(ALICE, READ, TOPIC, "web")
    assert not of(*allowed, (*kind_and_name, DENY, operation)).is_allowed(ALICE, READ, TOPIC, "web")


@pytest.mark.parametrize(
    ("of_acl", "implied"),
    [
        (AclOperation.READ, AclOperation.DESCRIBE),
        (AclOperation.WRITE, AclOperation.DESCRIBE),
        (AclOperation.DELETE, AclOperation.DESCRIBE),
        (AclOperation.ALTER, AclOperation.DESCRIBE),
        (AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS),
    ],
)
def test_an_operation_that_is_allowed_implies_another_and_one_that_is_denied_does_not(
    of_acl: AclOperation, implied: AclOperation
) -> None:
    assert of((LITERAL, "web", ALLOW, of_acl)).is_allowed(ALICE, implied, TOPIC, "web")
    everything_but = of((LITERAL, "web", ALLOW, AclOperation.ALL), (LITERAL, "web", DENY, of_acl))
    assert not everything_but.is_allowed(ALICE, of_acl, TOPIC, "web")
    assert everything_but.is_allowed(ALICE, implied, TOPIC, "web")


def test_no_other_operation_is_implied() -> None:
    implied = {(READ, DESCRIBE), (WRITE, DESCRIBE), (AclOperation.DELETE, DESCRIBE), (AclOperation.ALTER, DESCRIBE)}
    implied |= {(AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS)}
    operations = [operation for operation in AclOperation if operation > AclOperation.ALL]
    for of_acl in operations:
        authorizer = of((LITERAL, "web", ALLOW, of_acl))
        for operation in operations:
            expected = operation == of_acl or (of_acl, operation) in implied
            assert authorizer.is_allowed(ALICE, operation, TOPIC, "web") == expected, (of_acl, operation)


def test_all_is_every_operation() -> None:
    authorizer = of((LITERAL, "web", ALLOW, AclOperation.ALL))

    assert all(authorizer.is_allowed(ALICE, each, TOPIC, "web") for each in AclOperation if each > AclOperation.ALL)


def test_an_acl_is_for_its_principal_for_every_user_or_for_a_group() -> None:
    def allows(principal: str, client: Client) -> bool:
        acls = index_of({(LITERAL, "web"): [entry(principal=principal)]})
        return authorizer_of(acls).is_allowed(client, READ, TOPIC, "web")

    member = Client(ConnectionIdentity("User", "carol", groups=("staff", "ops")))
    assert allows("User:alice", ALICE)
    assert not allows("User:alice", BOB)
    assert not allows("user:alice", ALICE)
    assert allows("User:*", BOB)
    assert allows("Group:ops", member)
    assert not allows("Group:ops", ALICE)
    assert not allows("Group:*", member)
    assert not allows("User:ops", member)
    assert not allows("Group:carol", member)
    assert allows("User:*", Client(ConnectionIdentity("Service", "x")))


def test_a_deny_of_a_group_wins() -> None:
    entries = [entry(), entry(permission=DENY, principal="Group:ops")]
    authorizer = authorizer_of(index_of({(LITERAL, "web"): entries}))

    assert authorizer.is_allowed(ALICE, READ, TOPIC, "web")
    assert not authorizer.is_allowed(Client(ConnectionIdentity("User", "alice", groups=("ops",))), READ, TOPIC, "web")


def test_an_acl_is_for_its_host() -> None:
    def allows(host: str, client_host: str) -> bool:
        acls = index_of({(LITERAL, "web"): [entry(host=host)]})
        return authorizer_of(acls).is_allowed(replace(ALICE, client_host=client_host), READ, TOPIC, "web")

    assert allows("10.1.2.3", "10.1.2.3")
    assert not allows("10.1.2.3", "10.1.2.4")
    assert allows("10.1.0.0/16", "10.1.2.4")
    assert not allows("10.1.0.0/16", "10.2.2.4")


def test_decisions_for_several_hosts_are_kept_apart() -> None:
    authorizer = authorizer_of(index_of({(LITERAL, "web"): [entry(host="10.1.2.3")]}))
    elsewhere = replace(ALICE, client_host="10.9.9.9")

    for _ in range(2):
        assert authorizer.is_allowed(ALICE, READ, TOPIC, "web")
        assert not authorizer.is_allowed(elsewhere, READ, TOPIC, "web")
        assert authorizer.is_allowed_for_any(ALICE, READ, TOPIC)
        assert not authorizer.is_allowed_for_any(elsewhere, READ, TOPIC)


def test_super_users_may_do_everything() -> None:
    acls = index_of({(LITERAL, "*"): [entry(AclOperation.ALL, DENY, "User:*")]})
    authorizer = authorizer_of(acls, super_users=" User:alice ;Group:ops; User:CN=a;;")

    assert authorizer.is_allowed(ALICE, READ, TOPIC, "web")
    assert authorizer.is_allowed_for_any(ALICE, WRITE, TOPIC)
    assert authorizer.is_allowed(Client(ConnectionIdentity("User", "x", groups=("ops",))), READ, TOPIC, "web")
    assert authorizer.is_allowed(Client(ConnectionIdentity("User", "CN=a")), READ, TOPIC, "web")
    assert not authorizer.is_allowed(BOB, READ, TOPIC, "web")
    assert not authorizer.is_allowed(Client(ConnectionIdentity("Group", "alice")), READ, TOPIC, "web")


def test_everyone_is_allowed_only_what_no_acl_is_about() -> None:
    acls = index_of({(LITERAL, "web"): [entry(principal="User:x")], (PREFIXED, "log"): [entry(principal="User:x")]})
    authorizer = authorizer_of(acls, allow_everyone_if_no_acl_found=True)

    assert authorizer.is_allowed(ALICE, READ, TOPIC, "other")
    assert not authorizer.is_allowed(ALICE, READ, TOPIC, "web")
    assert not authorizer.is_allowed(ALICE, WRITE, TOPIC, "logs")
    assert authorizer.is_allowed(ALICE, READ, GROUP, "web")
    everything = authorizer_of(
        index_of({(LITERAL, "*"): [entry(principal="User:x")]}), allow_everyone_if_no_acl_found=True
    )
    assert not everything.is_allowed(ALICE, READ, TOPIC, "other")


def test_a_node_without_entries_is_about_nothing() -> None:
    acls = index_of({(LITERAL, "web"): [], (LITERAL, "*"): [], (PREFIXED, "w"): []})

    assert authorizer_of(acls, allow_everyone_if_no_acl_found=True).is_allowed(ALICE, READ, TOPIC, "web")


@pytest.mark.parametrize(
    ("kind", "name", "denied"),
    [
        (LITERAL, "web", {"web"}),
        (PREFIXED, "we", {"web", "webs"}),
        (LITERAL, "*", {"web", "webs", "log"}),
        (PatternType.UNKNOWN, "/kafka-acl-extended/suffixed/Topic/s", {"web", "webs", "log"}),
    ],
)
def test_everything_about_resources_whose_acls_are_unreadable_is_denied(
    kind: PatternType, name: str, denied: set[str]
) -> None:
    acls = index_of({(LITERAL, each): [entry(AclOperation.ALL)] for each in ("web", "webs", "log", "*")})
    acls = acls.with_changes({ResourcePattern(TOPIC, kind, name): ResourceAcls([], 0, is_unreadable=True)})
    authorizer = authorizer_of(acls, allow_everyone_if_no_acl_found=True, super_users="User:bob")

    for topic in ("web", "webs", "log"):
        assert authorizer.is_allowed(ALICE, READ, TOPIC, topic) == (topic not in denied)
        assert authorizer.is_allowed(BOB, READ, TOPIC, topic)
    assert authorizer.is_allowed_for_any(ALICE, READ, TOPIC) == (denied != {"web", "webs", "log"})


def test_a_decision_is_that_of_the_current_snapshot() -> None:
    cluster = MetadataCache(EmbeddedMetadataStore().session())
    authorizer = AclAuthorizer(cluster, AuthorizerConfig())
    assert not authorizer.is_allowed(ALICE, READ, TOPIC, "web")
    assert not authorizer.is_allowed_for_any(ALICE, READ, TOPIC)

    cluster.current = ClusterView(acls=index_of({(LITERAL, "web"): [entry()]}))
    assert authorizer.is_allowed_for_any(ALICE, READ, TOPIC)
    assert authorizer.is_allowed(ALICE, READ, TOPIC, "web")

    cluster.current = ClusterView()
    assert not authorizer.is_allowed(ALICE, READ, TOPIC, "web")
    cluster.current = ClusterView(acls=index_of({(LITERAL, "web"): [entry()]}))
    cluster.current = ClusterView()
    assert not authorizer.is_allowed_for_any(ALICE, READ, TOPIC)


def test_the_memory_for_decisions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DECISIONS_MAX", 10)
    authorizer = of((PREFIXED, "w", ALLOW, READ))

    for number in range(35):
        assert authorizer.is_allowed(ALICE, READ, TOPIC, f"w{number}")
        assert not authorizer.is_allowed(ALICE, READ, TOPIC, f"x{number}")
        assert len(authorizer._decisions) <= 10
    assert authorizer.is_allowed(ALICE, READ, TOPIC, "w" * 250)
    assert all(len(name or "") < 250 for *_, name in authorizer._decisions)


# ---- Any resource of a type


def test_something_is_allowed_for_any_if_one_name_or_prefix_allows_it() -> None:
    assert not of().is_allowed_for_any(ALICE, WRITE, TOPIC)
    assert of((LITERAL, "web", ALLOW, WRITE)).is_allowed_for_any(ALICE, WRITE, TOPIC)
    assert of((PREFIXED, "w", ALLOW, AclOperation.ALL)).is_allowed_for_any(ALICE, WRITE, TOPIC)
    assert of((LITERAL, "*", ALLOW, WRITE)).is_allowed_for_any(ALICE, WRITE, TOPIC)
    assert not of((LITERAL, "web", ALLOW, WRITE)).is_allowed_for_any(ALICE, WRITE, GROUP)
    assert not of((LITERAL, "web", ALLOW, WRITE)).is_allowed_for_any(BOB, WRITE, TOPIC)
    assert not of((LITERAL, "web", ALLOW, READ)).is_allowed_for_any(ALICE, WRITE, TOPIC)


def test_what_is_denied_for_the_wildcard_is_allowed_for_none() -> None:
    authorizer = of((LITERAL, "web", ALLOW, WRITE), (LITERAL, "*", DENY, WRITE))

    assert not authorizer.is_allowed_for_any(ALICE, WRITE, TOPIC)


def test_a_name_or_prefix_that_a_deny_covers_allows_nothing() -> None:
    assert not of((LITERAL, "web", ALLOW, WRITE), (LITERAL, "web", DENY, WRITE)).is_allowed_for_any(ALICE, WRITE, TOPIC)
    assert not of((LITERAL, "web", ALLOW, WRITE), (PREFIXED, "w", DENY, WRITE)).is_allowed_for_any(ALICE, WRITE, TOPIC)
    assert not of((PREFIXED, "we", ALLOW, WRITE), (PREFIXED, "w", DENY, WRITE)).is_allowed_for_any(ALICE, WRITE, TOPIC)
    assert not of((PREFIXED, "we", ALLOW, WRITE), (PREFIXED, "we", DENY, WRITE)).is_allowed_for_any(ALICE, WRITE, TOPIC)
    assert of((PREFIXED, "w", ALLOW, WRITE), (PREFIXED, "we", DENY, WRITE)).is_allowed_for_any(ALICE, WRITE, TOPIC)
    assert of((PREFIXED, "web", ALLOW, WRITE), (LITERAL, "web", DENY, WRITE)).is_allowed_for_any(ALICE, WRITE, TOPIC)


def test_the_wildcard_allows_for_any_though_names_are_denied() -> None:
    authorizer = of((LITERAL, "*", ALLOW, WRITE), (PREFIXED, "hard", DENY, WRITE))

    assert authorizer.is_allowed_for_any(ALICE, WRITE, TOPIC)


def test_everyone_is_allowed_any_if_no_acl_is_about_a_name_that_is_not_there() -> None:
    acls = index_of({(LITERAL, "web"): [entry(principal="User:x")]})

    assert authorizer_of(acls, allow_everyone_if_no_acl_found=True).is_allowed_for_any(ALICE, WRITE, TOPIC)


# ---- The index


def test_an_index_with_equal_acls_is_the_same() -> None:
    index = index_of({(LITERAL, "web"): [entry()], (PREFIXED, "w"): [entry(WRITE)]})
    pattern = ResourcePattern(TOPIC, LITERAL, "web")

    assert index.with_changes({pattern: ResourceAcls([entry()], 0)}) is index
    assert index.with_changes({ResourcePattern(GROUP, LITERAL, "web"): None}) is index
    every: dict[ResourcePattern, ResourceAcls | None] = {each: index.get(each) for each in index.patterns()}
    assert index.replaced_by(every) is index
    assert index.replaced_by({pattern: every[pattern]}).get(ResourcePattern(TOPIC, PREFIXED, "w")) is None


def test_a_changed_index_shares_what_is_equal() -> None:
    index = index_of({(LITERAL, "web"): [entry()], (PREFIXED, "w"): [entry(WRITE)]})
    pattern = ResourcePattern(TOPIC, LITERAL, "web")

    changed = index.with_changes({pattern: ResourceAcls([entry(WRITE)], 1)})

    assert changed is not index
    prefixed = ResourcePattern(TOPIC, PREFIXED, "w")
    assert changed.get(prefixed) is index.get(prefixed)
    assert index.get(pattern) == ResourceAcls([entry()], 0)


def test_a_look_up_reads_as_many_patterns_as_there_are_lengths_of_prefixes() -> None:
    names = {(PREFIXED, f"{number:04}"): [entry()] for number in range(10_000)}
    index = index_of({**names, (PREFIXED, "0"): [entry()], (LITERAL, "0001x"): [entry()]})
    of_type = index._by_type[TOPIC]

    assert of_type.lengths == (1, 4)
    assert len(index.about(TOPIC, "0001x")) == 3
    assert len(index.about(TOPIC, "1")) == 0


# ---- The audit log


def test_a_denial_is_audited_unless_the_client_did_not_ask_for_it() -> None:
    class Output:
        def __init__(self) -> None:
            self.entries: list[AuditEntry] = []

        def put(self, entry: AuditEntry, now_ms: int) -> None:
            self.entries.append(entry)

        async def close(self) -> None: ...

    output = Output()
    cluster = MetadataCache(EmbeddedMetadataStore().session())
    cluster.current = ClusterView(acls=index_of({(LITERAL, "web"): [entry()]}))
    audit_log = AuditLog([output], clock=SystemClock())
    authorizer = AclAuthorizer(cluster, AuthorizerConfig(), audit_log)

    authorizer.is_allowed(BOB, READ, TOPIC, "web", log_if_denied=False)
    authorizer.is_allowed(ALICE, READ, TOPIC, "web")
    assert not output.entries
    for _ in range(2):  # also from memory
        authorizer.is_allowed(BOB, READ, TOPIC, "web")
    assert [(each.event, each.principal, each.resource) for each in output.entries] == [
        ("denied", "User:bob", "web")
    ] * 2

    output.entries.clear()
    audit_log.logs_allowed = True
    authorizer.is_allowed(ALICE, READ, TOPIC, "web")
    assert [each.event for each in output.entries] == ["allowed"]


def test_a_decision_from_memory_is_one_frame_and_one_look_up() -> None:
    authorizer = of((LITERAL, "web", ALLOW, READ))
    authorizer.is_allowed(ALICE, READ, TOPIC, "web")
    calls: list[str] = []
    sys.setprofile(lambda _frame, event, _argument: calls.append(event))
    try:
        authorizer.is_allowed(ALICE, READ, TOPIC, "web")
    finally:
        sys.setprofile(None)

    assert [event for event in calls if event == "call"] == ["call"]
    assert calls.count("c_call") == 2, "the look-up, and the end of the profile"
