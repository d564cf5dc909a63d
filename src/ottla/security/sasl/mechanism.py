"""Declares the server's half of a SASL mechanism: a short exchange of tokens, at whose end there is a principal."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Principal(NamedTuple):
    """The user that a mechanism has authenticated."""

    name: str
    groups: tuple[str, ...] = ()
    is_token: bool = False  # a delegation token of the user
    expires_at_ms: int | None = None  # the credential's end, which ends the session too


class AuthenticationFailed(Exception):
    """The client is not who it says, or the message is none of the mechanism.

    The text of the exception is for the broker's log; `answer` is what the client gets. An empty one stands for the
    text that is the same for every failure of a mechanism, so that it does not show which users exist.
    """

    def __init__(self, reason: str, *, answer: str = "", user: str = "") -> None:
        super().__init__(reason)
        self.answer = answer
        self.user = user  # as the client names itself; empty if it did not come to that


class Exchange(Protocol):
    """The exchange of one sign-in. No I/O."""

    principal: Principal | None  # None until the exchange is complete

    def evaluate(self, token: bytes) -> bytes:
        """Return the answer to the client's next message. Raises AuthenticationFailed, once."""
        ...
