"""The reader of pushes agrees with OpenTelemetry's own messages, and bounds what a client may cost."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import Histogram, HistogramDataPoint, Metric, Sum

from ottla.broker.client_metrics.otlp import FIELDS_MAX, LeftOut, MalformedMetrics, Point, points
from tests.support.telemetry import CUMULATIVE, counter, gauge, point, pushed

TEXT = st.text(max_size=40)
VALUES = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False))


def read(data: bytes) -> list[Point | LeftOut]:
    return [found for found in points(data) if found is not None]


def test_gauges_and_sums_are_read_with_their_attributes() -> None:
    data = pushed(
        gauge("latency", point(1.5, {"topic": "t", "partition": 3, "ratio": 0.5, "own": True})),
        gauge("latency", point(-7)),
        counter("sent", point(4, {"topic": "u"}), point(5)),
        counter("all", point(9), temporality=CUMULATIVE),
        Metric(name="open", sum=Sum(data_points=[point(2)], aggregation_temporality=CUMULATIVE)),
    )
    assert read(data) == [
        Point("latency", "own=true,partition=3,ratio=0.5,topic=t", 1.5, is_counter=False, is_delta=False),
        Point("latency", "", -7, is_counter=False, is_delta=False),
        Point("sent", "topic=u", 4, is_counter=True, is_delta=True),
        Point("sent", "", 5, is_counter=True, is_delta=True),
        Point("all", "", 9, is_counter=True, is_delta=False),
        Point("open", "", 2, is_counter=False, is_delta=False),
    ]


@given(st.lists(st.tuples(TEXT.filter(bool), VALUES, st.dictionaries(TEXT.filter(bool), TEXT, max_size=3))))
def test_what_opentelemetry_writes_is_read(wanted: list[tuple[str, float, dict[str, str]]]) -> None:
    data = pushed(*(gauge(name, point(value, attributes)) for name, value, attributes in wanted))
    assert read(data) == [
        Point(name, ",".join(sorted(f"{key}={text}" for key, text in attributes.items())), value, False, False)
        for name, value, attributes in wanted
    ]


@pytest.mark.parametrize(
    "metric",
    [
        Metric(name="h", histogram=Histogram(data_points=[HistogramDataPoint(count=1)])),
        gauge("", point(1)),
        gauge("n" * 201, point(1)),
        gauge("g", point(1, {"k": "v" * 251})),
        gauge("g", point(1, {"k": b"bytes"})),
        gauge("g", point(1, {str(number): number for number in range(17)})),
    ],
    ids=["histogram", "no name", "long name", "long attribute", "bytes", "many attributes"],
)
def test_what_cannot_be_shown_is_left_out(metric: Metric) -> None:
    assert read(pushed(metric)) == [LeftOut()]


def test_a_value_that_is_no_number_is_read() -> None:
    (found,) = read(pushed(gauge("g", point(math.nan))))
    assert isinstance(found, Point) and math.isnan(found.value)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        read(data)
    except MalformedMetrics:
        pass


@given(st.data())
def test_a_push_that_was_changed_or_cut_is_read_or_refused(data: st.DataObject) -> None:
    whole = pushed(gauge("latency", point(1.5, {"topic": "t"})), counter("sent", point(4)))
    changed = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if changed:
            changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        read(bytes(changed))
    except MalformedMetrics:
        pass


@pytest.mark.parametrize(
    "data",
    [b"\x0b", b"\x0a\x05", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x00\x00", b"\x09\x00"],
    ids=["a group", "beyond the end", "an endless number", "field 0", "half a number"],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMetrics):
        read(data)


def test_a_push_of_more_fields_than_any_client_has_is_refused() -> None:
    assert read(b"\x10\x00" * FIELDS_MAX) == []
    with pytest.raises(MalformedMetrics):
        read(b"\x10\x00" * (FIELDS_MAX + 1))


def test_a_data_point_of_many_fields_is_refused_before_they_are_all_read() -> None:
    inner = pushed(gauge("g", point(1)))
    found = points(inner)
    assert len(list(found)) < 10
    with pytest.raises(MalformedMetrics):
        read(pushed(gauge("g", point(1, {str(number): number for number in range(80)}))))
