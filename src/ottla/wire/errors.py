"""Defines the errors of messages on the wire."""

from __future__ import annotations


class MalformedRequest(ValueError):
    """The bytes are no message of the API and version they claim. The stream cannot be trusted: close it."""


class LongRequest(Exception):
    """A Produce or Fetch request has so many elements that it must be served in slices."""


class AnswerTooLarge(ValueError):
    """The answer to a request is larger than clients read. Close the connection; there is no shorter answer."""
