"""Remembers decisions of the controller that failed unexpectedly, and refuses their repetitions for a while.

A decision that fails may have changed the overlay by half. The overlay is dropped, so that nothing of it is written,
and the other events of the request are decided again without it. The index of the term, on which a decision depends, is
built again from the metadata store. The client gets NOT_CONTROLLER, after which it tries again; for some time the same
event is refused without a decision.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from ottla.controller.config_changes import AlterConfig
from ottla.controller.machine import Event
from ottla.controller.topics import CreatePartitions, CreateTopic, DeleteTopic, FinishDeletion
from ottla.core.clock import Clock
from ottla.core.errors import NotController
from ottla.core.repeated_failures import DELAY_S_MIN, RepeatedFailures

log = logging.getLogger(__name__)

EVENT_CHARS_MAX: Final = 2_000
WRITE: Final = "write"


class DecisionFailed(Exception):
    """Reports the event, by its number in the request, whose decision failed."""

    def __init__(self, number: int, error: Exception) -> None:
        super().__init__(number)
        self.number, self.error = number, error


class DecisionRefused(Exception):
    """Delays what the controller does by itself: a decision that it needs failed, and is refused for a while."""

    def __init__(self, delay_s: float) -> None:
        super().__init__(delay_s)
        self.delay_s = delay_s


class FailedDecisions:
    """Holds the failures of one broker's controller."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures = RepeatedFailures()
        self._has_failures = False

    def note(self, event: Event, error: Exception, epoch: int) -> None:
        """Log a failed decision, in full the first time, and refuse the event for a while."""
        times = self._note(_key(event))
        if times > 1:
            log.error("a decision of the controller failed again, %d times now: %r", times, error)
        else:
            text = "a decision of the controller failed in epoch %d and is not written. Please report this as a bug: %s"
            log.error(text, epoch, f"{event!r:.{EVENT_CHARS_MAX}}", exc_info=error)

    def note_write(self, error: Exception) -> float:
        """Log a write of which the controller does not know the result; returns how long not to be controller."""
        times = self._note(WRITE)
        failure = self._failures.find(WRITE)
        delay_s = 0.0 if failure is None or times == 1 else failure.until_s - self._clock.monotonic()
        text = "a write of the controller failed unexpectedly; its term ends, and the next begins %d s later or more"
        log.error(text, delay_s, exc_info=error)
        return delay_s

    def _note(self, key: str) -> int:
        self._has_failures = True
        now_s = self._clock.monotonic()
        failure = self._failures.note(key, now_s)
        return failure.times

    def refusal(self, event: Event) -> NotController | None:
        """Return the error for an event that is refused now."""
        delay_s = self._delay_s(event) if self._has_failures else 0.0
        return (
            NotController("a decision about this failed unexpectedly; it is tried again later") if delay_s > 0 else None
        )

    def check(self, events: Iterable[Event]) -> None:
        """Raise DecisionRefused if one of these events is refused now."""
        if self._has_failures:
            delay_s = max((self._delay_s(event) for event in events), default=0.0)
            if delay_s > 0:
                raise DecisionRefused(delay_s)

    def _delay_s(self, event: Event) -> float:
        failure = self._failures.find(_key(event))
        if failure is None:
            return 0.0
        return failure.until_s + DELAY_S_MIN - self._clock.monotonic()


def _key(event: Event) -> str:
    """Name an event: its repetition by the client has other random values."""
    if isinstance(event, CreateTopic | CreatePartitions | DeleteTopic | FinishDeletion):
        return f"{type(event).__name__} {event.name}"
    if isinstance(event, AlterConfig):
        return f"AlterConfig {event.kind} {event.name}"
    return f"{event!r:.{EVENT_CHARS_MAX}}"
