"""A connection of a listener with SASL is served once its client has signed in, and nothing before that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ottla.core.errors import ErrorCode
from ottla.wire.apis import ApiKey
from tests.support.sasl_broker import PASSWORD, Client, SaslBroker, sasl_broker
from tests.support.wire_client import KEYS, encode

INVALID = "Authentication failed during authentication due to invalid credentials with SASL mechanism {}"
BEFORE_SIGN_IN = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[SaslBroker]:
    async with sasl_broker(tmp_path) as started:
        yield started


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("asks_versions", [True, False])
async def test_a_client_that_has_signed_in_is_served(broker: SaslBroker, mechanism: str, asks_versions: bool) -> None:
    async with await broker.client() as client:
        if asks_versions:
            assert (
                await client.call("api_versions", 3, client_software_name="c", client_software_version="1")
            ) is not None
        answer = await client.sign_in(mechanism=mechanism)
        assert (answer["error_code"], answer["error_message"], answer["session_lifetime"]) == (0, "", 0)
        assert await client.may_ask()


async def test_a_wrong_password_and_an_unknown_user_get_the_same_answers(broker: SaslBroker) -> None:
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        for user, password in (("alice", "wrong"), ("stranger", PASSWORD)):
            async with await broker.client() as client:
                answer = await client.sign_in(user, password, mechanism)
                assert answer["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
                assert answer["error_message"] == INVALID.format(mechanism)
                assert await client.is_closed


async def test_plain_takes_the_users_of_the_jaas_config_alone(broker: SaslBroker) -> None:
    for token, expected in (
        (b"\0alice\0plain secret", ""),
        (b"alice\0alice\0plain secret", ""),
        (b"\0alice\0correct horse", "Authentication failed: Invalid username or password"),
        (b"\0stranger\0plain secret", "Authentication failed: Invalid username or password"),
        (
            b"root\0alice\0plain secret",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
        (b"\0alice", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0\0plain secret", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
    ):
        async with await broker.client() as client:
            await client.handshake("PLAIN")
            answer = await client.token(token)
            assert answer is not None and answer["error_message"] == expected, token
            assert await client.may_ask() is (expected == "")


async def test_a_mechanism_that_is_not_enabled_is_answered_with_those_that_are(broker: SaslBroker) -> None:
    async with await broker.client() as client:
        answer = await client.handshake("GSSAPI")
        assert answer == {
            "error_code": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"],
        }
        assert await client.is_closed


@pytest.mark.parametrize("api", sorted(KEYS))
async def test_every_other_request_before_the_sign_in_ends_the_connection(broker: SaslBroker, api: str) -> None:
    if KEYS[api] in BEFORE_SIGN_IN:
        return
    async with await broker.client() as client:
        version = 4 if api == "produce" else 0
        try:
            frame = encode(api, version, 1, {})
        except KeyError:
            frame = KEYS[api].to_bytes(2, "big") + bytes(8)
        client.send_frame(frame)
        assert await client.is_closed


async def test_after_the_versions_only_a_handshake_may_come(broker: SaslBroker) -> None:
    async with await broker.client() as client:
        assert await client.call("api_versions", 0) is not None
        assert await client.call("api_versions", 0) is None


async def test_in_the_middle_of_a_sign_in_other_requests_are_refused(broker: SaslBroker) -> None:
    async with await broker.client() as client:
        await client.handshake("SCRAM-SHA-256")
        answer = await client.call("list_groups", 0)
        assert answer is not None and answer["error_code"] == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.is_closed


async def test_tokens_without_headers_follow_a_handshake_of_version_0(broker: SaslBroker) -> None:
    async with await broker.client() as client:
        await client.handshake("PLAIN", version=0)
        client.send_frame(b"\0alice\0plain secret")
        assert await client.receive_frame() == b""  # of size 0: that is the whole answer
        assert await client.may_ask()
    async with await broker.client() as client:
        await client.handshake("PLAIN", version=0)
        assert await client.raw_token(b"\0alice\0wrong") == b""
        assert not await client.may_ask()


async def test_a_second_handshake_is_refused_where_sessions_have_no_end(broker: SaslBroker) -> None:
    async with await broker.client() as client:
        await client.sign_in()
        answer = await client.handshake("SCRAM-SHA-256")
        assert answer is not None and answer["error_code"] == ErrorCode.ILLEGAL_SASL_STATE
        answer = await client.token(b"n,,n=alice,r=abc")
        assert answer is not None and answer["error_code"] == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.may_ask()


async def test_requests_before_the_sign_in_are_small(broker: SaslBroker) -> None:
    async with await broker.client() as client:
        client.writer.write((512 * 1024 + 1).to_bytes(4, "big"))
        assert await client.is_closed


async def test_a_large_token_may_come_in_parts_and_leaves_no_memory_reserved(broker: SaslBroker) -> None:
    async with await broker.client() as client:
        await client.handshake("PLAIN")
        answer = await client.token(b"\0alice\0" + b"x" * 300_000)
        assert answer is not None and answer["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await client.is_closed


@pytest.fixture
async def short(tmp_path: Path) -> AsyncIterator[SaslBroker]:
    async with sasl_broker(tmp_path, {"connections.max.reauth.ms": "60000"}) as started:
        yield started


async def test_a_session_is_renewed_on_its_connection(short: SaslBroker) -> None:
    async with await short.client() as client:
        assert (await client.sign_in())["session_lifetime"] == 60_000
        assert await client.may_ask()
        assert (await client.sign_in())["session_lifetime"] == 60_000
        assert await client.may_ask()
        answer = await client.handshake("SCRAM-SHA-256")  # within a second
        assert answer is not None and answer["error_code"] == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.may_ask()


async def test_a_session_is_not_renewed_by_another_mechanism(short: SaslBroker) -> None:
    async with await short.client() as client:
        await client.sign_in()
        answer = await client.handshake("SCRAM-SHA-512")
        assert answer is not None and answer["error_code"] == 0
        assert await client.token(b"n,,n=alice,r=abc") is None


async def test_a_session_is_not_renewed_for_another_principal(short: SaslBroker) -> None:
    await short.add_user("bob")
    async with await short.client() as client:
        await client.sign_in()
        answer = await client.sign_in("bob")
        assert answer["error_message"] == (
            "Cannot change principals during re-authentication from User.alice: User.bob"
        )
        assert await client.is_closed


async def expired(broker: SaslBroker) -> Client:
    """A client whose session is over."""
    client = await broker.client()
    await client.sign_in()
    sign_ins = broker.cluster.services(1).sign_ins
    assert sign_ins is not None
    ((connection, timer),) = sign_ins._expiries.items()
    timer.cancel()
    sign_ins._expire(connection, connection.authentication)  # type: ignore[arg-type]
    return client


async def test_a_request_after_the_end_of_a_session_ends_the_connection(short: SaslBroker) -> None:
    async with await expired(short) as client:
        assert not await client.may_ask()


async def test_a_session_can_be_renewed_after_its_end(short: SaslBroker) -> None:
    async with await expired(short) as client:
        await client.sign_in()
        assert await client.may_ask()


async def test_a_broker_keeps_nothing_of_connections_that_are_gone(short: SaslBroker) -> None:
    clients = [await short.client() for _ in range(3)]
    for client in clients:
        await client.sign_in()
        client.close()
    sign_ins = short.cluster.services(1).sign_ins
    assert sign_ins is not None
    await short.cluster.until(lambda: not sign_ins._expiries)
