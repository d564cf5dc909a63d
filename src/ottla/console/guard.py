"""Lets requests pass that are for this host and small, and adds the headers that restrict what a page may do.

A page loads nothing from elsewhere and runs no script of its own text, so that a record's content cannot become one.
"""

from __future__ import annotations

from typing import Final

from ottla.http.web import ASGIApp, Message, PlainTextResponse, Receive, Scope, Send

BODY_BYTES_MAX: Final = 2 << 20
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_STATIC: Final = "/static/"


class Guard:
    """The outermost part of the application."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope.get("headers", ()))
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        length = headers.get(b"content-length", b"0")
        if self._hosts is not None and name not in self._hosts:
            refused = PlainTextResponse("the header Host names another host than this console\n", 403)
            await refused(scope, receive, send)
        elif not length.isdigit() or int(length) > BODY_BYTES_MAX or b"transfer-encoding" in headers:
            await PlainTextResponse("the body is too large, or of an unknown length\n", 413)(scope, receive, send)
        else:
            await self._app(scope, receive, _with_headers(send, is_static=_STATIC in scope["path"]))


def _with_headers(send: Send, *, is_static: bool) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            caching = b"public, max-age=86400" if is_static else b"no-store"
            own = {name for name, _ in message.get("headers", ())}
            added = [(name, value) for name, value in _HEADERS if name not in own]  # a report has a policy of its own
            message["headers"] = [*message.get("headers", ()), *added, (b"cache-control", caching)]
        await send(message)

    return with_headers
