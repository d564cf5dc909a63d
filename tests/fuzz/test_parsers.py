"""A moment of fuzzing in every run of the suite; `make fuzz` takes longer."""

from __future__ import annotations

import pytest

from tests.fuzz import harnesses
from tests.fuzz.harnesses import HARNESSES
from tests.fuzz.run import Finding, fuzz


@pytest.mark.parametrize("name", HARNESSES)
def test_no_bytes_make_a_parser_break_its_promise(name: str) -> None:
    assert fuzz(name, seconds=0.2, seed=1) >= 200


def test_a_parser_that_breaks_is_found_with_the_bytes_that_broke_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(data: bytes) -> None:
        assert len(data) % 7 or not data, "a length divisible by seven"

    monkeypatch.setitem(HARNESSES, "frames", (breaks, harnesses.HARNESSES["frames"][1]))
    with pytest.raises(Finding, match=r"input [0-9a-f]+"):
        fuzz("frames", seconds=5, seed=1)
