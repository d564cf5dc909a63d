"""Lets an application have the requests that a guard allows."""

from __future__ import annotations

from ottla.http.guard import Guard
from ottla.http.problems import UNAUTHORIZED
from ottla.http.web import ASGIApp, Receive, Scope, Send, problem


class GuardedApp:
    """An application with a guard."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app, self._guard = app, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve or refuse one request."""
        if scope["type"] != "http":
            return
        refusal = self._guard.refusal(scope["method"], dict(scope.get("headers", ())))
        if refusal is None:
            await self._app(scope, receive, send)
            return
        status, detail = refusal
        response = problem(status, detail)
        if status == UNAUTHORIZED:
            response.headers["WWW-Authenticate"] = "Bearer"
        await response(scope, receive, send)
