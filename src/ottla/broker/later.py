"""An answer that comes later, told by one call: what a future is, without a turn of the loop in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Later(Generic[T]):
    """A value to come. One side calls `give`, the other `then`, each once and in either order."""

    __slots__ = ("_given", "_taker", "_value", "failure", "pipelined")

    def __init__(self) -> None:
        self.pipelined = True  # whether the connection's next request may begin before this has come
        self.failure: Exception | None = None  # instead of a value: there is none to answer with
        self._given = False
        self._value: T | None = None
        self._taker: Callable[[T], None] | None = None

    @property
    def is_given(self) -> bool:
        """Whether the value has come."""
        return self._given

    def give(self, value: T) -> None:
        """The value has come."""
        assert not self._given, "an answer comes once"
        self._given, self._value = True, value
        if self._taker is not None:
            self._taker(value)

    def fail(self, error: Exception) -> None:
        """There will be no value: who takes it finds `failure` set."""
        self.failure = error
        self.give(None)  # type: ignore[arg-type]

    def then(self, taker: Callable[[T], None]) -> None:
        """Call `taker` with the value as soon as it has come."""
        assert self._taker is None, "an answer is taken once"
        self._taker = taker
        if self._given:
            taker(self._value)  # type: ignore[arg-type]
