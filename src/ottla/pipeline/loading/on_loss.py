"""Names what a load does about offsets that were deleted from the log before they were loaded."""

from __future__ import annotations

from enum import StrEnum


class OnLoss(StrEnum):
    """The reactions to offsets that were deleted from the log before they were loaded."""

    FAIL = "fail"
    SKIP = "skip"
