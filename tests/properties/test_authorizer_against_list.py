"""The authorizer decides as a plain list of ACLs does, after any creations, deletions, restarts, exports and imports."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ottla.core.acls import AclBinding, AclFilter, AclOperation, PatternType, PermissionType, ResourceType
from ottla.net.identity import ConnectionIdentity
from ottla.security.config import AuthorizerConfig
from tests.support.acl_list import EVERYTHING, AclClient, AclList, AclStore

TYPES = (ResourceType.TOPIC, ResourceType.GROUP)
NAMES = ("a", "ab", "abc", "*", "a/b", "hard")
OPERATIONS = (
    AclOperation.ALL,
    AclOperation.READ,
    AclOperation.DESCRIBE,
    AclOperation.ALTER_CONFIGS,
    AclOperation.DESCRIBE_CONFIGS,
)
PRINCIPALS = ("User:alice", "User:*", "Group:ops", "User:bob")
HOSTS = ("*", "10.1.2.3", "10.1.0.0/16", "2001:db8::/32")
CLIENTS = (
    AclClient(ConnectionIdentity("User", "alice")),
    AclClient(ConnectionIdentity("User", "alice"), "10.1.9.9"),
    AclClient(ConnectionIdentity("User", "carol", ("ops", "other")), "2001:db8::1"),
    AclClient(ConnectionIdentity("User", "root"), "192.0.2.1"),
)
SUPER_USERS = "User:root"

bindings = st.builds(
    AclBinding,
    st.sampled_from(TYPES),
    st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)),
    st.sampled_from(NAMES),
    st.sampled_from(PRINCIPALS),
    st.sampled_from(HOSTS),
    st.sampled_from(OPERATIONS),
    st.sampled_from((PermissionType.ALLOW, PermissionType.ALLOW, PermissionType.DENY)),
)
filters = st.builds(
    AclFilter,
    st.sampled_from((ResourceType.ANY, *TYPES)),
    st.sampled_from((PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED)),
    st.sampled_from((None, *NAMES)),
    st.sampled_from((None, *PRINCIPALS)),
    st.sampled_from((None, None, *HOSTS)),
    st.sampled_from((AclOperation.ANY, AclOperation.ANY, *OPERATIONS)),
    st.sampled_from((PermissionType.ANY, PermissionType.ANY, PermissionType.ALLOW, PermissionType.DENY)),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.lists(bindings, min_size=1, max_size=6)),
        st.tuples(st.just("create"), st.lists(bindings, min_size=1, max_size=6)),
        st.tuples(st.just("delete"), st.lists(filters, min_size=1, max_size=2)),
        st.tuples(st.just("delete one"), st.integers(0, 100)),
        st.tuples(st.sampled_from(("restart", "reload", "migrate")), st.none()),
    ),
    min_size=1,
    max_size=8,
)


def check(store: AclStore, reference: AclList) -> None:
    """Compare every decision."""
    authorizer = store.authorizer
    assert sorted(store.cluster.current.acls.bindings()) == sorted(reference.acls)
    for client, operation, kind in itertools.product(CLIENTS, OPERATIONS[1:], TYPES):
        is_super = client.identity.principal_name == "root"
        for name in ("a", "ab", "abcd", "a/b", "x"):
            expected = is_super or reference.allows(client, operation, kind, name)
            for _ in range(2):  # decided, and from memory
                assert authorizer.is_allowed(client, operation, kind, name) == expected, (client, operation, kind, name)
        expected = is_super or reference.allows_any(client, operation, kind)
        assert authorizer.is_allowed_for_any(client, operation, kind) == expected, (client, operation, kind)


async def run(script: list[tuple[str, object]], *, allow_everyone: bool) -> None:
    config = AuthorizerConfig(super_users=SUPER_USERS, allow_everyone_if_no_acl_found=allow_everyone)
    reference = AclList(allow_everyone=allow_everyone)
    with tempfile.TemporaryDirectory() as directory:
        store = await AclStore(Path(directory), config).open()
        try:
            for step, argument in script:
                match step, argument:
                    case "create", list(acls):
                        await store.create(*acls)
                        reference.acls = list(dict.fromkeys([*reference.acls, *acls]))
                    case "delete", list(chosen):
                        await store.delete(*chosen)
                        reference.delete(chosen)
                    case "delete one", int(number) if reference.acls:
                        acl = reference.acls[number % len(reference.acls)]
                        chosen_one = EVERYTHING._replace(**acl._asdict())
                        await store.delete(chosen_one)
                        reference.acls.remove(acl)
                    case "restart", _:
                        await store.restart()
                    case "reload", _:
                        await store.reload()
                    case "migrate", _:
                        await store.migrate()
                check(store, reference)
        finally:
            await store.close()


@given(steps, st.booleans())
def test_the_authorizer_decides_as_a_plain_list_does(script: list[tuple[str, object]], allow_everyone: bool) -> None:
    asyncio.run(run(script, allow_everyone=allow_everyone))
