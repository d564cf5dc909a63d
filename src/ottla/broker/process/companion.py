"""Declares what may run beside a broker in its process: what reads its state from the packages above."""

from __future__ import annotations

from typing import Protocol

from ottla.broker.broker import Broker
from ottla.broker.requests.stages import Accounting


class Companion(Protocol):
    """Reads a broker while it runs. It is made before the broker is, and outlives it."""

    accounting: Accounting | None  # of all requests; None: it measures none

    def start(self, broker: Broker) -> None:
        """Begin, on the broker's loop, before the broker starts. Raises OSError and InvalidSettings."""
        ...

    async def stop(self) -> None:
        """End, once the broker has stopped."""
        ...
