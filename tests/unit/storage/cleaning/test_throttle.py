"""The rate that a cleaning keeps to."""

from __future__ import annotations

import pytest

from ottla.storage.cleaning.throttler import Throttler
from tests.support.storage import StillClock


def test_reads_and_writes_keep_to_the_rate() -> None:
    clock = StillClock()
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock.now_ms += round(seconds * 1000)

    throttle = Throttler(1000, clock=clock, sleep=sleep)
    began = clock.monotonic()
    for _ in range(20):
        throttle.passed(500)
    assert clock.monotonic() - began == pytest.approx(10, abs=0.1)
    clock.now_ms += 60_000  # a pause gives no credit but for a second
    began = clock.monotonic()
    for _ in range(10):
        throttle.passed(500)
    assert clock.monotonic() - began == pytest.approx(4, abs=0.1)
