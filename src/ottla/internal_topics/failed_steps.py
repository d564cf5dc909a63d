"""Declares a step of a coordinator that failed unexpectedly.

A step that fails may have changed the state by half: a check of an invariant comes after the change. Such a state is
never used again; the partition is loaded from its log (`led_partitions.py`), and other keys go on. A request that fails
each time must not have the partition loaded at each of its repetitions: its key is refused for longer and longer.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.internal_topics.machine_events import Loaded

KEY_CHARS_MAX: Final = 100
EVENT_CHARS_MAX: Final = 2_000


class FailedStep(NamedTuple):
    """Holds what is needed to repeat a failure."""

    key: str  # a group, a transactional id, a share partition; empty: unknown
    event: object
    before: object  # the state before it in short; the log has all of it
    error: Exception

    @property
    def is_load(self) -> bool:
        """Return whether the state in the log itself is what fails."""
        return isinstance(self.event, Loaded)

    @property
    def description(self) -> str:
        """Describe the event and the state before it, for the log."""
        return f"event {self.event!r:.{EVENT_CHARS_MAX}}; state before it {self.before!r:.{EVENT_CHARS_MAX}}"
