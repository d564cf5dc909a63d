"""Ends a request that has no response: its connection is closed, and the log has the reason."""

from __future__ import annotations

import logging

from ottla.net.connection import PendingResponse
from ottla.wire.errors import AnswerTooLarge, MalformedRequest

log = logging.getLogger(__name__)


def close_without_response(response: PendingResponse, error: Exception) -> None:
    """Log the client's error, or with its traceback an unexpected one (a bug of ours); close the connection."""
    if isinstance(error, MalformedRequest | AnswerTooLarge):
        response.refuse(error)
    else:
        log.error("unexpected error while serving a request from %s", response.connection.host, exc_info=error)
        response.abandon()
