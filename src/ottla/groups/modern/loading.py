"""Collects the records of one group from `__consumer_offsets`; the last record of each key wins."""

from __future__ import annotations

from typing import Generic, TypeVar

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")


class LoadedModernGroup(Generic[KeyT, ValueT]):
    """Holds the values of one group in the order of the log."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._values: dict[KeyT, ValueT] = {}

    def apply(self, key: KeyT, value: ValueT | None) -> None:
        """Apply a record; None deletes the key."""
        self._values.pop(key, None)
        if value is not None:
            self._values[key] = value
