"""Decisions of the controller about ACLs."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.controller import acl_changes
from ottla.controller.acl_changes import AclAdmin
from ottla.controller.config import ControllerConfig
from ottla.controller.machine import Outcome, apply
from ottla.controller.overlay import COMMIT_BYTES_MAX, OPS_PER_COMMIT, Overlay, Rules
from ottla.controller.security_changes import CreateAcls, DeleteAcls
from ottla.core.acls import (
    AccessControlEntry,
    AclBinding,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
    bind,
)
from ottla.core.errors import InvalidRequest, KafkaError, NotController, PolicyViolation
from ottla.metadata_store import acl_znodes
from ottla.metadata_store.acl_index import NO_ACLS, ResourceAcls
from ottla.metadata_store.cluster_view import ClusterView
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore
from ottla.metadata_store.store import Create, Delete, Put
from ottla.storage.config import LogConfig

RULES = Rules(ControllerConfig(), LogConfig())
TOPIC, LITERAL, PREFIXED = ResourceType.TOPIC, PatternType.LITERAL, PatternType.PREFIXED
WEB, WE = ResourcePattern(TOPIC, LITERAL, "web"), ResourcePattern(TOPIC, PREFIXED, "we")
READ = AccessControlEntry("User:a", "*", AclOperation.READ, PermissionType.ALLOW)
DENIED = AccessControlEntry("User:b", "*", AclOperation.READ, PermissionType.DENY)
EVERYTHING = AclFilter(ResourceType.ANY, PatternType.ANY, None, None, None, AclOperation.ANY, PermissionType.ANY)


def view_of(acls: dict[ResourcePattern, ResourceAcls]) -> ClusterView:
    return ClusterView(acls=NO_ACLS.with_changes(acls))


def decided(view: ClusterView, event: CreateAcls | DeleteAcls) -> tuple[Overlay, Outcome]:
    overlay = Overlay(view, RULES)
    return overlay, apply(overlay, event)


def test_a_first_acl_creates_its_node_and_notifies_brokers_of_kafka() -> None:
    overlay, outcome = decided(ClusterView(), CreateAcls([bind(WEB, READ), bind(WE, READ)]))

    assert outcome == [None, None]
    assert overlay.ops() == [
        Create("/kafka-acl/Topic/web", acl_znodes.encode_acls([READ])),
        Create("/kafka-acl-changes/acl_changes_", b"TOPIC:web", sequential=True),
        Create("/kafka-acl-extended/prefixed/Topic/we", acl_znodes.encode_acls([READ])),
        Create("/kafka-acl-extended-changes/acl_changes_", acl_znodes.encode_change(WE), sequential=True),
    ]


def test_another_acl_is_added_to_the_version_that_was_read() -> None:
    view = view_of({WEB: ResourceAcls([READ], 4)})

    overlay, outcome = decided(view, CreateAcls([bind(WEB, DENIED), bind(WEB, READ), bind(WEB, DENIED)]))

    assert outcome == [None, None, None]
    assert overlay.ops()[0] == Put("/kafka-acl/Topic/web", acl_znodes.encode_acls([READ, DENIED]), 4)
    assert len(overlay.ops()) == 2


def test_an_acl_that_exists_is_not_written_again() -> None:
    overlay, outcome = decided(view_of({WEB: ResourceAcls([READ], 4)}), CreateAcls([bind(WEB, READ)]))

    assert outcome == [None]
    assert overlay.ops() == []


def test_acls_that_cannot_be_read_are_not_added_to() -> None:
    view = view_of({WEB: ResourceAcls([], 4, is_unreadable=True)})

    overlay, outcome = decided(view, CreateAcls([bind(WEB, READ), bind(WE, READ)]))

    assert isinstance(outcome, list)
    assert isinstance(outcome[0], KafkaError)
    assert "Delete all of them first" in outcome[0].message
    assert outcome[1] is None
    assert {op.path for op in overlay.ops()} == {
        "/kafka-acl-extended/prefixed/Topic/we",
        "/kafka-acl-extended-changes/acl_changes_",
    }


def test_only_a_filter_about_all_of_them_deletes_acls_that_cannot_be_read() -> None:
    view = view_of({WEB: ResourceAcls([], 4, is_unreadable=True)})
    exact = EVERYTHING._replace(resource_type=TOPIC, pattern_type=LITERAL, resource_name="web")

    for chosen in (
        exact._replace(principal="User:a"),
        exact._replace(host="*"),
        exact._replace(operation=AclOperation.READ),
        exact._replace(permission_type=PermissionType.ALLOW),
        exact._replace(resource_name="we"),
        exact._replace(pattern_type=PREFIXED),
    ):
        assert decided(view, DeleteAcls([chosen]))[0].ops() == [], chosen
    overlay, outcome = decided(view, DeleteAcls([exact]))

    assert outcome == [[]]
    assert overlay.ops()[0] == Delete("/kafka-acl/Topic/web", 4)


def test_a_deletion_writes_what_is_left_and_deletes_the_node_of_the_last() -> None:
    view = view_of({WEB: ResourceAcls([READ, DENIED], 4), WE: ResourceAcls([READ], 2)})

    overlay, outcome = decided(view, DeleteAcls([EVERYTHING._replace(principal="User:a")]))

    assert outcome == [[bind(WEB, READ), bind(WE, READ)]]
    assert [op for op in overlay.ops() if not isinstance(op, Create)] == [
        Put("/kafka-acl/Topic/web", acl_znodes.encode_acls([DENIED]), 4),
        Delete("/kafka-acl-extended/prefixed/Topic/we", 2),
    ]


def test_each_filter_has_all_that_it_chooses_and_an_acl_is_deleted_once() -> None:
    view = view_of({WEB: ResourceAcls([READ], 4)})

    overlay, outcome = decided(view, DeleteAcls([EVERYTHING, EVERYTHING, EVERYTHING._replace(principal="User:x")]))

    assert outcome == [[bind(WEB, READ)], [bind(WEB, READ)], []]
    assert len(overlay.ops()) == 2


NAMES = [(LITERAL, "web"), (LITERAL, "we"), (LITERAL, "*"), (PREFIXED, "we"), (PREFIXED, "web"), (PREFIXED, "*")]


@pytest.mark.parametrize(
    ("pattern_type", "name", "chosen"),
    [
        (LITERAL, "web", {(LITERAL, "web")}),
        (LITERAL, "*", {(LITERAL, "*")}),
        (LITERAL, None, {each for each in NAMES if each[0] == LITERAL}),
        (PREFIXED, "we", {(PREFIXED, "we")}),
        (PREFIXED, None, {each for each in NAMES if each[0] == PREFIXED}),
        (PatternType.ANY, "we", {(LITERAL, "we"), (PREFIXED, "we")}),
        (PatternType.ANY, None, set(NAMES)),
        (PatternType.MATCH, "web", {(LITERAL, "web"), (LITERAL, "*"), (PREFIXED, "we"), (PREFIXED, "web")}),
        (PatternType.MATCH, "w", {(LITERAL, "*")}),
        (PatternType.MATCH, None, set(NAMES)),
        (PatternType.UNKNOWN, None, set()),
    ],
)
def test_a_filter_chooses_by_name_and_type_of_pattern(
    pattern_type: PatternType, name: str | None, chosen: set[tuple[PatternType, str]]
) -> None:
    view = view_of({ResourcePattern(TOPIC, kind, each): ResourceAcls([READ], 0) for kind, each in NAMES})
    for resource_type, expected in ((TOPIC, chosen), (ResourceType.ANY, chosen), (ResourceType.GROUP, set())):
        some = EVERYTHING._replace(resource_type=resource_type, pattern_type=pattern_type, resource_name=name)

        _, outcome = decided(view, DeleteAcls([some]))

        assert isinstance(outcome, list)
        (deleted,) = outcome
        assert isinstance(deleted, list)
        assert {(each.pattern_type, each.resource_name) for each in deleted} == expected
        assert len(deleted) == len(expected)


def test_a_filter_chooses_by_every_field_of_an_entry() -> None:
    view = view_of({WEB: ResourceAcls([READ, DENIED], 0)})

    def chosen(**fields: Any) -> list[AclBinding]:
        _, outcome = decided(view, DeleteAcls([EVERYTHING._replace(**fields)]))
        assert isinstance(outcome, list)
        assert isinstance(outcome[0], list)
        return outcome[0]

    assert chosen() == [bind(WEB, READ), bind(WEB, DENIED)]
    assert chosen(permission_type=PermissionType.DENY) == [bind(WEB, DENIED)]
    assert chosen(principal="User:a") == [bind(WEB, READ)]
    assert chosen(host="10.0.0.1") == []
    assert chosen(operation=AclOperation.READ) == [bind(WEB, READ), bind(WEB, DENIED)]
    assert chosen(operation=AclOperation.ALL) == []
    assert chosen(operation=AclOperation.UNKNOWN) == []


def test_what_is_denied_is_committed_before_what_is_allowed_and_goes_after_it() -> None:
    patterns = [ResourcePattern(TOPIC, LITERAL, f"t{number:04}") for number in range(OPS_PER_COMMIT)]
    entries = [READ if number % 2 else DENIED for number in range(len(patterns))]
    created, _ = decided(ClusterView(), CreateAcls([bind(*each) for each in zip(patterns, entries, strict=True)]))
    view = view_of({pattern: ResourceAcls([entry], 0) for pattern, entry in zip(patterns, entries, strict=True)})
    deleted, _ = decided(view, DeleteAcls([EVERYTHING]))

    for overlay, first in ((created, b"Deny"), (deleted, b"Allow")):
        commits = overlay.commits()
        assert len(commits) > 1
        assert all(len(commit) < OPS_PER_COMMIT for commit in commits)
        of_path = {acl_znodes.acl_path(pattern): number % 2 for number, pattern in enumerate(patterns)}
        order = [of_path[op.path] for commit in commits for op in commit if op.path in of_path]
        assert order == sorted(order, reverse=first == b"Allow")


def test_a_commit_is_bounded_in_bytes_too() -> None:
    long = "x" * 20_000
    bindings = [bind(ResourcePattern(TOPIC, LITERAL, f"{number}{long}"), READ) for number in range(100)]

    overlay, _ = decided(ClusterView(), CreateAcls(bindings))

    commits = overlay.commits()
    assert [op for commit in commits for op in commit] == overlay.ops()
    for commit in commits:
        assert sum(len(op.path) + len(op.value) for op in commit if isinstance(op, Create)) <= COMMIT_BYTES_MAX
        assert sum(len(op.path) + len(op.value) for op in commit if isinstance(op, Create)) > 0


def test_one_resource_has_a_bounded_number_of_bytes() -> None:
    many = [READ._replace(principal=f"User:{number:060}") for number in range(4_000)]

    overlay, outcome = decided(ClusterView(), CreateAcls([bind(WEB, each) for each in many]))

    assert isinstance(outcome, list)
    assert {type(each) for each in outcome} == {PolicyViolation}
    assert overlay.ops() == []


def test_more_acls_than_kafka_takes_at_once_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_changes, "ACLS_PER_REQUEST_MAX", 3)
    many = [READ._replace(principal=f"User:{number}") for number in range(4)]

    with pytest.raises(PolicyViolation):
        decided(ClusterView(), CreateAcls([bind(WEB, each) for each in many]))
    with pytest.raises(InvalidRequest, match="Cannot remove more than 3 acls"):
        decided(view_of({WEB: ResourceAcls(many, 0)}), DeleteAcls([EVERYTHING]))


async def test_old_notifications_are_removed() -> None:
    session = EmbeddedMetadataStore().session()
    await session.commit([Create(path) for path in acl_znodes.directories([WEB])])
    for _ in range(250):
        await session.commit([Create("/kafka-acl-changes/acl_changes_", b"x", sequential=True)])
    last = max(await session.children("/kafka-acl-changes"))

    async def nothing(_events: object) -> list[list[None]]:
        return [[None]]

    admin = AclAdmin(session, nothing)
    for _ in range(3):
        await admin.create([bind(WEB, READ)])

    left = await session.children("/kafka-acl-changes")
    assert len(left) == 100
    assert last in left


async def test_without_the_store_there_is_no_controller() -> None:
    session = EmbeddedMetadataStore().session()
    await session.close()

    async def never(_events: object) -> list[list[None]]:
        raise AssertionError

    with pytest.raises(NotController):
        await AclAdmin(session, never).create([bind(WEB, READ)])
