"""Trouble: with a number from the wire, and without one because no broker was there to send it."""

from __future__ import annotations

from ottla.core.errors import ErrorCode, error_for


class CannotConnect(Exception):
    """No connection, or what answered does not speak Kafka's protocol. Worth a retry elsewhere or later."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot connect to {address}: {reason}")
        self.address = address
        self.reason = reason


def raise_for(code: int, message: str | None = None, *, about: str = "") -> None:
    """Raise the error a number stands for (0: none), with the broker's words or else the error's own meaning."""
    if code != ErrorCode.NONE:
        text = message or error_for(code).message
        raise error_for(code, f"{about}: {text}" if about else text)
