"""Where a share group begins: which texts Kafka takes for `share.auto.offset.reset`."""

from __future__ import annotations

import pytest

from ottla.share_partitions.offset_reset import check_reset, duration_ms


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("P2D", 172_800_000),
        ("PT1H2M3S", 3_723_000),
        ("pt0s", 0),
        ("+PT1S", 1_000),
        ("P1DT-1H", 82_800_000),
        ("-PT-1M", 60_000),
        ("PT1,25S", 1_250),
        ("PT2.S", 2_000),
        ("PT1S", 1_000),
        ("PT1M-0.5S", 59_500),
        ("PT0.000000001S", 0),
    ],
)
def test_a_duration_is_read_as_java_reads_it(text: str, expected_ms: int) -> None:
    assert duration_ms(text) == expected_ms
    check_reset(f"by_duration:{text}")


@pytest.mark.parametrize(
    "strategy",
    [
        "",
        "none",
        "Earliest",
        "LATEST",
        " latest",
        "by_duration",
        "by_duration:",
        "By_Duration:PT1H",
        "by_duration:nonsense",
        "by_duration:1h",
        "by_duration:P",
        "by_duration:PT",
        "by_duration:P1DT",
        "by_duration:P1W",
        "by_duration:P1M",
        "by_duration:-PT1S",
        "by_duration:PT-0.5S",
        "by_duration: PT1S",
        "by_duration:PT1.5H",
        "by_duration:PT1S1M",
        "by_duration:P999999999999999999D",
        "by_duration:PT1\u017f",
        "by_duration:PT\u0661S",
    ],
)
def test_a_strategy_that_kafka_refuses_is_refused(strategy: str) -> None:
    with pytest.raises(ValueError, match=r"must be|duration such as|too long"):
        check_reset(strategy)
