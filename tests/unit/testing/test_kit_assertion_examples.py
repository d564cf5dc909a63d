"""The example of docs/testing-assertions.md runs as it is written."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[3] / "docs" / "testing-assertions.md").read_text(encoding="utf-8")


def test_the_example_of_the_page_runs() -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    exec(compile(example, "the example of testing-assertions.md", "exec"), {})
