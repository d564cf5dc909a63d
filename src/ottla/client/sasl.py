"""Authenticates with SASL PLAIN and SCRAM over Kafka's protocol (KIP-43, KIP-152, KIP-368).

After ApiVersions a client names its mechanism (SaslHandshake) and then sends the mechanism's own messages in
SaslAuthenticate requests. `scramp` implements SCRAM. GSSAPI (Kerberos) and OAUTHBEARER are not supported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Protocol

from ottla.client.errors import raise_for
from ottla.core.errors import ErrorCode, KafkaError, error_for
from ottla.wire.apis import ApiKey

PLAIN = "PLAIN"
MECHANISMS = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512")
_HANDSHAKE_VERSION = 1  # after version 0 the SASL messages have no request headers
_ITERATIONS_MAX = 1_000_000
"""Kafka's own limit is 16,384; a far larger number would only waste the client's processor time."""
_ITERATIONS = re.compile(r"(?:^|,)i=(\d+)")


@dataclass(frozen=True, slots=True)
class Sasl:
    """The mechanism and the credentials."""

    mechanism: str
    username: str
    password: str = field(repr=False)


class Requester(Protocol):
    """The part of a connection that authentication needs."""

    async def request(self, key: ApiKey, request: Any, *, timeout_s: float, at_most: int | None = None) -> Any:
        """Send a request and return its response."""


async def authenticate(connection: Requester, sasl: Sasl, *, timeout_s: float) -> int:
    """Authenticate; returns the session's lifetime in milliseconds (0: unlimited).

    Raises the broker's `KafkaError`: SASL_AUTHENTICATION_FAILED or UNSUPPORTED_SASL_MECHANISM.
    """
    from ottla.wire.generated.sasl_handshake import SaslHandshakeRequest

    ask = SaslHandshakeRequest(mechanism=sasl.mechanism)
    answer = await connection.request(ApiKey.SASL_HANDSHAKE, ask, timeout_s=timeout_s, at_most=_HANDSHAKE_VERSION)
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        raise error_for(
            answer.error_code,
            f"the broker does not support {sasl.mechanism}; it supports {', '.join(answer.mechanisms) or 'none'}",
        )
    raise_for(answer.error_code, about=f"authenticating as {sasl.username}")
    if sasl.mechanism == PLAIN:
        message = b"\0".join((b"", sasl.username.encode(), sasl.password.encode()))
        return (await _exchange(connection, sasl, message, timeout_s))[1]
    return await _scram(connection, sasl, timeout_s)


async def _scram(connection: Requester, sasl: Sasl, timeout_s: float) -> int:
    from scramp import ScramClient, ScramException

    client = ScramClient([sasl.mechanism], sasl.username, sasl.password)
    try:
        server_first, _ = await _exchange(connection, sasl, client.get_client_first().encode(), timeout_s)
        text = server_first.decode()
        iterations = _ITERATIONS.search(text)
        if iterations is not None and int(iterations[1]) > _ITERATIONS_MAX:
            raise _failed(sasl, f"the broker requests {iterations[1]} iterations; the limit is {_ITERATIONS_MAX}")
        client.set_server_first(text)
        server_final, lifetime_ms = await _exchange(connection, sasl, client.get_client_final().encode(), timeout_s)
        client.set_server_final(server_final.decode())  # the proof that the broker knows the password too
    except (ScramException, UnicodeDecodeError) as error:
        raise _failed(sasl, str(error)) from error
    return lifetime_ms


async def _exchange(connection: Requester, sasl: Sasl, message: bytes, timeout_s: float) -> tuple[bytes, int]:
    from ottla.wire.generated.sasl_authenticate import SaslAuthenticateRequest

    ask = SaslAuthenticateRequest(auth_bytes=message)
    answer = await connection.request(ApiKey.SASL_AUTHENTICATE, ask, timeout_s=timeout_s)
    raise_for(answer.error_code, answer.error_message, about=f"authenticating as {sasl.username} with {sasl.mechanism}")
    return bytes(answer.auth_bytes), int(answer.session_lifetime_ms)


def _failed(sasl: Sasl, why: str) -> KafkaError:
    return error_for(ErrorCode.SASL_AUTHENTICATION_FAILED, f"authenticating as {sasl.username}: {why}")
