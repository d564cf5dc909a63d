"""Runs a real broker in this process; requests go straight to its handlers, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from ottla.broker import config
from ottla.broker.broker import Broker
from ottla.broker.context import Services
from ottla.core.clock import SystemClock
from ottla.core.files import SystemFiles
from tests.support.requests import answer_to, connection_without_socket, request_to

OPTIONS = {"listeners": "PLAINTEXT://127.0.0.1:0", "node.id": "1"}


class InProcessBroker:
    """A running broker whose handlers are called as the driver calls them."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.connection = connection_without_socket()

    async def call(self, module: str, version: int, request: Any) -> Any:
        return await answer_to(request_to(self.services, version, connection=self.connection), module, request)


def with_broker(
    path: Path,
    scenario: Callable[[InProcessBroker], Awaitable[Any]],
    *,
    options: dict[str, str] | None = None,
    more_paths: Sequence[Path] = (),
) -> Any:
    """Start a broker on `path` and other log directories, run the scenario, stop the broker."""

    async def run() -> Any:
        given, _ = config.read(file=None, environment={}, options={**OPTIONS, **(options or {})})
        broker = Broker(given, [path, *more_paths], clock=SystemClock(), files=SystemFiles())
        try:
            await broker.start()
            services = broker._services
            assert services is not None
            return await asyncio.wait_for(scenario(InProcessBroker(services)), 30)
        finally:
            await broker.stop()

    return asyncio.run(run())
