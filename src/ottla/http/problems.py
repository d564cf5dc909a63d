"""Describes why an HTTP request is refused (RFC 9457), for any server."""

from __future__ import annotations

from collections.abc import Mapping

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, TOO_LARGE, INTERNAL, UNAVAILABLE = 400, 401, 403, 404, 413, 500, 503
METHOD_NOT_ALLOWED = 405
PROBLEM_TYPE = "application/problem+json"

TITLES: Mapping[int, str] = {
    BAD_REQUEST: "the request cannot be carried out",
    UNAUTHORIZED: "the token is missing or wrong",
    FORBIDDEN: "the request is refused",
    NOT_FOUND: "there is no such thing",
    METHOD_NOT_ALLOWED: "the path has another method",
    TOO_LARGE: "the body is too large",
    INTERNAL: "the operation failed",
    UNAVAILABLE: "the broker cannot serve this now",
}


def problem_content(status: int, detail: str) -> dict[str, str | int]:
    """Return the content of a refusal."""
    return {"title": TITLES.get(status, "the request is refused"), "status": status, "detail": detail}
