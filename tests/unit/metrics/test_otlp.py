"""Metrics are pushed by OTLP to a collector that reads them with OpenTelemetry's own messages."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ottla.broker.config import read
from ottla.core.clock import SystemClock
from ottla.metrics.otlp import OtlpPush
from ottla.metrics.reader import MetricsReader
from ottla.metrics.request_times import RequestTimes
from ottla.testing.cluster import TestCluster


class Collector(HTTPServer):
    """Keeps what is pushed to it."""

    def __init__(self) -> None:
        self.requests: list[ExportMetricsServiceRequest] = []
        self.status = 200
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Collector)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        server.requests.append(ExportMetricsServiceRequest.FromString(body))
        self.send_response(server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.brokers(1)
async def test_counters_gauges_and_histograms_are_pushed(cluster: TestCluster, collector: Collector) -> None:
    await cluster.create_topic("orders", 2)
    reader = MetricsReader(cluster.brokers[1], RequestTimes(cluster.clock.monotonic))
    url = f"http://127.0.0.1:{collector.server_port}/v1/metrics"
    config, _ = read(file=None, environment={}, options={"ottla.metrics.otlp.endpoint": url})
    push = OtlpPush(reader, config.metrics, SystemClock(), node_id=1)
    try:
        assert await push.push()
        collector.status = 400
        assert not await push.push()
    finally:
        await push.close()
        await reader.close()
    (resource,) = collector.requests[0].resource_metrics
    attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert (attributes["service.name"], attributes["service.instance.id"]) == ("ottla", "1")
    metrics = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    assert len(metrics["kafka_log_log_size"].gauge.data_points) == 2
    shrinks = metrics["kafka_server_replicamanager_isrshrinks"].sum
    assert shrinks.is_monotonic and shrinks.data_points[0].as_double == 0
    (delay,) = metrics["ottla_loop_delay_seconds"].histogram.data_points
    assert sum(delay.bucket_counts) == delay.count
    assert len(delay.bucket_counts) == len(delay.explicit_bounds) + 1
