"""What a peer can do wrong on the wire."""

from __future__ import annotations


class MalformedRequest(ValueError):
    """The bytes are no message of the API and version they claim. The stream cannot be trusted: close it."""
