"""Every example of the page about faults does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ottla.testing import Kafka
from ottla.testing.kit.faults.disk import OPERATIONS, Disks

PAGE = (Path(__file__).parents[3] / "docs" / "testing-faults.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(number: int) -> None:
    exec(compile(EXAMPLES[number], f"example {number} of testing-faults.md", "exec"), {})


def test_the_table_names_methods_that_there_are() -> None:
    named = re.findall(r"^\| `k\.(?:(disk)\.)?(\w+)\(", PAGE, re.MULTILINE)
    assert len(named) > 12
    for disk, method in named:
        assert callable(getattr(Disks if disk else Kafka, method))
    assert set(OPERATIONS) <= set(re.findall(r"`(\w+)`", PAGE))
