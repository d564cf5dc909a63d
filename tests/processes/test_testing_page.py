"""docs/testing.md: each example is a test that passes; the page names what is public.

Examples with libraries that are not among those of our tests run in environments of their own (`make test-libraries`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "testing.md"
BLOCKS = re.findall(r"^```python ?(\S*)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
OF_LIBRARIES = {
    "pytest-asyncio": ("pytest-asyncio", "aiokafka"),
    "faststream": ("pytest-asyncio", "faststream[kafka]"),
    "faust": ("pytest-asyncio", "faust-streaming>=0.11"),
    "quixstreams": ("quixstreams",),
}
"""What is installed for them: each by itself, as they ask for different versions of the same packages."""
UV = Path(sys.executable).with_name("uv")
INI = "[pytest]\naddopts = -q --strict-markers -p no:cacheprovider\n"


def run(directory: Path, *blocks: str, python: str | Path = sys.executable) -> None:
    """Run examples with pytest in a project of their own."""
    (directory / "pytest.ini").write_text(INI)
    for number, text in enumerate(blocks):
        (directory / f"test_{number}.py").write_text(text)
    done = subprocess.run([python, "-m", "pytest"], cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def blocks(label: str) -> list[str]:
    return [text for found, text in BLOCKS if found == label]


def test_the_examples_run(tmp_path: Path) -> None:
    run(tmp_path, *blocks(""))


def test_the_test_with_testcontainers_passes_with_another_import(tmp_path: Path) -> None:
    (text,) = blocks("testcontainers")
    run(tmp_path, text.replace("testcontainers.community.kafka", "ottla.testing.containers"))


@pytest.mark.spark
def test_the_example_with_spark_runs(tmp_path: Path) -> None:
    run(tmp_path, *blocks("spark"))


@pytest.mark.test_libraries
@pytest.mark.parametrize("library", OF_LIBRARIES)
def test_the_example_with_a_library_runs(library: str, tmp_path: Path) -> None:
    python = tmp_path / "environment" / "bin" / "python"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "environment"], check=True)
    packages: list[str | Path] = ["pytest", *OF_LIBRARIES[library], "--editable", ROOT]
    subprocess.run(
        [UV, "pip", "install", "--quiet", "--python", python, *packages],
        check=True,
        env=os.environ | {"OTTLA_COMPILE": "later"},
    )
    run(tmp_path, *blocks(library), python=python)


def test_each_example_is_run_by_a_test() -> None:
    assert {label for label, _ in BLOCKS} == {"", "testcontainers", "spark", *OF_LIBRARIES}
