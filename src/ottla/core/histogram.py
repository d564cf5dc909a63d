"""Counts durations in buckets whose limits double: plain integers, which are read on demand."""

from __future__ import annotations

from typing import Final

BUCKETS: Final = 28
"""Bucket n counts durations below 2**n microseconds: the last one what is longer than about a minute."""


class Histogram:
    """Holds how often durations occurred, and their sum."""

    __slots__ = ("counts", "total_us")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * BUCKETS
        self.total_us = 0

    def record(self, duration_us: int) -> None:
        """Count one duration; a clock that went back counts as none."""
        duration_us = max(duration_us, 0)
        bucket = duration_us.bit_length()
        self.counts[bucket if bucket < BUCKETS else BUCKETS - 1] += 1
        self.total_us += duration_us

    @property
    def count(self) -> int:
        """Return how many durations were counted."""
        return sum(self.counts)

    def quantile_us(self, share: float) -> int:
        """Return the limit of the bucket below which this share of the durations is; 0 without any.

        >>> histogram = Histogram()
        >>> for duration_us in (3, 3, 3, 900):
        ...     histogram.record(duration_us)
        >>> histogram.quantile_us(0.5), histogram.quantile_us(0.99), histogram.count
        (4, 1024, 4)
        """
        left = share * self.count
        for bucket, count in enumerate(self.counts):
            left -= count
            if left <= 0 and count:
                return 1 << bucket
        return 0
