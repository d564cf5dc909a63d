"""Asks brokers of Ottla over HTTP: where their listener is, by its setting, and one request."""

from __future__ import annotations

import json
import ssl
import urllib.parse
import urllib.request
from typing import Any

LISTENER = "ottla.http.listener"
TOKEN_VARIABLE = "OTTLA_HTTP_TOKEN"  # noqa: S105 - the name of a variable
"""The variable with the token of the brokers' listeners for HTTP, if they have one."""
_ANSWER_S = 5.0
_BYTES_MAX = 32 << 20
_ANY = {"", "0.0.0.0", "::", "*"}  # noqa: S104 - addresses that a listener may have, none is bound here


def url_of(listener: str, host: str, path: str) -> str:
    """Return the address of a page, by the listener's setting; one for all addresses is that of the broker.

    >>> url_of("0.0.0.0:8080", "kafka-1", "/events"), url_of("https://127.0.0.1:8443", "kafka-1", "/metrics")
    ('http://kafka-1:8080/events', 'https://127.0.0.1:8443/metrics')
    """
    parts = urllib.parse.urlsplit(listener if "://" in listener else f"http://{listener}")
    shown = host if (parts.hostname or "") in _ANY else parts.hostname or host
    return f"{parts.scheme}://{f'[{shown}]' if ':' in shown else shown}:{parts.port}{path}"


def get(url: str, token: str, *, timeout_s: float = _ANSWER_S) -> bytes:
    """Read a page: blocks. Raises OSError and ValueError."""
    request = urllib.request.Request(url)  # noqa: S310 - http or https, see url_of
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    context = ssl.create_default_context() if url.startswith("https") else None
    with urllib.request.urlopen(request, timeout=timeout_s, context=context) as answer:  # noqa: S310
        return bytes(answer.read(_BYTES_MAX))


def get_json(url: str, token: str) -> dict[str, Any]:
    """Read an object: blocks. Raises OSError and ValueError."""
    return dict(json.loads(get(url, token)))
