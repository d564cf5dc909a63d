"""Holds the hot paths to the frames, calls into C and allocations that hot_path_counts.toml allows each of them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.support.form import is_compiled
from tests.support.hot_path_counts import COMPILED, PLAIN, counts_of, read_file

TOLERANCE = 1.02

pytestmark = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the counts are those of Python 3.11")


@pytest.mark.parametrize("form", [PLAIN, COMPILED])
def test_no_hot_path_does_more_than_its_counts_allow(form: str, tmp_path: Path) -> None:
    if form == COMPILED and not is_compiled():
        pytest.skip("there is no fresh build")
    if shutil.which("cc") is None:
        pytest.skip("the counter of allocations is not compiled on this machine")
    allowed, counted = read_file()[form], counts_of(form, tmp_path)
    assert counted.keys() == allowed.keys()
    exceeded = {
        f"{name}: {what}": f"{number}, allowed are {allowed[name][what]}"
        for name, numbers in counted.items()
        for what, number in numbers.items()
        if number > allowed[name][what] * TOLERANCE
    }
    assert not exceeded, "see the head of tests/tidy/hot_path_counts.toml"
