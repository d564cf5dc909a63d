"""A broker in this process, for tests of clients: nothing of `ottla server` as a process is in question there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ottla.testing import Kafka, kafka

OPTIONS = {
    "offsets.topic.num.partitions": "50",
    "transaction.state.log.num.partitions": "50",
    "log.segment.delete.delay.ms": "60000",
    "max.incremental.fetch.session.cache.slots": "1000",
}
"""As of a server: some tests depend on the first, and some show the others."""


@dataclass(frozen=True, slots=True)
class KitBroker:
    """What such tests use of a broker."""

    bootstrap: str

    @property
    def port(self) -> int:
        """The port."""
        return int(self.bootstrap.rpartition(":")[2])

    @property
    def pid(self) -> int:
        """This process."""
        return os.getpid()


@contextmanager
def running() -> Iterator[KitBroker]:
    """A broker; its log must hold no traceback at the end."""
    with kafka(options=OPTIONS) as k:
        yield KitBroker(k.bootstrap)
    assert_log_is_clean(k)


def assert_log_is_clean(k: Kafka) -> None:
    """No unexpected error was logged."""
    assert "Traceback" not in k.log, k.log
