"""Runs the HTTP listener of a broker in a thread of its own.

Its loop is not the broker's: parsing, TLS and the rendering of pages hold no client of the broker, and health can be
asked for while the broker's loop is stalled. What needs the broker's state is called on the broker's loop, in slices.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ottla.http.address import HttpAddress
from ottla.http.guard import Guard, own_hosts
from ottla.http.guarded_app import GuardedApp
from ottla.http.server import serve
from ottla.http.web import ASGIApp, BaseRoute, HTTPException, Receive, Scope, Send, Starlette, refuse

_THREADS = 4
_STOP_S = 3.0


class HttpListener:
    """Listens from its creation on; serves between `start` and `stop`.

    `open_routes` are for everybody, such as health. `routes` need the token, if there is one, and to change something
    always. All other paths are those of `console`, which signs its users in by itself.
    """

    def __init__(
        self,
        address: HttpAddress,
        *,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        open_routes: Sequence[BaseRoute] = (),
        routes: Sequence[BaseRoute] = (),
        console: ASGIApp | None = None,
    ) -> None:
        """Take the address. Raises OSError."""
        assert (tls is not None) == address.is_secure
        self._socket = _listen(address)
        self.address = address._replace(port=self._socket.getsockname()[1])
        self._tls = tls
        is_local = address.host in {"127.0.0.1", "::1", "localhost"}
        hosts = own_hosts(self.address.port) if is_local else None
        self._app = _Paths(
            GuardedApp(_router(open_routes), Guard(reading_needs_token=False, hosts=hosts)),
            GuardedApp(_router(routes), Guard(token, reading_needs_token=bool(token), hosts=hosts)),
            open_routes,
            routes,
            console,
        )
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def _run(self) -> None:
        self._loop.set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="http"))
        self._loop.run_until_complete(self._serve())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    async def _serve(self) -> None:
        with self._socket:
            await serve(self._app, self._socket, stop=self._stop, tls=self._tls)

    async def stop(self) -> None:
        """End the requests in progress, and the thread. Called on another loop than the listener's."""
        if not self._thread.is_alive():
            self._socket.close()
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join, _STOP_S)


def _listen(address: HttpAddress) -> socket.socket:
    """Return a listening socket. Raises OSError."""
    family, _, _, _, place = socket.getaddrinfo(
        address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return socket.create_server((place[0], place[1]), family=family, reuse_port=False)


def _router(routes: Sequence[BaseRoute]) -> Starlette:
    return Starlette(routes=list(routes), exception_handlers={HTTPException: refuse})


class _Paths:
    """Gives a request to those whose path it has."""

    def __init__(
        self,
        everybody: ASGIApp,
        guarded: ASGIApp,
        open_routes: Sequence[BaseRoute],
        routes: Sequence[BaseRoute],
        console: ASGIApp | None,
    ) -> None:
        self._everybody, self._guarded, self._console = everybody, guarded, console
        self._open_routes, self._routes = list(open_routes), list(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or open and close the console's connections."""
        if scope["type"] == "lifespan":
            if self._console is not None:
                await self._console(scope, receive, send)
            return
        app = self._guarded if self._console is None or _has(self._routes, scope) else self._console
        await (self._everybody if _has(self._open_routes, scope) else app)(scope, receive, send)


def _has(routes: Sequence[BaseRoute], scope: Scope) -> bool:
    """Return whether one of the routes has the path, whatever the method."""
    return any(bool(route.matches(scope)[0].value) for route in routes)
