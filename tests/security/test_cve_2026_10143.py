"""CVE-2026-10143: a server that asked for a huge number of iterations held the client in PBKDF2."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from ottla.client.sasl import ITERATIONS_MAX, Sasl, authenticate
from ottla.core.errors import ErrorCode, KafkaError
from ottla.security.sasl.credentials import ScramCredential, TokenCredential, from_password
from ottla.security.sasl.mechanism import AuthenticationFailed
from ottla.security.sasl.scram import ScramExchange
from ottla.wire.apis import ApiKey
from ottla.wire.generated.sasl_authenticate import SaslAuthenticateResponse
from ottla.wire.generated.sasl_handshake import SaslHandshakeResponse


@pytest.mark.parametrize("iterations", ["65537", "1000000000", "9" * 400])
async def test_our_client_computes_nothing_for_a_server_that_asks_for_too_much(
    iterations: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Server:
        async def request(self, key: ApiKey, request: Any, **_: Any) -> Any:
            if key == ApiKey.SASL_HANDSHAKE:
                return SaslHandshakeResponse(mechanisms=["SCRAM-SHA-512"])
            nonce = request.auth_bytes.decode().partition("r=")[2]
            return SaslAuthenticateResponse(
                error_message=None, auth_bytes=f"r={nonce}more,s=c2FsdA==,i={iterations}".encode()
            )

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", _not_called)
    with pytest.raises(KafkaError, match="iterations") as refused:
        await authenticate(Server(), Sasl("SCRAM-SHA-512", "alice", "secret"), timeout_s=1)
    assert refused.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert ITERATIONS_MAX == 65_536


def _not_called(*_: Any, **__: Any) -> bytes:
    raise AssertionError("PBKDF2 is computed")


def test_a_sign_in_computes_no_pbkdf2_in_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cost would be the broker's, for clients that need no password."""

    class Users:
        def user(self, name: str, _mechanism: str) -> ScramCredential | None:
            return credential if name == "alice" else None

        def token(self, _token_id: str, _mechanism: str) -> TokenCredential | None:
            return None

    credential = from_password("SCRAM-SHA-256", "secret")
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", _not_called)
    for user in ("alice", "stranger"):
        exchange = ScramExchange("SCRAM-SHA-256", Users(), b"key")
        nonce = exchange.evaluate(f"n,,n={user},r=abc".encode()).decode().partition(",")[0]
        with pytest.raises(AuthenticationFailed):
            exchange.evaluate(f"c=biws,{nonce},p={'A' * 43}=".encode())
