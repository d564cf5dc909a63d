"""Serves an application at a listening socket: the only module that imports uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator

import uvicorn

from ottla.http.web import ASGIApp

_CONNECTIONS_MAX = 100
_END_S = 1
logging.getLogger("uvicorn").setLevel(logging.WARNING)  # it logs each start and stop


async def serve(
    app: ASGIApp, listener: socket.socket, *, stop: asyncio.Event, tls: ssl.SSLContext | None = None
) -> None:
    """Serve requests until `stop` is set."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="auto",  # of an application that has connections to open and close
        http="h11",
        ws="none",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_CONNECTIONS_MAX,
        timeout_graceful_shutdown=_END_S,
    )
    config.load()
    config.ssl = tls
    server = _Server(config)
    serving = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))
    stopping = asyncio.get_running_loop().create_task(stop.wait())
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stopping.cancel()
    await serving


class _Server(uvicorn.Server):
    """A server that leaves the signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Change no handler."""
        yield
