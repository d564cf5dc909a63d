"""Reads a broker at each scrape, on its loop and in slices, and formats what it has read as it is sent.

One scrape runs at a time. What the process itself uses (memory, processor, descriptors, the garbage collector) comes
from prometheus_client's own collectors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from ottla.broker.broker import Broker
from ottla.broker.event_config import SLOW_REQUEST
from ottla.broker.requests.slow_requests import SlowRequestLog
from ottla.limits.loop_slices import LoopSlices
from ottla.metrics.collectors import client_metrics, cluster, groups, node, partitions, probe, requests
from ottla.metrics.lag import GroupLags
from ottla.metrics.loop_watch import LoopWatch
from ottla.metrics.page import GAUGE, Page, family
from ottla.metrics.probe import Probe
from ottla.metrics.reading import Collector, Reading
from ottla.metrics.request_times import RequestTimes
from ottla.metrics.traffic import Traffic

COLLECTORS: Final[Sequence[Collector]] = (
    partitions.collect,
    requests.collect,
    groups.collect,
    cluster.collect,
    node.collect,
    probe.collect,
    client_metrics.collect,
)
"""In this order: partitions count the traffic of topics."""

SCRAPE_SECONDS = family("ottla_scrape_seconds", GAUGE, "Seconds that it took to read this page", group="Broker")
SCRAPE_SAMPLES = family("ottla_scrape_samples", GAUGE, "Samples of this page, besides this one", group="Broker")
_START_POLL_S = 0.2
_EOF = b"# EOF\n"
_CHARS_OF_UNIT = 2_000  # that are formatted in a unit of work


class Scrape:
    """Holds what one scrape has read, and formats it as it is sent: numbers take a fifth of the memory of their text.

    Lives on the broker's loop.
    """

    def __init__(self, content_type: str, pieces: Iterator[bytes], slices: LoopSlices | None) -> None:
        self.content_type = content_type
        self._pieces, self._slices = pieces, slices

    async def next_piece(self) -> bytes:
        """Return some more of the page; nothing at its end."""
        piece = next(self._pieces, b"")
        if self._slices is not None and self._slices.spend(1 + len(piece) // _CHARS_OF_UNIT):
            await self._slices.yield_to_loop()
        return piece

    async def text(self) -> str:
        """Return the whole page."""
        pieces = []
        while piece := await self.next_piece():
            pieces.append(piece)
        return b"".join(pieces).decode()


class MetricsReader:
    """Lives on the broker's loop."""

    def __init__(self, broker: Broker, times: RequestTimes) -> None:
        self._broker, self._times = broker, times
        self._traffic, self.loop_watch = Traffic(), LoopWatch()
        self._lags: GroupLags | None = None
        self.probe: Probe | None = None
        self._starting: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._process = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._process)

    def start(self) -> None:
        """Begin to measure the loop, and the rest once the broker serves."""
        self.loop_watch.start()
        self._starting = asyncio.get_running_loop().create_task(self._start_probe(), name="start the probe")

    async def _start_probe(self) -> None:
        while not self._broker.is_serving:  # noqa: ASYNC110 - a start takes long, and it may fail
            await asyncio.sleep(_START_POLL_S)
        services = self._broker.services
        assert services is not None, "it serves"
        slow_ms = services.config.events.slow_request_ms
        if slow_ms >= 0 and SLOW_REQUEST not in services.config.given and services.events is not None:
            self._times.slow = SlowRequestLog(services.clock, services.events, slow_s=slow_ms / 1000)
        for commit in services.replicas.group_commits.values():
            node.measure_flushes(commit)
        if services.config.metrics.probe_interval_ms:
            self.probe = Probe(services, services.config.metrics)

    async def close(self) -> None:
        """End what goes on between scrapes."""
        self.loop_watch.stop()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if self.probe is not None:
            await self.probe.close()
        if self._lags is not None:
            await self._lags.close()

    async def scrape(self, accept: str) -> Scrape:
        """Return everything in the format that the client accepts: OpenMetrics, or Prometheus text."""
        encoder, content_type = choose_encoder(accept)
        is_openmetrics = encoder is not generate_latest and "openmetrics" in content_type
        page = await self.read()
        slices = None if self._broker.services is None else self._broker.services.slices
        return Scrape(content_type, self._pieces(page, is_openmetrics=is_openmetrics), slices)

    def _pieces(self, page: Page, *, is_openmetrics: bool) -> Iterator[bytes]:
        yield from page.pieces(is_openmetrics=is_openmetrics)
        process: bytes = (generate_openmetrics if is_openmetrics else generate_latest)(self._process)
        yield process.removesuffix(_EOF) + (_EOF if is_openmetrics else b"")

    async def read(self) -> Page:
        """Return what all collectors read. A broker that starts has nothing yet."""
        page = Page()
        services = self._broker.services
        if services is None or not self._broker.is_serving:
            return page
        async with self._turn:
            loop = asyncio.get_running_loop()
            began = loop.time()
            if self._lags is None:
                self._lags = GroupLags(services)
            view = services.cluster.current
            await self._lags.read(view)
            reading = Reading(
                self._broker, services, view, self._times, self._traffic, self.loop_watch, self._lags, self.probe
            )
            for collect in COLLECTORS:
                for _ in collect(reading, page):
                    await services.slices.yield_to_loop()
            samples = page.samples
            page.add(SCRAPE_SECONDS, loop.time() - began)
            page.add(SCRAPE_SAMPLES, samples)
        return page
