"""Decides which HTTP requests pass: by their token, and by the host that they name."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Collection
from typing import NamedTuple

from ottla.http.web import FORBIDDEN, UNAUTHORIZED, ASGIApp, Receive, Scope, Send, problem

_READING = {"GET", "HEAD", "OPTIONS"}


class Guard(NamedTuple):
    """Says what a request needs.

    `hosts` are the values of the Host header that pass besides addresses of the family IP; None: any. A page in a
    browser whose name is resolved to 127.0.0.1 sends its own name there, and no token.
    """

    token: str = ""
    reading_needs_token: bool = True  # otherwise only what may change something does
    hosts: Collection[str] | None = None
    allows_addresses: bool = True


class GuardedApp:
    """Lets requests pass that the guard allows. What may change something needs the token always."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app, self._guard = app, guard
        self._expected = f"Bearer {guard.token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse one request."""
        if scope["type"] != "http":
            return
        headers = dict(scope.get("headers", ()))
        guard = self._guard
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if guard.hosts is not None and host not in guard.hosts and not (guard.allows_addresses and is_address(host)):
            await problem(FORBIDDEN, "the Host header names another host than this listener")(scope, receive, send)
            return
        if guard.reading_needs_token or scope["method"] not in _READING:
            if not guard.token:
                detail = "nothing can be changed here without a token: set ottla.http.token"
                await problem(FORBIDDEN, detail)(scope, receive, send)
                return
            if not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
                response = problem(UNAUTHORIZED, "send the header Authorization: Bearer TOKEN")
                response.headers["WWW-Authenticate"] = "Bearer"
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def is_address(host: str) -> bool:
    """Return whether a Host header has an address, not a name, with a port or without.

    >>> is_address("127.0.0.1:9644"), is_address("[::1]"), is_address("evil.example:9644")
    (True, True, False)
    """
    name = host.partition("]")[0].strip("[") if host.startswith("[") else host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def own_hosts(port: int) -> set[str]:
    """Return the values of the Host header by which this machine is meant, besides addresses."""
    names = {"localhost", socket.gethostname().lower()}
    return names | {f"{name}:{port}" for name in names}
