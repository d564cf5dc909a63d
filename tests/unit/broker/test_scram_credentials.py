"""AlterUserScramCredentials and DescribeUserScramCredentials, with Kafka's checks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ottla.core.errors import ErrorCode
from ottla.core.runtime import random_bytes
from ottla.metadata_store import znodes
from ottla.security.sasl.credentials import MECHANISM_OF_NUMBER, from_text, salted_password
from ottla.wire.generated.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.wire.generated.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from tests.support.sasl_broker import SaslBroker, sasl_broker

SHA_256, SHA_512 = 1, 2


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[SaslBroker]:
    async with sasl_broker(tmp_path) as started:
        yield started


def upsertion(
    name: str, mechanism: int = SHA_256, *, password: str = "new password", iterations: int = 4096
) -> ScramCredentialUpsertion:
    salt = random_bytes(16)
    salted = salted_password(MECHANISM_OF_NUMBER.get(mechanism, "SCRAM-SHA-256"), password, salt, max(iterations, 1))
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted
    )


async def alter(broker: SaslBroker, **body: Any) -> dict[str, tuple[int, str | None]]:
    answer = await broker.cluster.handlers(1).call(
        "alter_user_scram_credentials", 0, AlterUserScramCredentialsRequest(**body)
    )
    return {result.user: (result.error_code, result.error_message) for result in answer.results}


async def describe(broker: SaslBroker, *names: str) -> dict[str, Any]:
    body = DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in names] or None)
    answer = await broker.cluster.handlers(1).call("describe_user_scram_credentials", 0, body)
    return {
        result.user: result.error_code or {info.mechanism: info.iterations for info in result.credential_infos}
        for result in answer.results
    }


async def test_a_user_can_sign_in_with_what_was_set_and_with_nothing_else(broker: SaslBroker) -> None:
    assert await alter(broker, upsertions=[upsertion("bob", SHA_256)]) == {"bob": (0, None)}
    assert await alter(broker, upsertions=[upsertion("bob", SHA_512, iterations=8192)]) == {"bob": (0, None)}
    assert await describe(broker, "bob") == {"bob": {SHA_256: 4096, SHA_512: 8192}}
    for mechanism in MECHANISM_OF_NUMBER.values():
        async with await broker.client() as client:
            assert (await client.sign_in("bob", "new password", mechanism))["error_code"] == 0
    assert await alter(broker, deletions=[ScramCredentialDeletion(name="bob", mechanism=SHA_256)]) == {"bob": (0, None)}
    assert await describe(broker, "bob") == {"bob": {SHA_512: 8192}}
    async with await broker.client() as client:
        assert (await client.sign_in("bob", "new password"))["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_what_kafka_refuses_is_refused(broker: SaslBroker) -> None:
    outcomes = await alter(
        broker,
        deletions=[
            ScramCredentialDeletion(name="stranger", mechanism=SHA_256),
            ScramCredentialDeletion(name="alice", mechanism=3),
            ScramCredentialDeletion(name="twice", mechanism=SHA_256),
        ],
        upsertions=[
            upsertion("few", iterations=4095),
            upsertion("many", iterations=16385),
            upsertion(""),
            upsertion("unknown", 0),
            upsertion("two", SHA_256),
            upsertion("two", SHA_512),
            upsertion("two", SHA_256),
        ],
    )
    assert outcomes == {
        "stranger": (ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"),
        "alice": (ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        "twice": (ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"),
        "few": (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        "many": (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
        "": (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        "unknown": (ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        "two": (ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"),
    }
    assert await describe(broker) == {"alice": {SHA_256: 4096, SHA_512: 4096}}


async def test_described_are_all_users_or_those_that_are_named(broker: SaslBroker) -> None:
    await alter(broker, upsertions=[upsertion("CN=a b/c,O=*"), upsertion("é")])
    assert set(await describe(broker)) == {"alice", "CN=a b/c,O=*", "é"}
    assert await describe(broker, "é", "stranger", "alice", "alice") == {
        "é": {SHA_256: 4096},
        "stranger": ErrorCode.RESOURCE_NOT_FOUND,
        "alice": ErrorCode.DUPLICATE_RESOURCE,
    }


async def test_the_node_of_a_user_is_kafkas(broker: SaslBroker) -> None:
    """As `kafka-configs.sh --zookeeper` of Kafka 3.x wrote it: the same path, keys and order of fields."""
    await alter(broker, upsertions=[upsertion("a b")])
    view = broker.cluster.services(1).cluster.current
    assert "a%20b" in view.configs[znodes.USERS_KIND]
    text = view.user_settings("a b")["SCRAM-SHA-256"]
    assert [field.partition("=")[0] for field in text.split(",")] == ["salt", "stored_key", "server_key", "iterations"]
    assert "hidden" in repr(from_text(text)) and text[:12] not in repr(from_text(text))


async def test_a_client_that_may_not_gets_the_error_of_each_user() -> None:
    from ottla.broker.handlers.alter_user_scram_credentials import refused
    from ottla.core.errors import error_for
    from ottla.testing.requests import request_to
    from tests.support.requests import bare_services

    body = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name="a")], upsertions=[upsertion("b"), upsertion("a")]
    )
    request = request_to(bare_services(), 0)
    parts = refused(request, body, error_for(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    assert parts.answer.results == []  # made in slices, as any other answer
