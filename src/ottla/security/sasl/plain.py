"""Authenticates by PLAIN (RFC 4616): the user name and the password as they are, so over TLS only.

The users are those of the listener's `sasl.jaas.config`, `user_NAME="password"`, as in Kafka.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final

from ottla.security.sasl.mechanism import AuthenticationFailed, Principal
from ottla.security.sasl.scram import OTHER_AUTHORIZATION_ID

WRONG: Final = "Authentication failed: Invalid username or password"
_TOKENS: Final = 3


class PlainExchange:
    """The server's half of one exchange, which is one message."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self.principal: Principal | None = None
        self._passwords = passwords

    def evaluate(self, token: bytes) -> bytes:
        """Return nothing. Raises AuthenticationFailed."""
        parts = token.split(b"\0", _TOKENS - 1)
        if len(parts) != _TOKENS:
            answer = f"Invalid SASL/PLAIN response: expected {_TOKENS} tokens, got {len(parts)}"
            raise AuthenticationFailed("the message is not one of PLAIN", answer=answer)
        try:
            authorization_id, user, password = (part.decode() for part in parts)
        except UnicodeDecodeError:
            raise AuthenticationFailed("a PLAIN message that is not text") from None
        if not user or not password:
            missing = "password" if user else "username"
            answer = f"Authentication failed: {missing} not specified"
            raise AuthenticationFailed("no user name or no password", answer=answer, user=user)
        known = self._passwords.get(user)
        is_right = hmac.compare_digest(parts[2], (password + "?" if known is None else known).encode())
        if not is_right or known is None:
            raise AuthenticationFailed("wrong password or unknown user", answer=WRONG, user=user)
        if authorization_id and authorization_id != user:
            raise AuthenticationFailed("another authorization id", answer=OTHER_AUTHORIZATION_ID, user=user)
        self.principal = Principal(user)
        return b""
