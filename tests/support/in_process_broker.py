"""Runs a real broker in this process; requests go straight to its handlers, without a socket."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from ottla.broker import config
from ottla.broker.broker import Broker
from ottla.broker.context import RequestContext, Services
from ottla.core.clock import SystemClock
from ottla.core.files import SystemFiles

OPTIONS = {"listeners": "PLAINTEXT://127.0.0.1:0", "node.id": "1"}


class InProcessBroker:
    """A running broker whose handlers are called as the dispatcher calls them."""

    def __init__(self, services: Services) -> None:
        self.services = services

    async def call(self, module: str, version: int, request: Any) -> Any:
        context = RequestContext(
            self.services,
            api_version=version,
            client_id="test",
            client_host="127.0.0.1",
            listener="PLAINTEXT",
            connection_id=1,
            state={},
        )
        answer = importlib.import_module(f"ottla.broker.handlers.{module}").handle(context, request)
        return await answer if inspect.isawaitable(answer) else answer


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
