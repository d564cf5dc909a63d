"""Scales how many examples and states the tests go through: OTTLA_EXAMPLES=0.2 in the inner loop, 10 for a long run."""

from __future__ import annotations

import os

FACTOR = float(os.environ.get("OTTLA_EXAMPLES", "1"))


def examples(usual: int) -> int:
    """How many instead of the usual number."""
    return max(2, round(usual * FACTOR))
