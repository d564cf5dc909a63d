"""Makes what clients push of their metrics, with OpenTelemetry's own messages."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)

DELTA = AggregationTemporality.AGGREGATION_TEMPORALITY_DELTA
CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE


def point(value: float, attributes: Mapping[str, object] | None = None) -> NumberDataPoint:
    """Return a number; an int stays one."""
    named = [KeyValue(key=name, value=any_value(each)) for name, each in (attributes or {}).items()]
    if isinstance(value, int):
        return NumberDataPoint(as_int=value, attributes=named, time_unix_nano=1)
    return NumberDataPoint(as_double=value, attributes=named, time_unix_nano=1)


def any_value(value: object) -> AnyValue:
    """Return the value of an attribute."""
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case bytes():
            return AnyValue(bytes_value=value)
        case _:
            return AnyValue(string_value=str(value))


def gauge(name: str, *points: NumberDataPoint) -> Metric:
    """Return a metric that has a last value."""
    return Metric(name=name, description="d", unit="ms", gauge=Gauge(data_points=points))


def counter(name: str, *points: NumberDataPoint, temporality: AggregationTemporality.ValueType = DELTA) -> Metric:
    """Return a metric that only grows."""
    return Metric(name=name, sum=Sum(data_points=points, aggregation_temporality=temporality, is_monotonic=True))


def pushed(*metrics: Metric) -> bytes:
    """Return the body of a push."""
    scope = ScopeMetrics(metrics=metrics)
    data: bytes = MetricsData(resource_metrics=[ResourceMetrics(scope_metrics=[scope])]).SerializeToString()
    return data
