"""Authenticates with SASL PLAIN, SCRAM and OAUTHBEARER over Kafka's protocol (KIP-43, KIP-152, KIP-368).

After ApiVersions a client names its mechanism (SaslHandshake) and then sends the mechanism's own messages in
SaslAuthenticate requests. `scramp` implements SCRAM: it checks the broker's nonce and signature. GSSAPI (Kerberos) is
not supported.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ottla.client.errors import raise_for
from ottla.core.errors import ErrorCode, KafkaError, error_for
from ottla.core.runtime import random_bytes
from ottla.security.config import OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from ottla.wire.apis import ApiKey

MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
_HANDSHAKE_VERSION = 1  # after version 0 the SASL messages have no request headers
ITERATIONS_MAX = 65_536
"""Kafka's own limit is 16,384; a far larger number would only hold the client's event loop (CVE-2026-10143)."""

_NONCE_BYTES = 24
_TOKEN_COMMAND_S = 30.0
_TOKEN = re.compile(rb"[-_.~+/=A-Za-z0-9]+")
_EXTENSION = ",tokenauth=true"
_ITERATIONS = re.compile(r"(?:^|,)i=(\d+)")


@dataclass(frozen=True, slots=True)
class Sasl:
    """The mechanism and the credentials."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    token_file: str = ""  # of OAUTHBEARER: it is read at each sign-in
    token_command: str = ""  # that prints the token
    is_token: bool = False  # of SCRAM: these are the id and the HMAC of a delegation token (KIP-48)


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
    raise_for(answer.error_code, about=f"authenticating{_as(sasl)}")
    if sasl.mechanism == PLAIN:
        message = b"\0".join((b"", sasl.username.encode(), sasl.password.encode()))
        return (await _exchange(connection, sasl, message, timeout_s))[1]
    if sasl.mechanism == OAUTHBEARER:
        return await _oauthbearer(connection, sasl, timeout_s)
    return await _scram(connection, sasl, timeout_s)


async def _oauthbearer(connection: Requester, sasl: Sasl, timeout_s: float) -> int:
    token = await _token(sasl)
    refusal, lifetime_ms = await _exchange(connection, sasl, f"n,,\x01auth=Bearer {token}\x01\x01".encode(), timeout_s)
    if refusal:  # the broker says why it fails once that is confirmed
        await _exchange(connection, sasl, b"\x01", timeout_s)
        raise _failed(sasl, "the broker has refused the token")
    return lifetime_ms


async def _token(sasl: Sasl) -> str:
    """Return the token, which may be another one at each sign-in. Raises KafkaError."""
    if sasl.token_command:
        try:
            command = await asyncio.create_subprocess_shell(sasl.token_command, stdout=asyncio.subprocess.PIPE)
            async with asyncio.timeout(_TOKEN_COMMAND_S):
                output, _ = await command.communicate()
        except (OSError, TimeoutError) as error:
            raise _failed(sasl, f"the command that prints the token failed: {error!r}") from error
        if command.returncode:
            raise _failed(sasl, f"the command that prints the token ended with {command.returncode}")
        text = output
    else:
        text = _read_token(sasl)
    token = text.strip()
    if not _TOKEN.fullmatch(token):
        raise _failed(sasl, "there is no token: it would be letters, digits and -_.")
    return token.decode()


def _read_token(sasl: Sasl) -> bytes:
    try:
        return Path(sasl.token_file).read_bytes()
    except OSError as error:
        raise _failed(sasl, f"the token cannot be read: {error}") from error


async def _scram(connection: Requester, sasl: Sasl, timeout_s: float) -> int:
    from scramp import ScramClient, ScramException

    nonce = b64encode(random_bytes(_NONCE_BYTES)).decode()
    client = ScramClient([sasl.mechanism], sasl.username, sasl.password, c_nonce=nonce)
    try:
        client_first = client.get_client_first()
        if sasl.is_token:  # scramp has no extensions; both ends sign what was sent
            client_first += _EXTENSION
            client.client_first_bare += _EXTENSION
        server_first, _ = await _exchange(connection, sasl, client_first.encode(), timeout_s)
        text = server_first.decode()
        iterations = _ITERATIONS.search(text)
        if iterations is not None and int(iterations[1]) > ITERATIONS_MAX:
            raise _failed(sasl, f"the broker requests {iterations[1]} iterations; the limit is {ITERATIONS_MAX}")
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
    raise_for(answer.error_code, answer.error_message, about=f"authenticating{_as(sasl)} with {sasl.mechanism}")
    return bytes(answer.auth_bytes), int(answer.session_lifetime_ms)


def _as(sasl: Sasl) -> str:
    return f" as {sasl.username}" if sasl.username else ""


def _failed(sasl: Sasl, why: str) -> KafkaError:
    return error_for(ErrorCode.SASL_AUTHENTICATION_FAILED, f"authenticating{_as(sasl)}: {why}")
