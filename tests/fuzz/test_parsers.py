"""A moment of fuzzing in every run of the suite; `make fuzz` takes longer."""

from __future__ import annotations

import pytest

from tests.fuzz import harnesses
from tests.fuzz.harnesses import HARNESSES
from tests.fuzz.run import Finding, fuzz


@pytest.mark.parametrize("name", HARNESSES)
def test_inputs_are_accepted_or_refused_with_the_documented_error(name: str) -> None:
    tally = fuzz(name, inputs=3000, seed=1)
    assert len(tally.accepted) >= 30, "the parser refuses nearly everything: the inputs do not reach its inner parts"
    assert len(tally.refused) >= 1000


def test_a_parser_that_breaks_is_found_with_the_bytes_that_broke_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(data: bytes) -> bool:
        assert len(data) % 7 or not data, "a length divisible by seven"
        return True

    monkeypatch.setitem(HARNESSES, "frames", (breaks, harnesses.HARNESSES["frames"][1]))
    with pytest.raises(Finding, match=r"input [0-9a-f]+"):
        fuzz("frames", inputs=1000, seed=1)
