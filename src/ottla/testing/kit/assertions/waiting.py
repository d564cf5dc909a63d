"""Waits until what a test expects of the brokers is true; the failure shows what was there instead.

While the condition is evaluated, the methods of the kit note what they returned: that is what a failure prints, with
the groups and topics that the condition asked about. The time is the test's, and not that of the brokers.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ottla.core.clock import SystemClock
from ottla.core.errors import KafkaError
from ottla.testing.kit.assertions.lookups import NotFound

T = TypeVar("T")

NOT_YET = (AssertionError, NotFound, KafkaError)
"""Errors that a condition may raise because it is not true yet; any other ends the wait."""

_FIRST_PAUSE_S, _PAUSE_S_MAX, _GROWTH = 0.002, 0.05, 1.5
_SHOWN_CHARS = 600

_noted: ContextVar[Observations | None] = ContextVar("observations", default=None)


@dataclass(slots=True)
class Observations:
    """The calls of the kit's methods during one evaluation of a condition, with their results, in order."""

    calls: dict[str, object] = field(default_factory=dict)
    groups: dict[str, None] = field(default_factory=dict)
    topics: dict[str, None] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return a line per call."""
        return [f"{call} was {_shortened(result)}" for call, result in self.calls.items()]


def observed(call: str, work: Callable[[], T], *, group: str | None = None, topic: str | None = None) -> T:
    """Return the result of a method of the kit, and note it for the condition that is evaluated, if one is."""
    notes = _noted.get()
    if notes is None:
        return work()
    if group is not None:
        notes.groups[group] = None
    if topic is not None:
        notes.topics[topic] = None
    try:
        result = work()
    except NOT_YET as error:
        notes.calls[call] = error
        raise
    notes.calls[call] = result
    return result


Describe = Callable[[Observations], list[str]]
"""Returns lines about the groups and topics that a condition asked about."""


class Wait:
    """One wait: how long it may last, and what its last evaluation was."""

    def __init__(self, timeout: float, message: str, describe: Describe) -> None:
        self._message, self._describe, self._timeout = message, describe, timeout
        self._now = SystemClock().monotonic
        self._ends_at = self._now() + timeout
        self._pause_s = _FIRST_PAUSE_S
        self._notes = Observations()
        self._value: object = None
        self._error: BaseException | None = None

    def run(self, condition: Callable[[], T]) -> T:
        """Evaluate a condition until it is true, and return its value. Raises AssertionError."""
        while True:
            with self._evaluating():
                self._value = value = condition()
                if value:
                    return value
            time.sleep(self._next_pause_s())

    async def run_async(self, condition: Callable[[], Any]) -> Any:
        """Evaluate a condition as `run` does, with pauses in which the caller's loop runs; it may be a coroutine."""
        while True:
            with self._evaluating():
                result = condition()
                self._value = value = await result if inspect.isawaitable(result) else result
                if value:
                    return value
            await asyncio.sleep(self._next_pause_s())

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Note what one evaluation of the condition asks, and the error with which it is not true yet."""
        self._notes, self._value, self._error = Observations(), None, None
        token = _noted.set(self._notes)
        try:
            yield
        except NOT_YET as error:
            self._error = error
        finally:
            _noted.reset(token)

    def _next_pause_s(self) -> float:
        """Return how long to wait before the next evaluation. Raises AssertionError when the time is over."""
        left_s = self._ends_at - self._now()
        if left_s <= 0:
            raise AssertionError(self._failure()) from self._error
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * _GROWTH, _PAUSE_S_MAX)
        return min(pause_s, left_s)

    def _failure(self) -> str:
        error = self._error
        last = f"it returned {_shortened(self._value)}"
        if error is not None:
            last = f"it raised {type(error).__name__}: {error}"
        head = f"{self._message or 'the condition is not true'} (after {self._timeout:g} s; at last {last})"
        return "\n".join([head, *(f"  {line}" for line in [*self._notes.lines(), *self._describe(self._notes)])])


def _shortened(value: object) -> str:
    text = f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}... ({len(text)} characters)"
