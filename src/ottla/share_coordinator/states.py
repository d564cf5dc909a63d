"""Declares the states of a record in a share group, and ranges of offsets with one state.

The numbers are those of the protocol and of `__share_group_state` (KIP-932).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple


class RecordState(IntEnum):
    """Lists the states of a record. Acquired is never persisted: after a restart such a record is available."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3  # it is being written to the dead letter queue (KIP-1191), and archived afterwards
    ARCHIVED = 4


TERMINAL = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})
"""A record in these states is never delivered again."""


class StateBatch(NamedTuple):
    """Holds the state of consecutive offsets as it is persisted."""

    first: int
    last: int
    state: RecordState
    delivery_count: int


def joined(batches: Iterable[StateBatch]) -> tuple[StateBatch, ...]:
    """Join neighbours with the same state and delivery count. The batches must be sorted."""
    result: list[StateBatch] = []
    for batch in batches:
        before = result[-1] if result else None
        if before is not None and before.last + 1 == batch.first and before[2:] == batch[2:]:
            result[-1] = before._replace(last=batch.last)
        else:
            result.append(batch)
    return tuple(result)
