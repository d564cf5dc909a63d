"""Merges the state batches that the share coordinator keeps for a share partition into one list without overlaps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import pairwise

from ottla.core.ids import NO_OFFSET
from ottla.share_coordinator.states import RecordState, StateBatch, joined


def combine(
    older: Sequence[StateBatch], newer: Sequence[StateBatch], start_offset: int = NO_OFFSET
) -> tuple[StateBatch, ...]:
    """Merge batches and cut off what is before the start.

    Where batches overlap, the one delivered more often holds, and of equal ones that with the later state: a state
    never returns to an earlier one within a delivery.

    >>> from ottla.share_coordinator.states import RecordState as S
    >>> combine([StateBatch(0, 9, S.AVAILABLE, 1)], [StateBatch(3, 4, S.ACKNOWLEDGED, 2)], 2)
    (StateBatch(first=2, last=2, state=<RecordState.AVAILABLE: 0>, delivery_count=1), \
StateBatch(first=3, last=4, state=<RecordState.ACKNOWLEDGED: 2>, delivery_count=2), \
StateBatch(first=5, last=9, state=<RecordState.AVAILABLE: 0>, delivery_count=1))
    """
    kept = [
        batch._replace(first=max(batch.first, start_offset)) for batch in (*older, *newer) if batch.last >= start_offset
    ]
    return joined(_without_overlaps(sorted(kept)))


def _without_overlaps(batches: Sequence[StateBatch]) -> Iterable[StateBatch]:
    """Divide the offsets at every begin and end of a batch; each part gets the state first in rank."""
    edges = sorted({edge for batch in batches for edge in (batch.first, batch.last + 1)})
    covering: list[tuple[int, int, int]] = []  # (-delivery count, -state, last), of batches that have begun
    ahead = 0
    for begin, end in pairwise(edges):
        while ahead < len(batches) and batches[ahead].first == begin:
            batch = batches[ahead]
            heappush(covering, (-batch.delivery_count, -batch.state, batch.last))
            ahead += 1
        while covering and covering[0][2] < begin:
            heappop(covering)
        if covering:
            count, state, _ = covering[0]
            yield StateBatch(begin, end - 1, RecordState(-state), -count)
