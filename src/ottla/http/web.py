"""Names what applications use of Starlette, and makes responses that are the same everywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.applications import Starlette
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, TOO_LARGE, INTERNAL, UNAVAILABLE = 400, 401, 403, 404, 413, 500, 503

TITLES: Mapping[int, str] = {
    BAD_REQUEST: "the request cannot be carried out",
    UNAUTHORIZED: "the token is missing or wrong",
    FORBIDDEN: "the request is refused",
    NOT_FOUND: "there is no such thing",
    405: "the path has another method",
    TOO_LARGE: "the body is too large",
    INTERNAL: "the operation failed",
    UNAVAILABLE: "the broker cannot serve this now",
}


def json_response(content: object, status: int = 200, media_type: str = "application/json") -> Response:
    """Return a response of JSON."""
    return Response(json.dumps(content), status, media_type=media_type)


def problem(status: int, detail: str) -> Response:
    """Return a refusal (RFC 9457)."""
    content = {"title": TITLES.get(status, "the request is refused"), "status": status, "detail": detail}
    return json_response(content, status, "application/problem+json")


async def refuse(_: Request, error: Exception) -> Response:
    """Answer what a router refuses: an unknown path, or another method."""
    assert isinstance(error, HTTPException)
    return problem(error.status_code, error.detail)


__all__ = [
    "BAD_REQUEST",
    "FORBIDDEN",
    "INTERNAL",
    "NOT_FOUND",
    "TITLES",
    "TOO_LARGE",
    "UNAUTHORIZED",
    "UNAVAILABLE",
    "ASGIApp",
    "BaseRoute",
    "FormData",
    "HTMLResponse",
    "HTTPException",
    "Message",
    "Mount",
    "PlainTextResponse",
    "Receive",
    "RedirectResponse",
    "Request",
    "Response",
    "Route",
    "Scope",
    "Send",
    "Starlette",
    "StaticFiles",
    "StreamingResponse",
    "json_response",
    "problem",
    "refuse",
]
