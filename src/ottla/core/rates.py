"""Measures rates and limits them, as Kafka's SampledStat, Rate and TokenBucket do. Times are milliseconds of one clock.

A `SampledRate` counts in samples of a window each and keeps one sample more than it has windows: one that overlaps the
oldest end. The rate is the sum over the time since the oldest sample began, which counts as no less than all windows
but one: a first burst is not taken for a high rate.
"""

from __future__ import annotations

import math
from typing import Final

UNLIMITED: Final = math.inf


class SampledRate:
    """A rate per second, and the limit that it should stay below."""

    __slots__ = ("_current", "_ends", "_starts", "_values", "limit", "sample_count", "used_ms", "window_ms")

    def __init__(self, limit: float, *, sample_count: int, window_ms: int) -> None:
        self.limit = limit
        self.sample_count = sample_count
        self.window_ms = window_ms
        self.used_ms = 0  # when something was last recorded
        self._current = 0
        self._values: list[float] = []
        self._starts: list[int] = []
        self._ends: list[int] = []  # when the last value of each sample came

    def record(self, value: float, now_ms: int) -> None:
        """Add a value."""
        self.used_ms = now_ms
        at = self._current
        if not self._values:
            self._add_sample(now_ms)
        elif now_ms - self._starts[at] >= self.window_ms:
            at = self._current = (at + 1) % (self.sample_count + 1)
            if at == len(self._values):
                self._add_sample(now_ms)
            else:
                self._reset(at, now_ms)
        self._values[at] += value
        self._ends[at] = now_ms

    def _add_sample(self, now_ms: int) -> None:
        self._values.append(0.0)
        self._starts.append(now_ms)
        self._ends.append(now_ms)

    def _reset(self, at: int, now_ms: int) -> None:
        self._values[at] = 0.0
        self._starts[at] = self._ends[at] = now_ms

    def rate(self, now_ms: int) -> float:
        """Return the rate per second over the windows."""
        window_ms = self.measured_ms(now_ms)  # drops what is too old
        return sum(self._values) * 1000 / window_ms

    def measured_ms(self, now_ms: int) -> int:
        """Return the time that the rate is measured over."""
        expired_ms = now_ms - self.sample_count * self.window_ms
        oldest_ms = now_ms
        for at in range(len(self._values)):
            if self._ends[at] <= expired_ms:
                self._reset(at, now_ms)
            oldest_ms = min(oldest_ms, self._starts[at])
        elapsed_ms = now_ms - oldest_ms
        missing = self.sample_count - 1 - elapsed_ms // self.window_ms
        if missing > 0:
            elapsed_ms += missing * self.window_ms
        return max(elapsed_ms, 1)

    def throttle_ms(self, now_ms: int) -> int:
        """Return the time after which the rate is within the limit if nothing more is recorded; 0 if it is."""
        rate = self.rate(now_ms)
        if rate <= self.limit:
            return 0
        return math.floor((rate - self.limit) / self.limit * self.measured_ms(now_ms) + 0.5)


class TokenBucket:
    """Tokens that come at a rate per second, up to a burst of all windows. More may be taken at once than there are."""

    __slots__ = ("_tokens", "_updated_ms", "limit", "used_ms", "window_s")

    def __init__(self, limit: float, *, sample_count: int, window_ms: int, now_ms: int) -> None:
        self.limit = limit
        self.window_s = sample_count * window_ms / 1000  # after which an empty bucket is full
        self.used_ms = now_ms
        self._tokens = limit * self.window_s
        self._updated_ms = now_ms

    def tokens(self, now_ms: int) -> float:
        """Return the tokens that are left; below 0 if more were taken."""
        come = self.limit * ((now_ms - self._updated_ms) / 1000)
        self._tokens = min(self.limit * self.window_s, self._tokens + come)
        self._updated_ms = now_ms
        return self._tokens

    def take(self, count: float, now_ms: int) -> None:
        """Take tokens, whether or not there are so many."""
        self.used_ms = now_ms
        self._tokens = self.tokens(now_ms) - count

    def throttle_ms(self, now_ms: int) -> int:
        """Return the time after which the bucket is not below 0 any more."""
        tokens = self.tokens(now_ms)
        return 0 if tokens >= 0 else math.floor(-tokens / self.limit * 1000 + 0.5)
