"""Rates and buckets, with the numbers of Kafka's RateTest, ClientQuotaManagerTest and TokenBucketTest."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ottla.core.rates import SampledRate, TokenBucket


def rate_of(limit: float = 500, *, sample_count: int = 10, window_ms: int = 1000) -> SampledRate:
    return SampledRate(limit, sample_count=sample_count, window_ms=window_ms)


def test_a_burst_of_ten_seconds_waits_for_what_it_is_above_the_limit() -> None:
    """ClientQuotaManagerTest.testQuotaViolation: 400 a second at a limit of 500, then 2,300 at once."""
    rate, now_ms = rate_of(sample_count=11), 0
    for _ in range(10):
        rate.record(400, now_ms)
        assert rate.throttle_ms(now_ms) == 0
        now_ms += 1000
    now_ms += 500
    rate.record(2300, now_ms)  # 10.5 seconds: 600 a second
    assert rate.measured_ms(now_ms) == 10_500
    assert rate.throttle_ms(now_ms) == 2100


def test_a_first_value_counts_over_all_windows_but_one() -> None:
    rate = rate_of(100, sample_count=11)
    rate.record(1000, 5)
    assert (rate.rate(5), rate.throttle_ms(5)) == (100.0, 0)
    rate.record(1, 5)
    assert rate.throttle_ms(5) == 10


def test_a_sample_that_overlaps_the_oldest_window_counts_until_its_last_value_is_too_old() -> None:
    rate = rate_of(sample_count=2)
    for now_ms in (0, 900, 1800, 2700):  # as in RateTest of KAFKA-18656
        rate.record(1, now_ms)
    assert rate.measured_ms(2700) == 2700
    assert rate.rate(2700) == pytest.approx(4 / 2.7)
    assert rate.rate(2899) == pytest.approx(4 / 2.899)
    assert rate.rate(2900) == pytest.approx(2 / 1.1)


def test_a_value_that_is_recorded_again_below_zero_does_not_count() -> None:
    rate = rate_of(10, sample_count=11)
    rate.record(1000, 0)
    assert rate.throttle_ms(0) == 90_000
    rate.record(-1000, 0)
    assert rate.throttle_ms(0) == 0


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 2000)), min_size=20, max_size=60))
def test_a_client_that_waits_stays_near_its_limit(steps: list[tuple[int, int]]) -> None:
    rate, now_ms, total = rate_of(sample_count=11), 0, 0
    for wait_ms, value in steps:
        now_ms += wait_ms
        rate.record(value, now_ms)
        total += value
        now_ms += rate.throttle_ms(now_ms)
    assert total <= 1.1 * 500 * (now_ms / 1000 + 11)


def test_a_bucket_may_be_overdrawn_once_and_fills_again() -> None:
    """The example of Kafka's TokenBucket: 5 a second, 100 windows of a second, a burst of 560."""
    bucket = TokenBucket(5, sample_count=100, window_ms=1000, now_ms=0)
    assert bucket.tokens(0) == 500
    bucket.take(560, 0)
    assert bucket.throttle_ms(0) == 12_000
    assert bucket.throttle_ms(11_999) > 0
    assert bucket.throttle_ms(12_000) == 0
    assert bucket.tokens(1_000_000) == 500
