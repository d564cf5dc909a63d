"""CVE-2024-56128: the nonce of SCRAM's final message was not checked, or only its end: messages could be replayed."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest
from scramp import ScramClient

from ottla.client.sasl import Sasl, authenticate
from ottla.core.errors import ErrorCode, KafkaError
from ottla.security.sasl.credentials import HASHES, ScramCredential, TokenCredential, from_password, salted_password
from ottla.security.sasl.mechanism import AuthenticationFailed
from ottla.security.sasl.scram import ScramExchange
from ottla.wire.apis import ApiKey
from ottla.wire.generated.sasl_authenticate import SaslAuthenticateResponse
from ottla.wire.generated.sasl_handshake import SaslHandshakeResponse

CREDENTIALS = {mechanism: from_password(mechanism, "secret") for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")}


class Users:
    """alice."""

    def user(self, _name: str, mechanism: str) -> ScramCredential | None:
        return CREDENTIALS[mechanism]

    def token(self, _token_id: str, _mechanism: str) -> TokenCredential | None:
        return None


def begun(mechanism: str, client: ScramClient | None = None) -> tuple[ScramExchange, ScramClient, str]:
    """An exchange after its first half, and the final message that would complete it."""
    client = client or ScramClient([mechanism], "alice", "secret")
    exchange = ScramExchange(mechanism, Users(), b"key")
    client.set_server_first(exchange.evaluate(client.get_client_first().encode()).decode())
    return exchange, client, client.get_client_final()


@pytest.mark.parametrize("mechanism", CREDENTIALS)
def test_a_message_of_another_exchange_is_refused(mechanism: str) -> None:
    exchange, _, final = begun(mechanism)
    assert exchange.evaluate(final.encode()).startswith(b"v=")
    again, _, _ = begun(mechanism)
    with pytest.raises(AuthenticationFailed, match="nonce"):
        again.evaluate(final.encode())


def final_message(mechanism: str, bare: str, server_first: str, nonce: str) -> bytes:
    """A client's final message with this nonce: the proof is right for the message as it is."""
    name, credential = HASHES[mechanism], CREDENTIALS[mechanism]
    salted = salted_password(mechanism, "secret", credential.salt, credential.iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    without_proof = f"c=biws,r={nonce}"
    signed = f"{bare},{server_first},{without_proof}".encode()
    signature = hmac.digest(hashlib.new(name, client_key).digest(), signed, name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{without_proof},p={b64encode(proof).decode()}".encode()


@pytest.mark.parametrize("mechanism", CREDENTIALS)
@pytest.mark.parametrize(
    ("change", "is_taken"),
    [
        (lambda nonce: nonce, True),
        (lambda nonce: "x" + nonce, False),
        (lambda nonce: nonce[1:], False),
        (lambda nonce: nonce[:-1], False),
        (lambda nonce: nonce[len("abc") :], False),  # what the broker has added, alone
    ],
)
def test_a_nonce_that_only_ends_or_begins_as_that_of_the_exchange_is_refused(
    mechanism: str, change: Callable[[str], str], is_taken: bool
) -> None:
    exchange = ScramExchange(mechanism, Users(), b"key")
    bare = "n=alice,r=abc"
    server_first = exchange.evaluate(f"n,,{bare}".encode()).decode()
    final = final_message(mechanism, bare, server_first, change(server_first[2:].partition(",")[0]))
    if is_taken:
        assert exchange.evaluate(final).startswith(b"v=")
    else:
        with pytest.raises(AuthenticationFailed, match="nonce"):
            exchange.evaluate(final)


@pytest.mark.parametrize("nonce", ["its own", "another"])
async def test_our_client_refuses_a_nonce_that_is_not_an_extension_of_its_own(nonce: str) -> None:
    class Broker:
        async def request(self, key: ApiKey, request: Any, **_: Any) -> Any:
            if key == ApiKey.SASL_HANDSHAKE:
                return SaslHandshakeResponse(mechanisms=["SCRAM-SHA-256"])
            sent = request.auth_bytes.decode().partition("r=")[2]
            given = sent if nonce == "its own" else "x" * len(sent) + "more"
            first = f"r={given},s={b64encode(b'salt').decode()},i=4096"
            return SaslAuthenticateResponse(error_message=None, auth_bytes=first.encode())

    with pytest.raises(KafkaError) as refused:
        await authenticate(Broker(), Sasl("SCRAM-SHA-256", "alice", "secret"), timeout_s=1)
    assert refused.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED
