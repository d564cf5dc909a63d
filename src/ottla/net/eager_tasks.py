"""Starts a coroutine in the present turn of the loop: without a task if it does not have to wait.

A task costs a turn of the loop before its first step, and one more after each future that it waits for. A request that
is served from memory needs none. Python has this as `eager_start` of a task from 3.12 on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class _StartedCoroutine(Coroutine[Any, Any, None]):
    """Continues a coroutine after its first wait, as the coroutine of a task."""

    __slots__ = ("_coroutine", "_first")

    def __init__(self, coroutine: Coroutine[Any, Any, None], first: Any) -> None:
        self._coroutine = coroutine
        self._first = first  # the future that it waits for, or None if it only lets a turn pass

    def send(self, value: Any) -> Any:
        """Continue; at first pass the future on to the task, unless it is done already."""
        first, self._first = self._first, None
        return self._coroutine.send(value) if first is None or first.done() else first

    def throw(self, *error: Any) -> Any:
        """Raise an exception where the coroutine waits."""
        self._first = None
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """End the coroutine."""
        self._coroutine.close()

    def __await__(self) -> Any:
        raise NotImplementedError("it is run by a task")


def start(coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None] | None:
    """Run a coroutine until it waits; returns the task that continues it, or None if it has ended.

    It is not in a task before it has waited: until then it must use neither `asyncio.timeout` nor `wait_for`.
    """
    try:
        first = coroutine.send(None)
    except StopIteration:
        return None
    return asyncio.get_running_loop().create_task(_StartedCoroutine(coroutine, first), name=name)
