"""The ways of installation: those of the README are tried by `make wheel`, and the pages name the extras that exist."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
PAGE = (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")
INSTALLERS = ("pip", "pipx", "uv", "uvx")


@pytest.fixture
def try_wheel(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location("try_wheel", ROOT / "tools" / "try_wheel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "try_wheel", module)
    spec.loader.exec_module(module)
    return module


def test_the_readme_has_the_ways_that_are_tried_and_no_other(try_wheel: ModuleType) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
    wheel = f"{PROJECT['name']}-{PROJECT['version']}-py3-none-any.whl"
    tried = [way.replace("WHEEL", wheel) for way in try_wheel.WAYS.values()]
    assert [command for command in shown if command.split()[0] in INSTALLERS] == tried


def test_the_size_that_is_compared_with_the_wheel_is_that_of_the_readme(try_wheel: ModuleType) -> None:
    plain, compiled = try_wheel.stated_mb(try_wheel.PLAIN), try_wheel.stated_mb(try_wheel.COMPILED)
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"the broker alone is {plain} MB, or {compiled} MB compiled" in text


def test_the_page_lists_each_extra() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == set(EXTRAS)


def test_the_base_has_no_library_of_an_extra() -> None:
    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[^A-Za-z0-9._-]", one, maxsplit=1)[0] for one in requirements}

    of_extras = set().union(*(names(requirements) for requirements in EXTRAS.values()))
    assert not names(PROJECT["dependencies"]) & of_extras
    assert "ottla[cli]" in EXTRAS["pipeline"], "its commands are typer's"
