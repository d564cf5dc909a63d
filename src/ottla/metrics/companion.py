"""Serves metrics and health beside a broker in its process, where the settings ask for it.

The HTTP listener has a thread of its own. It serves health while the broker starts, and notices a loop that stalls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.broker.broker import Broker
from ottla.broker.config import BrokerConfig
from ottla.broker.http_endpoint import http_address, http_tls
from ottla.broker.requests.stages import Accounting
from ottla.core.clock import SystemClock
from ottla.http.listener import HttpListener
from ottla.http.web import (
    BAD_REQUEST,
    UNAVAILABLE,
    ASGIApp,
    BaseRoute,
    Request,
    Response,
    Route,
    StreamingResponse,
    json_response,
    problem,
)
from ottla.metrics.collectors import client_metrics
from ottla.metrics.health import Health, liveness, readiness
from ottla.metrics.reader import MetricsReader, Scrape
from ottla.metrics.request_times import RequestTimes

if TYPE_CHECKING:  # imported where it is asked for
    from ottla.metrics.otlp import OtlpPush

log = logging.getLogger(__name__)
T = TypeVar("T")

LOOP_SILENT_MAX_S = 10.0
"""A loop that has not turned for so long will not: the broker is not alive any more."""

_READY_WITHIN_S = 2.0
_EVENTS = 1_000
"""So many events at a time, the newest, unless a request says otherwise."""
_SCRAPE_WITHIN_S = 30.0


class BrokerCompanion:
    """Implements `Companion` (broker/process/companion.py)."""

    def __init__(self, config: BrokerConfig, console: ASGIApp | None = None) -> None:
        """Begin nothing. `console` serves the paths that are none of the broker's own."""
        self._times = RequestTimes(SystemClock().monotonic)
        self.accounting: Accounting | None = self._times
        self._reader: MetricsReader | None = None
        self._push: OtlpPush | None = None
        self._config = config
        self._broker: Broker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: HttpListener | None = None
        self._console = console
        self.url = ""

    def start(self, broker: Broker) -> None:
        """Listen, and serve health from now on. Raises OSError and InvalidSettings."""
        self._broker, self._loop = broker, asyncio.get_running_loop()
        self._reader = MetricsReader(broker, self._times)
        self._reader.start()
        if self._config.metrics.otlp_endpoint:
            from ottla.metrics.otlp import OtlpPush

            self._push = OtlpPush(
                self._reader, self._config.metrics, SystemClock(), node_id=self._config.server.node_id
            )
        address = http_address(self._config)
        if address is None:
            return
        self._listener = HttpListener(
            address,
            token=self._config.http.token,
            tls=http_tls(self._config, address),
            open_routes=self._health_routes(),
            routes=[
                Route("/metrics", self._metrics),
                Route("/events", self._events),
                Route("/client-metrics", self._client_metrics),
            ],
            console=self._console,
        )
        self.url = self._listener.address.url
        self._listener.start()
        log.info("metrics and health are served at %s", self.url)

    async def stop(self) -> None:
        """End the listener."""
        if self._listener is not None:
            await self._listener.stop()
        if self._push is not None:
            await self._push.close()
        if self._reader is not None:
            await self._reader.close()

    # ---- Metrics

    async def _metrics(self, request: Request) -> Response:
        """Read the broker on its loop; send what it has in pieces from here."""
        reader = self._reader
        assert reader is not None, "it is made before the listener"
        try:
            scrape = await self.on_broker_loop(
                lambda: reader.scrape(request.headers.get("accept", "")), within_s=_SCRAPE_WITHIN_S
            )
        except TimeoutError:
            return problem(UNAVAILABLE, f"the broker was not read within {_SCRAPE_WITHIN_S:g} s")
        return StreamingResponse(self._pieces(scrape), media_type=scrape.content_type)

    async def _pieces(self, scrape: Scrape) -> AsyncIterator[bytes]:
        """Fetch a page from the broker's loop as fast as the client reads it."""
        while piece := await self.on_broker_loop(scrape.next_piece, within_s=_SCRAPE_WITHIN_S):
            yield piece

    # ---- Events

    async def _events(self, request: Request) -> Response:
        """Return the events that the broker has in memory: of these kinds, since a time, after a number."""
        query = request.query_params
        try:
            since_ms, after, limit = (
                int(query.get(name, default)) for name, default in (("since", 0), ("after", 0), ("limit", _EVENTS))
            )
        except ValueError:
            return problem(BAD_REQUEST, "since is in milliseconds; after and limit are whole numbers")

        async def read() -> str | None:
            services = None if self._broker is None else self._broker.services
            if services is None or services.events is None:
                return None
            return services.events.json(
                kinds=query.getlist("kind"), since_ms=since_ms, after=after, limit=max(limit, 1)
            )

        try:
            body = await self.on_broker_loop(read, within_s=_READY_WITHIN_S)
        except TimeoutError:
            body = None
        if body is None:
            return problem(UNAVAILABLE, "the broker has no events yet, or its event loop does not turn")
        return Response(body, media_type="application/json")

    async def _client_metrics(self, request: Request) -> Response:
        """Return what the clients with an id have pushed of their own metrics."""
        client_id = request.query_params.get("client_id", "")

        async def read() -> dict[str, object] | None:
            services = None if self._broker is None else self._broker.services
            return None if services is None else await client_metrics.describe(services, client_id)

        try:
            described = await self.on_broker_loop(read, within_s=_SCRAPE_WITHIN_S)
        except TimeoutError:
            described = None
        if described is None:
            return problem(UNAVAILABLE, "the broker starts, or its event loop does not turn")
        return json_response(described)

    # ---- Health

    def _health_routes(self) -> Sequence[BaseRoute]:
        def respond(what: str, health: Health) -> Response:
            status = 200 if health.is_good else UNAVAILABLE
            return json_response({what: health.is_good, "reasons": list(health.reasons)}, status)

        async def live(_: Request) -> Response:
            silent_s = await self._loop_delay_s(LOOP_SILENT_MAX_S)
            return respond("live", liveness(silent_s, LOOP_SILENT_MAX_S))

        async def ready(_: Request) -> Response:
            try:
                health = await self.on_broker_loop(self._readiness, within_s=_READY_WITHIN_S)
            except TimeoutError:
                health = Health((f"the event loop has not turned for {_READY_WITHIN_S:g} s",))
            return respond("ready", health)

        return [Route("/livez", live), Route("/readyz", ready)]

    async def _readiness(self) -> Health:
        assert self._broker is not None
        return readiness(self._broker)

    async def _loop_delay_s(self, limit_s: float) -> float:
        """Return how long the broker's loop took to turn; more than the limit if it did not."""
        clock = asyncio.get_running_loop().time
        asked_at = clock()
        try:
            await self.on_broker_loop(_nothing, within_s=limit_s)
        except TimeoutError:
            return limit_s + 1
        return clock() - asked_at

    async def on_broker_loop(self, work: Callable[[], Coroutine[Any, Any, T]], *, within_s: float) -> T:
        """Run a coroutine on the broker's loop, from the listener's. Raises TimeoutError."""
        assert self._loop is not None
        running = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), self._loop))
        return await asyncio.wait_for(running, within_s)


async def _nothing() -> None:
    """Turn the loop."""
