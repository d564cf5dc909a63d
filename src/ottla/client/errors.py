"""Trouble that has no number on the wire, because no broker was there to send one."""

from __future__ import annotations


class CannotConnect(Exception):
    """No connection, or what answered does not speak Kafka's protocol. Worth a retry elsewhere or later."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"cannot connect to {address}: {reason}")
        self.address = address
        self.reason = reason
