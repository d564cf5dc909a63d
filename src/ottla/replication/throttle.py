"""Limits how fast replicas catch up, so that a reassignment leaves bandwidth to clients (KIP-73).

Only replicas that a topic lists as throttled, and that are not in sync, are held back: one in the ISR delays acks=all.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.core.files import FileRegion
from ottla.storage.log.partition_log import PartitionLog

BURST_SECONDS = 1.0
"""The time for which an unused part of the rate may be used later."""

ALL_REPLICAS = "*"


class ReplicationQuota:
    """The bytes a second of all throttled replicas together, in one direction."""

    __slots__ = ("_paid_until_s", "_rate")

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._paid_until_s = 0.0

    def configure(self, rate: int) -> None:
        """Follow the setting. What went at another rate does not count: a raised limit has an effect at once."""
        if rate != self._rate:
            self._rate, self._paid_until_s = rate, 0.0

    def record(self, size_bytes: int, now_s: float) -> None:
        """Count what was sent or received."""
        start_s = max(self._paid_until_s, now_s - BURST_SECONDS)
        self._paid_until_s = start_s + size_bytes / max(self._rate, 1)

    def wait_s(self, now_s: float) -> float:
        """Return for how long nothing more may go; 0 if it may."""
        return max(0.0, self._paid_until_s - now_s)


def is_throttled(replicas: Sequence[str], partition: int, node_id: int) -> bool:
    """Return whether a topic's list of throttled replicas names one.

    >>> is_throttled(("0:1", "0:2"), 0, 2), is_throttled(("*",), 5, 1), is_throttled(("0:1",), 1, 1)
    (True, True, False)
    """
    return bool(replicas) and (ALL_REPLICAS in replicas or f"{partition}:{node_id}" in replicas)


def read_up_to_log_end(
    log: PartitionLog,
    fetch_offset: int,
    max_bytes: int,
    *,
    at_least_one: bool,
    quota: ReplicationQuota | None,
    now_s: float,
) -> FileRegion | None:
    """Read for a follower, flushed records or not; nothing while the quota that counts for it is used up."""
    if quota is not None and quota.wait_s(now_s):
        return None
    try:
        region = log.read(fetch_offset, max_bytes=max_bytes, end_offset=log.end_offset, at_least_one=at_least_one)
    except OSError as error:
        raise log.refused(f"reading {log.topic_partition}", error) from error
    if quota is not None and region is not None:
        quota.record(region.size, now_s)
    return region
