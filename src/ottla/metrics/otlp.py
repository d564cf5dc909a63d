"""Pushes the metrics of a broker by OTLP over HTTP: the same samples that a scrape gets, at an interval.

The broker is read on its loop; parsing, encoding and sending happen in a thread. The only module that imports
OpenTelemetry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import Metric as ParsedFamily
from prometheus_client.parser import text_string_to_metric_families

from ottla.broker.http_config import MetricsConfig
from ottla.core.clock import Clock
from ottla.metrics.page import COUNTER, HISTOGRAM
from ottla.metrics.reader import MetricsReader

log = logging.getLogger(__name__)

_TIMEOUT_S = 10
_NS = 1_000_000


class OtlpPush:
    """Pushes while the broker runs. Lives on the broker's loop."""

    def __init__(self, reader: MetricsReader, config: MetricsConfig, clock: Clock, *, node_id: int) -> None:
        self._reader, self._clock = reader, clock
        self._interval_s = config.otlp_interval_ms / 1000
        self._exporter = OTLPMetricExporter(endpoint=config.otlp_endpoint, timeout=_TIMEOUT_S)
        self._resource = Resource({"service.name": "ottla", "service.instance.id": str(node_id)})
        self._started_ns = clock.wall_ms() * _NS
        self._is_failing = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name="push metrics")

    async def close(self) -> None:
        """End the pushes."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self._exporter.shutdown)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.push()
            except Exception:
                log.exception("unexpected error while metrics were pushed; the next push follows")

    async def push(self) -> bool:
        """Push once; return whether the collector took it."""
        scrape = await self._reader.scrape("")
        is_taken = await asyncio.to_thread(self._send, await scrape.text(), self._clock.wall_ms() * _NS)
        if not is_taken and not self._is_failing:  # one line, however long it takes
            log.warning("the metrics could not be pushed by OTLP; it is tried again each %g s", self._interval_s)
        self._is_failing = not is_taken
        return is_taken

    def _send(self, text: str, now_ns: int) -> bool:
        metrics = [
            metric
            for parsed in text_string_to_metric_families(text)
            for metric in metrics_of(parsed, self._started_ns, now_ns)
        ]
        scope = ScopeMetrics(InstrumentationScope("ottla"), metrics, "")
        data = MetricsData([ResourceMetrics(self._resource, [scope], "")])
        return self._exporter.export(data) is MetricExportResult.SUCCESS


def metrics_of(parsed: ParsedFamily, started_ns: int, now_ns: int) -> Iterable[Metric]:
    """Return a family of Prometheus as metrics of OpenTelemetry: a summary's quantiles are values of a gauge."""
    if parsed.type == HISTOGRAM:
        yield Metric(parsed.name, parsed.documentation, "", _histogram(parsed, started_ns, now_ns))
        return
    is_counter = parsed.type == COUNTER
    by_name: dict[str, list[NumberDataPoint]] = {}
    for sample in parsed.samples:
        point = NumberDataPoint(dict(sample.labels), started_ns, now_ns, sample.value)
        by_name.setdefault(sample.name, []).append(point)
    for name, points in by_name.items():
        if is_counter:
            data: Sum | Gauge = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        else:
            data = Gauge(points)
        yield Metric(name.removesuffix("_total") if is_counter else name, parsed.documentation, "", data)


def _histogram(parsed: ParsedFamily, started_ns: int, now_ns: int) -> Histogram:
    """Return the buckets of each set of labels, not summed up as Prometheus has them."""
    limits: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for sample in parsed.samples:
        labels = dict(sample.labels)
        limit = labels.pop("le", sample.name.rpartition("_")[2])
        limits.setdefault(tuple(sorted(labels.items())), {})[limit] = sample.value
    return Histogram(
        [_data_point(dict(labels), values, started_ns, now_ns) for labels, values in limits.items()],
        AggregationTemporality.CUMULATIVE,
    )


def _data_point(
    labels: Mapping[str, str], values: Mapping[str, float], started_ns: int, now_ns: int
) -> HistogramDataPoint:
    buckets = [(float(limit), count) for limit, count in values.items() if limit not in ("count", "sum")]
    return HistogramDataPoint(
        attributes=labels,
        start_time_unix_nano=started_ns,
        time_unix_nano=now_ns,
        count=int(values["count"]),
        sum=values["sum"],
        bucket_counts=_differences([int(count) for _, count in buckets]),
        explicit_bounds=[limit for limit, _ in buckets[:-1]],
        min=0.0,
        max=0.0,
    )


def _differences(sums: Sequence[int]) -> list[int]:
    return [now - before for now, before in zip(sums, [0, *sums[:-1]], strict=True)]
