"""File handles (descriptors): how many there are, and who may have how many of them.

Segments are kept open between uses and every connection takes two; were one kind to take all, the other could not work
at all. A segment given up while it is being synced or sent keeps its handle until that is done, so segments are counted
twice. What is left over is for small files that are opened and closed again, the metadata store and the listeners.
"""

from __future__ import annotations

import resource
from typing import NamedTuple

RESERVED = 64
_PER_CONNECTION = 2  # one to read, one to write
_SEGMENTS_MIN = 16
_CONNECTIONS_MIN = 8


class HandleShare(NamedTuple):
    """Who may have how many; None is no limit."""

    segments: int | None
    connections: int | None


UNLIMITED = HandleShare(None, None)


def raise_limit() -> int | None:
    """Take all the handles that this process may have, as the JVM does for Kafka; how many, None for no limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return None if hard == resource.RLIM_INFINITY else hard


def share(limit: int | None, *, segments_max: int) -> HandleShare:
    """`segments_max` for segments, or a third if it is 0; the rest for connections.

    >>> share(1024, segments_max=0)
    HandleShare(segments=320, connections=160)
    """
    if limit is None:
        return HandleShare(segments_max or None, None)
    free = max(limit - RESERVED, 0)
    segments = segments_max or max(free // 3, _SEGMENTS_MIN)
    return HandleShare(segments, max((free - 2 * segments) // _PER_CONNECTION, _CONNECTIONS_MIN))
