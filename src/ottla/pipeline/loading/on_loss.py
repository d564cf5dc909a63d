"""Names what a load does about offsets that were deleted from the log before they were loaded."""

from __future__ import annotations

from enum import StrEnum


class OnLoss(StrEnum):
    """What to do where offsets were deleted from the log before they were loaded."""

    FAIL = "fail"
    SKIP = "skip"
