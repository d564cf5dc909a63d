"""Defines the error of a connection, and raises the error that an error code of the protocol means."""

from __future__ import annotations

from ottla.core.errors import ErrorCode, KafkaError, error_for


class CannotConnect(Exception):
    """A connection failed, or the peer does not speak Kafka's protocol. Another broker or a later retry may succeed."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot connect to {address}: {reason}")
        self.address = address
        self.reason = reason


def error_or_none(code: int, message: str | None = None) -> KafkaError | None:
    """Return the error of an error code with the broker's message; None for no error."""
    return None if code == ErrorCode.NONE else error_for(code, message or "")


def raise_for(code: int, message: str | None = None, *, about: str = "") -> None:
    """Raise the error of an error code (0: none) with the broker's message, or else the error's default message."""
    if code != ErrorCode.NONE:
        text = message or error_for(code).message
        raise error_for(code, f"{about}: {text}" if about else text)
