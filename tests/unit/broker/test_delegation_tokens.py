"""Delegation tokens: the rights to create, renew, expire and see them, how long they are valid, and their nodes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
from typing import Any

import pytest

from ottla.core.acls import AclOperation, ResourceType
from ottla.core.errors import ErrorCode
from ottla.metadata_store.token_znodes import TokenInformation, decode_token, encode_token, token_path
from ottla.metadata_store.znodes import MalformedNode
from ottla.net.identity import ConnectionIdentity
from ottla.testing.cluster import TestCluster
from ottla.testing.requests import answer_to, request_to
from ottla.wire.apis import ApiKey
from ottla.wire.generated.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from ottla.wire.generated.describe_delegation_token import DescribeDelegationTokenOwner, DescribeDelegationTokenRequest
from ottla.wire.generated.expire_delegation_token import ExpireDelegationTokenRequest
from ottla.wire.generated.renew_delegation_token import RenewDelegationTokenRequest

KEY = "canary-token-key"
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
ALICE, BOB, CAROL = (ConnectionIdentity("User", name) for name in ("alice", "bob", "carol"))
with_tokens = pytest.mark.options({"delegation.token.secret.key": KEY})
short_lived = pytest.mark.options(
    {
        "delegation.token.secret.key": KEY,
        "delegation.token.expiry.time.ms": str(10 * MINUTE_MS),
        "delegation.token.max.lifetime.ms": str(40 * MINUTE_MS),
    }
)
pytestmark = pytest.mark.simulated_time


class Allowed:
    """An authorizer that allows what it lists: (operation, type, name)."""

    def __init__(self, *allowed: tuple[AclOperation, ResourceType, str]) -> None:
        self.allowed = allowed
        self.asked: list[tuple[AclOperation, ResourceType, str]] = []

    def is_super_user(self, identity: ConnectionIdentity) -> bool:
        return False

    def is_allowed(
        self, request: Any, operation: AclOperation, resource: ResourceType, name: str, *, log_if_denied: bool = True
    ) -> bool:
        self.asked.append((operation, resource, name))
        return (operation, resource, name) in self.allowed

    def is_allowed_for_any(self, request: Any, operation: AclOperation, resource: ResourceType) -> bool:
        return False


class Client:
    """A client that signed in, whose requests come to the controller's handlers."""

    def __init__(self, cluster: TestCluster, identity: ConnectionIdentity, authorizer: Allowed | None = None) -> None:
        self.cluster, self.identity = cluster, identity
        self.authorizer = Allowed() if authorizer is None else authorizer

    async def call(self, module: str, version: int, body: Any) -> Any:
        request = request_to(self.cluster.services(self.cluster.controller), version)
        request.identity, request.authorizer = self.identity, self.authorizer
        return await answer_to(request, module, body)

    async def create(self, *renewers: str, owner: str = "", max_ms: int = -1, version: int = 3) -> Any:
        named = [CreatableRenewers(principal_type="User", principal_name=name) for name in renewers]
        body = CreateDelegationTokenRequest(renewers=named, max_lifetime_ms=max_ms)
        if owner:
            body.owner_principal_type, body.owner_principal_name = "User", owner
        return await self.call("create_delegation_token", version, body)

    async def renew(self, secret: bytes, period_ms: int = -1) -> tuple[int, int]:
        answer = await self.call(
            "renew_delegation_token", 2, RenewDelegationTokenRequest(hmac=secret, renew_period_ms=period_ms)
        )
        return answer.error_code, answer.expiry_timestamp_ms

    async def expire(self, secret: bytes, period_ms: int = -1) -> tuple[int, int]:
        answer = await self.call(
            "expire_delegation_token", 2, ExpireDelegationTokenRequest(hmac=secret, expiry_time_period_ms=period_ms)
        )
        return answer.error_code, answer.expiry_timestamp_ms

    async def described(self, *owners: str, all_owners: bool = True) -> list[Any]:
        named = [DescribeDelegationTokenOwner(principal_type="User", principal_name=name) for name in owners]
        body = DescribeDelegationTokenRequest(owners=None if all_owners and not owners else named)
        answer = await self.call("describe_delegation_token", 3, body)
        assert answer.error_code == ErrorCode.NONE
        return sorted(answer.tokens, key=lambda token: str(token.principal_name))


def _now_ms(cluster: TestCluster) -> int:
    return cluster.services(cluster.controller).clock.wall_ms()


@with_tokens
async def test_a_token_has_kafkas_times_and_a_secret_that_is_derived_from_its_id(cluster: TestCluster) -> None:
    now_ms = _now_ms(cluster)
    token = await Client(cluster, ALICE).create("bob", max_ms=2 * HOUR_MS)
    assert token.error_code == ErrorCode.NONE
    assert (token.principal_type, token.principal_name) == ("User", "alice")
    assert (token.token_requester_principal_type, token.token_requester_principal_name) == ("User", "alice")
    assert now_ms <= token.issue_timestamp_ms <= _now_ms(cluster)
    assert token.max_timestamp_ms == token.expiry_timestamp_ms == token.issue_timestamp_ms + 2 * HOUR_MS
    assert token.hmac == hmac.digest(KEY.encode(), token.token_id.encode(), "sha512")
    longest = await Client(cluster, ALICE).create(max_ms=100 * DAY_MS)
    assert longest.max_timestamp_ms - longest.issue_timestamp_ms == 7 * DAY_MS
    assert longest.expiry_timestamp_ms - longest.issue_timestamp_ms == DAY_MS
    assert longest.token_id != token.token_id


@with_tokens
async def test_the_node_of_a_token_is_kafkas_and_has_no_secret(
    cluster: TestCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = await Client(cluster, ConnectionIdentity("User", "CN=a b*")).create("bob")
    controller = cluster.services(cluster.controller).controller
    node = await controller._store.get(f"/delegation_token/tokens/{token.token_id}")
    assert node is not None
    assert json.loads(node.value) == {
        "version": 3,
        "owner": "User%3ACN%3Da%20b%2A",
        "tokenRequester": "User%3ACN%3Da%20b%2A",
        "renewers": ["User%3Abob"],
        "issueTimestamp": token.issue_timestamp_ms,
        "maxTimestamp": token.max_timestamp_ms,
        "expiryTimestamp": token.expiry_timestamp_ms,
        "tokenId": token.token_id,
    }
    for encoded in (token.hmac.hex(), base64.b64encode(token.hmac).decode(), str(token.hmac)[2:-1], KEY):
        assert encoded not in caplog.text
    for services in (cluster.services(node_id) for node_id in cluster.brokers):
        assert KEY not in repr(services.config) and KEY not in repr(services.tokens)


@short_lived
async def test_the_owner_and_renewers_renew_a_token_up_to_its_longest_lifetime(cluster: TestCluster) -> None:
    token = await Client(cluster, ALICE).create("bob")
    assert token.max_timestamp_ms - token.issue_timestamp_ms == 40 * MINUTE_MS
    await asyncio.sleep(60)
    code, expiry_ms = await Client(cluster, BOB).renew(token.hmac, 2 * MINUTE_MS)
    assert code == ErrorCode.NONE and 3 * MINUTE_MS <= expiry_ms - token.issue_timestamp_ms < 4 * MINUTE_MS
    code, expiry_ms = await Client(cluster, ALICE).renew(token.hmac, 100 * DAY_MS)
    assert code == ErrorCode.NONE and 11 * MINUTE_MS <= expiry_ms - token.issue_timestamp_ms < 12 * MINUTE_MS
    for _ in range(4):
        await asyncio.sleep(9 * 60)
        code, expiry_ms = await Client(cluster, ALICE).renew(token.hmac)
        assert code == ErrorCode.NONE
    assert expiry_ms == token.max_timestamp_ms
    assert await Client(cluster, CAROL).renew(token.hmac) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, -1)
    assert await Client(cluster, ALICE).renew(b"x" * 64) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, -1)
    await asyncio.sleep(4 * 60)
    assert await Client(cluster, ALICE).renew(token.hmac) == (ErrorCode.DELEGATION_TOKEN_EXPIRED, -1)


@short_lived
async def test_a_token_expires_when_its_owner_says_so(cluster: TestCluster) -> None:
    alice = Client(cluster, ALICE)
    token = await alice.create()
    assert await Client(cluster, BOB).expire(token.hmac) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, -1)
    code, expiry_ms = await alice.expire(token.hmac, 2 * MINUTE_MS)
    assert code == ErrorCode.NONE and expiry_ms < token.expiry_timestamp_ms
    tokens = cluster.services(cluster.controller).tokens
    assert tokens is not None and tokens.find(token.token_id) is not None
    assert tokens.credential(token.token_id, "SCRAM-SHA-256") is not None
    await asyncio.sleep(121)
    assert tokens.find(token.token_id) is None and tokens.credential(token.token_id, "SCRAM-SHA-256") is None
    assert await alice.expire(token.hmac, MINUTE_MS) == (ErrorCode.DELEGATION_TOKEN_EXPIRED, -1)
    assert await alice.renew(token.hmac) == (ErrorCode.DELEGATION_TOKEN_EXPIRED, -1)
    assert await Client(cluster, BOB).expire(token.hmac) == (ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, -1)
    code, _ = await alice.expire(token.hmac)
    assert code == ErrorCode.NONE
    assert await alice.expire(token.hmac) == (ErrorCode.DELEGATION_TOKEN_NOT_FOUND, -1)
    assert not await alice.described()


@pytest.mark.options({"delegation.token.secret.key": KEY, "delegation.token.expiry.check.interval.ms": "60000"})
async def test_expired_tokens_are_removed_and_others_stay(cluster: TestCluster) -> None:
    short = await Client(cluster, ALICE).create(max_ms=10 * MINUTE_MS)
    long = await Client(cluster, ALICE).create()
    await asyncio.sleep(9 * 60)
    view = cluster.services(cluster.controller).cluster
    assert set(view.current.delegation_tokens) == {short.token_id, long.token_id}
    await asyncio.sleep(3 * 60)
    assert set(view.current.delegation_tokens) == {long.token_id}
    await cluster.until(
        lambda: all(
            set(cluster.services(node_id).cluster.current.delegation_tokens) == {long.token_id}
            for node_id in cluster.brokers
        )
    )


@with_tokens
@pytest.mark.parametrize("identity", [ALICE._replace(is_token=True), ConnectionIdentity("User", "ANONYMOUS")])
async def test_who_signed_in_with_a_token_or_not_at_all_gets_no_token(
    cluster: TestCluster, identity: ConnectionIdentity
) -> None:
    token = await Client(cluster, ALICE).create()
    client = Client(cluster, identity)
    refused = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    created = await client.create()
    assert (created.error_code, created.hmac, created.token_id) == (refused, b"", "")
    assert (created.issue_timestamp_ms, created.expiry_timestamp_ms, created.max_timestamp_ms) == (-1, -1, -1)
    assert await client.renew(token.hmac) == (refused, -1)
    assert await client.expire(token.hmac) == (refused, -1)
    answer = await client.call("describe_delegation_token", 3, DescribeDelegationTokenRequest(owners=None))
    assert (answer.error_code, answer.tokens) == (refused, [])


@with_tokens
async def test_a_client_that_did_not_sign_in_is_refused_by_every_broker(cluster: TestCluster) -> None:
    for node_id in cluster.brokers:
        connection = await cluster.services(node_id).nodes.connect_to(node_id)
        body = CreateDelegationTokenRequest(max_lifetime_ms=-1)
        answer = await connection.request(ApiKey.CREATE_DELEGATION_TOKEN, body, timeout_s=10)
        assert answer.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


async def test_without_a_key_there_are_no_tokens(cluster: TestCluster) -> None:
    client, disabled = Client(cluster, ALICE), ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert (await client.create()).error_code == disabled
    assert await client.renew(b"x") == (disabled, -1)
    assert await client.expire(b"x") == (disabled, -1)
    answer = await client.call("describe_delegation_token", 3, DescribeDelegationTokenRequest(owners=None))
    assert answer.error_code == disabled


@with_tokens
async def test_a_token_for_another_user_needs_the_right_to_create_it(cluster: TestCluster) -> None:
    denied = await Client(cluster, ALICE).create(owner="bob")
    assert (denied.error_code, denied.principal_name) == (ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, "bob")
    allowed = Client(cluster, ALICE, Allowed((AclOperation.CREATE_TOKENS, ResourceType.USER, "User:bob")))
    token = await allowed.create(owner="bob")
    assert (token.error_code, token.principal_name, token.token_requester_principal_name) == (0, "bob", "alice")
    assert allowed.authorizer.asked == [(AclOperation.CREATE_TOKENS, ResourceType.USER, "User:bob")]
    assert [each.token_id for each in await Client(cluster, ALICE).described()] == [token.token_id]
    code, _ = await Client(cluster, ALICE).renew(token.hmac)
    assert code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    code, _ = await Client(cluster, BOB).renew(token.hmac)
    assert code == ErrorCode.NONE


@with_tokens
async def test_renewers_are_users(cluster: TestCluster) -> None:
    body = CreateDelegationTokenRequest(
        renewers=[CreatableRenewers(principal_type="Group", principal_name="all")], max_lifetime_ms=-1
    )
    answer = await Client(cluster, ALICE).call("create_delegation_token", 3, body)
    assert answer.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE


@with_tokens
async def test_a_client_sees_its_own_tokens_and_those_that_it_may_describe(cluster: TestCluster) -> None:
    of_alice = await Client(cluster, ALICE).create("carol")
    of_bob = await Client(cluster, BOB).create()
    ids = [of_alice.token_id, of_bob.token_id]
    assert [each.token_id for each in await Client(cluster, ALICE).described()] == ids[:1]
    assert [each.token_id for each in await Client(cluster, CAROL).described()] == ids[:1]  # a renewer
    assert await Client(cluster, CAROL).described("bob") == []
    by_token = Allowed((AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, of_bob.token_id))
    assert [each.token_id for each in await Client(cluster, CAROL, by_token).described("bob")] == ids[1:]
    by_owner = Allowed((AclOperation.DESCRIBE_TOKENS, ResourceType.USER, "User:bob"))
    _, described = await Client(cluster, CAROL, by_owner).described("bob", "alice", "none")
    assert (described.token_id, described.hmac) == (of_bob.token_id, of_bob.hmac)
    assert await Client(cluster, ALICE).described(all_owners=False) == []


@with_tokens
async def test_the_scram_credential_of_a_token_has_its_secret_in_base64_as_the_password(cluster: TestCluster) -> None:
    token = await Client(cluster, ALICE).create()
    tokens = cluster.services(cluster.controller).tokens
    assert tokens is not None
    for mechanism, name in (("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")):
        credential = tokens.credential(token.token_id, mechanism)
        assert credential is not None and credential is tokens.credential(token.token_id, mechanism)
        password = base64.b64encode(token.hmac)
        salted = hashlib.pbkdf2_hmac(name, password, credential.salt, credential.iterations)
        client_key = hmac.digest(salted, b"Client Key", name)
        assert credential.stored_key == hashlib.new(name, client_key).digest()
        assert credential.server_key == hmac.digest(salted, b"Server Key", name)
        assert credential.iterations == 4096 and str(credential.stored_key) not in repr(credential)
    assert tokens.credential(token.token_id, "PLAIN") is None and tokens.credential("none", "SCRAM-SHA-256") is None


@with_tokens
async def test_tokens_outlive_a_restart_of_all_brokers(cluster: TestCluster) -> None:
    token = await Client(cluster, ALICE).create()
    for node_id in tuple(cluster.brokers):
        await cluster.stop(node_id)
        await cluster.restart(node_id)
    assert [each.hmac for each in await Client(cluster, ALICE).described()] == [token.hmac]


def test_nodes_of_older_versions_are_read_and_malformed_ones_refused() -> None:
    token = TokenInformation("id", "User:CN=a:b", "User:c", ("User:d",), 1, 2, 3)
    path = token_path("id")
    assert decode_token(path, encode_token(token)) == token
    old = json.loads(encode_token(token)) | {"version": 2}
    del old["tokenRequester"]
    assert decode_token(path, json.dumps(old).encode()) == token._replace(requester="User:CN=a:b")
    for wrong in (
        b"",
        b"[]",
        b"{}",
        json.dumps(old | {"version": 4}).encode(),
        json.dumps(old | {"owner": "x"}).encode(),
    ):
        with pytest.raises(MalformedNode):
            decode_token(path, wrong)
