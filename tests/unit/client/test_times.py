"""Durations and times as people type them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.times import parse_time_ms
from ottla.core.quantities import parse_duration_ms


@given(st.integers(0, 10**6), st.sampled_from(["ms", "s", "m", "h", "d", "w"]))
def test_a_duration_is_its_number_times_its_unit(number: int, unit: str) -> None:
    each = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}[unit]
    assert parse_duration_ms(f"{number}{unit}") == number * each


def test_a_time_without_a_utc_offset_is_utc_in_any_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert parse_time_ms("2015-05-17T10:00") == 1431856800000
    finally:
        monkeypatch.undo()
        time.tzset()
