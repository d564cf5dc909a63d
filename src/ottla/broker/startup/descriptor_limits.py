"""Divides the file descriptors of the process between segments and connections.

Segments stay open between uses and every connection needs a descriptor; without a division one kind could use all.
A segment that is closed while it is being synced or sent keeps its descriptor until that is done, so segments count
twice. The rest is for small files that are opened and closed again, the metadata store and the listeners.
"""

from __future__ import annotations

import logging
import resource
from typing import NamedTuple

log = logging.getLogger(__name__)

RESERVED = 64
_OPEN_MAX = 10_240  # of macOS
_SEGMENTS_MIN = 16
_CONNECTIONS_MIN = 8


class DescriptorLimits(NamedTuple):
    """Holds the number of open segments and of connections; None is no limit."""

    segments: int | None
    connections: int | None


UNLIMITED = DescriptorLimits(None, None)


def raise_limit() -> int | None:
    """Raise the soft limit to the hard limit, as the JVM does for Kafka, and return it; None for no limit.

    macOS refuses more than OPEN_MAX (10,240), also where it reports no limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            hard = max(soft, _OPEN_MAX)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        log.info(
            "raised the limit of file handles from %d to %s", soft, "none" if hard == resource.RLIM_INFINITY else hard
        )
    return None if hard == resource.RLIM_INFINITY else hard


def divide(limit: int | None, *, segments_max: int) -> DescriptorLimits:
    """Divide the limit: `segments_max` for segments, or a third if it is 0; the rest for connections.

    >>> divide(1024, segments_max=0)
    DescriptorLimits(segments=320, connections=320)
    """
    if limit is None:
        return DescriptorLimits(segments_max or None, None)
    free = max(limit - RESERVED, 0)
    segments = segments_max or max(free // 3, _SEGMENTS_MIN)
    return DescriptorLimits(segments, max(free - 2 * segments, _CONNECTIONS_MIN))
