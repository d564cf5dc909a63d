"""Counts work in slices, so that one large request does not make the others wait.

A unit of work is two to five microseconds: one element of a request that is decoded, handled or encoded. Whoever finds
a slice spent has to let others run before it goes on; quotas/slices.py does that on the event loop.
"""

from __future__ import annotations

SLICE_WORK = 500
"""Units of work in one slice: some two milliseconds."""


class WorkSlice:
    """The work that may still be done before others have to run."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = SLICE_WORK

    def spend(self, work: int = 1) -> bool:
        """Count work; returns whether the slice is spent."""
        self.left -= work
        return self.left <= 0

    def renew(self) -> None:
        """Begin the next slice."""
        self.left = SLICE_WORK
