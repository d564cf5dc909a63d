"""Limits how fast replicas catch up, so that a reassignment leaves bandwidth to clients (KIP-73).

Only replicas that a topic lists as throttled, and that are not in sync, are held back: one in the ISR delays acks=all.
"""

from __future__ import annotations

from collections.abc import Sequence

BURST_SECONDS = 1.0
"""What was not used counts for this long."""

ALL_REPLICAS = "*"


class ReplicationQuota:
    """The bytes a second of all throttled replicas together, in one direction."""

    __slots__ = ("_paid_until_s", "_rate")

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._paid_until_s = 0.0

    def configure(self, rate: int) -> None:
        """Follow the setting. What went at another rate does not count: a raised limit has an effect at once."""
        if rate != self._rate:
            self._rate, self._paid_until_s = rate, 0.0

    def record(self, size_bytes: int, now_s: float) -> None:
        """Count what was sent or received."""
        start_s = max(self._paid_until_s, now_s - BURST_SECONDS)
        self._paid_until_s = start_s + size_bytes / max(self._rate, 1)

    def wait_s(self, now_s: float) -> float:
        """Return for how long nothing more may go; 0 if it may."""
        return max(0.0, self._paid_until_s - now_s)


def is_throttled(replicas: Sequence[str], partition: int, node_id: int) -> bool:
    """Return whether a topic's list of throttled replicas names one.

    >>> is_throttled(("0:1", "0:2"), 0, 2), is_throttled(("*",), 5, 1), is_throttled(("0:1",), 1, 1)
    (True, True, False)
    """
    return bool(replicas) and (ALL_REPLICAS in replicas or f"{partition}:{node_id}" in replicas)
