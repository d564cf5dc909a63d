"""Counts work in slices, so that one large request does not delay the others.

A unit of work is two to five microseconds: one element of a request that is decoded, handled or encoded. Code that has
used up a slice yields to other requests before it continues; limits/loop_slices.py does that on the event loop.
"""

from __future__ import annotations

SLICE_WORK = 500
"""Units of work in one slice: about two milliseconds."""


class WorkSlice:
    """Counts down the work that may be done before other requests have to run."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = SLICE_WORK

    def spend(self, work: int = 1) -> bool:
        """Count work; return whether the slice is used up."""
        self.left -= work
        return self.left <= 0

    def renew(self) -> None:
        """Begin the next slice."""
        self.left = SLICE_WORK
