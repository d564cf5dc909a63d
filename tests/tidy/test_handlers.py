"""Handlers answer elements and leave the loop over them, in slices of work, to `broker/requests/elements.py`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HANDLERS = Path(__file__).resolve().parents[2] / "src" / "ottla" / "broker" / "handlers"
SERVED_AS_CHUNKS = {"fetch", "produce"}
"""The long forms of deferred APIs, which decode and encode themselves."""

LOOPS_ITSELF = {"offset_commit", "txn_offset_commit"}
"""Frequent requests of few elements: the general loop would cost an offset commit some 25 frames more."""


def mentions_slices(path: Path) -> bool:
    return re.search(r"slices|LoopSlices", path.read_text(encoding="utf-8")) is not None


@pytest.mark.parametrize("path", sorted(HANDLERS.glob("*.py")), ids=lambda path: path.stem)
def test_a_handler_does_not_mention_slices(path: Path) -> None:
    assert mentions_slices(path) == (path.stem in LOOPS_ITSELF | SERVED_AS_CHUNKS)
