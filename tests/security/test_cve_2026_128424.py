"""CVE-2026-128424: a regular expression in an ACL lost its escapes, and the rule matched more than was written.

Ottla's ACLs have no expressions: names are literal, `*` alone or a prefix, hosts are addresses, ranges or `*`. So no
character of a name, principal or host means anything, and each comes back as it was written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ottla.core.acls import AclBinding, AclOperation, PatternType, PermissionType, ResourceType
from ottla.net.identity import ConnectionIdentity
from ottla.security.config import AuthorizerConfig
from tests.support.acl_list import AclClient, AclStore

READ, GROUP = AclOperation.READ, ResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALICE = AclClient(ConnectionIdentity("User", "alice"))

EXPRESSIONS = {  # a text that would be an expression: what it would match
    "a.c": "abc",
    "a\\.c": "a.c",
    "a*": "aa",
    "*a": "ba",
    "**": "a",
    ".*": "abc",
    "a?": "a",
    "a|b": "b",
    "[ab]": "a",
    "^a$": "a",
    "a\\": "a",
    "\\w+": "abc",
    "(?i)a": "A",
    "%61": "a",
    "a%": "abc",
    "a_c": "abc",
    "{a,b}": "a",
    "a b": "a",
    "a\tb": "a b",
    "a/../b": "b",
    "\u00e9": "e\u0301",  # the same letter, written otherwise
}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[AclStore]:
    opened = await AclStore(tmp_path / "data", AuthorizerConfig()).open()
    yield opened
    await opened.close()


def allow(kind: PatternType, name: str, principal: str = "User:alice", host: str = "*") -> AclBinding:
    return AclBinding(GROUP, kind, name, principal, host, READ, PermissionType.ALLOW)


@pytest.mark.parametrize("text", EXPRESSIONS)
async def test_a_name_matches_itself_alone_and_a_prefix_what_begins_with_it(store: AclStore, text: str) -> None:
    would_match = EXPRESSIONS[text]
    await store.create(allow(LITERAL, text))
    for step in (store.reload, store.restart, store.migrate, store.reload):
        assert store.authorizer.is_allowed(ALICE, READ, GROUP, text)
        assert not store.authorizer.is_allowed(ALICE, READ, GROUP, would_match)
        assert not store.authorizer.is_allowed(ALICE, READ, GROUP, text + "x")
        await step()
    assert list(store.cluster.current.acls.bindings()) == [allow(LITERAL, text)]


@pytest.mark.parametrize("text", EXPRESSIONS)
async def test_a_prefix_matches_what_begins_with_exactly_it(store: AclStore, text: str) -> None:
    await store.create(allow(PREFIXED, text))
    for step in (store.reload, store.restart, store.migrate, store.reload):
        assert store.authorizer.is_allowed(ALICE, READ, GROUP, text)
        assert store.authorizer.is_allowed(ALICE, READ, GROUP, text + "x")
        assert not store.authorizer.is_allowed(ALICE, READ, GROUP, EXPRESSIONS[text])
        await step()
    assert list(store.cluster.current.acls.bindings()) == [allow(PREFIXED, text)]


@pytest.mark.parametrize(
    "principal", ["User:.*", "User:a*", "User:ali.e", "*:*", "*", "User:", "User:*e", "Group:*", "user:*"]
)
async def test_a_principal_is_no_expression(store: AclStore, principal: str) -> None:
    principal = principal if ":" in principal else f"{principal}:"
    await store.create(allow(LITERAL, "g", principal))

    assert not store.authorizer.is_allowed(ALICE, READ, GROUP, "g")


@pytest.mark.parametrize(
    "host",
    [
        "10.*",
        "10.1.2.?",
        "10.1.2.[0-9]",
        "10.1.2.",
        "10.1.2.3/",
        "10.1.2.3/33",
        "**",
        "/0",
        "10.1.2.3|::1",
        "10\\.1\\.2\\.3",
    ],
)
async def test_a_host_is_no_expression(store: AclStore, host: str) -> None:
    await store.create(allow(LITERAL, "g", host=host))

    assert not store.authorizer.is_allowed(ALICE, READ, GROUP, "g")
