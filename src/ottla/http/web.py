"""Names what applications use of Starlette, and makes responses that are the same everywhere."""

from __future__ import annotations

import json

from starlette.applications import Starlette
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ottla.http.problems import (
    BAD_REQUEST,
    FORBIDDEN,
    INTERNAL,
    NOT_FOUND,
    PROBLEM_TYPE,
    TITLES,
    TOO_LARGE,
    UNAUTHORIZED,
    UNAVAILABLE,
    problem_content,
)


def json_response(content: object, status: int = 200, media_type: str = "application/json") -> Response:
    """Return a response of JSON."""
    return Response(json.dumps(content), status, media_type=media_type)


def problem(status: int, detail: str) -> Response:
    """Return a refusal (RFC 9457)."""
    return json_response(problem_content(status, detail), status, PROBLEM_TYPE)


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
