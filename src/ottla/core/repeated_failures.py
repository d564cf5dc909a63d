"""Counts repeated failures of the same thing, and determines how long to wait after each."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple

DELAY_S_MIN: Final = 1.0
DELAY_S_MAX: Final = 60.0

LOAD_DELAY_S_MIN: Final = 60.0
LOAD_DELAY_S_MAX: Final = 3_600.0
"""For a state in a log that cannot be loaded: to try again costs all keys of the partition, and helps rarely."""

FORGOTTEN_AFTER_S: Final = 600.0
"""A key that did not fail for so long after its last delay counts from one again."""

KEYS_MAX: Final = 10_000


class Failure(NamedTuple):
    """Holds how often a key failed, and how long to wait before it is used again."""

    times: int
    until_s: float
    is_loaded: bool = True  # False: it failed as it was loaded, so that it is not in memory


class RepeatedFailures:
    """Counts the failures of each key: after the first step nothing waits, after each other twice as long as before."""

    def __init__(self) -> None:
        self._failures: dict[Hashable, Failure] = {}

    def note(self, key: Hashable, now_s: float, *, is_loaded: bool = True) -> Failure:
        """Count a failure; returns how often there was one, and when the key may be used again."""
        last = self._failures.pop(key, None)
        times = 1 if last is None or now_s > last.until_s + FORGOTTEN_AFTER_S else last.times + 1
        factor = 2.0 ** min(times - 1, 10)
        if not is_loaded:
            delay_s = min(LOAD_DELAY_S_MIN * factor, LOAD_DELAY_S_MAX)
        else:
            delay_s = 0.0 if times == 1 else min(DELAY_S_MIN * factor / 2, DELAY_S_MAX)
        failure = self._failures[key] = Failure(times, now_s + delay_s, is_loaded)
        if len(self._failures) > KEYS_MAX:
            self._forget_one()
        return failure

    def find(self, key: Hashable) -> Failure | None:
        """Return the last failure of a key."""
        return self._failures.get(key)

    def loading(self, key: Hashable) -> None:
        """Note that a key which failed as it was loaded is loaded again."""
        failure = self._failures.get(key)
        if failure is not None:
            self._failures[key] = failure._replace(is_loaded=True)

    def not_loaded(self) -> list[Hashable]:
        """List the keys that are not in memory because they failed as they were loaded."""
        return [key for key, failure in self._failures.items() if not failure.is_loaded]

    def _forget_one(self) -> None:
        """Forget the oldest failure of a key that is in memory."""
        oldest = next((key for key, failure in self._failures.items() if failure.is_loaded), None)
        if oldest is not None:
            del self._failures[oldest]
