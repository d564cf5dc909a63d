"""The benchmarks page: what is measured first, the project's own targets last, also after a part is measured again."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import cluster, cluster_recovery
from benchmarks.report import BACKLOG_TITLE, METHOD_TITLE, SPARK_TITLE, TARGETS_TITLE, write, write_part

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
KEPT = {
    "figures": {"1 synchronous: requests/s": {"Kafka": [8226.0], "Ottla": [20286.0]}},
    "limits": {},
    "effort": "The effort: small",
}


def titles(page: Path) -> list[str]:
    return re.findall(r"^## .*$", page.read_text(encoding="utf-8"), re.MULTILINE)


def test_figures_come_first_and_targets_last(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    write(page, KEPT)
    write_part(page, SPARK_TITLE, ["| load | fast |"])
    write_part(page, BACKLOG_TITLE, ["| backlog | read |"])
    for again in (False, True):
        if again:
            write(page, KEPT)
            write_part(page, SPARK_TITLE, ["| load | faster |"])
        found = titles(page)
        assert found[0].startswith("## Every figure")
        assert set(found[1:3]) == {SPARK_TITLE, BACKLOG_TITLE}
        assert found[3] == METHOD_TITLE
        assert found[-1] == TARGETS_TITLE
    assert "| load | faster |" in page.read_text(encoding="utf-8")
    assert "| load | fast |" not in page.read_text(encoding="utf-8")


def test_the_page_stays_as_it_is_if_nothing_is_measured_again(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    write(page, KEPT)
    write_part(page, SPARK_TITLE, ["| load | fast |"])
    write_part(page, BACKLOG_TITLE, ["| backlog | read |"])
    write(page, KEPT)
    before = page.read_text(encoding="utf-8")
    write(page, KEPT)
    assert page.read_text(encoding="utf-8") == before


def test_the_page_has_the_order_of_its_generator() -> None:
    found = titles(PAGE)
    assert found[0].startswith("## Every figure")
    assert found[-1] == TARGETS_TITLE


@pytest.mark.parametrize("module", [cluster, cluster_recovery])
def test_without_arguments_all_parts_are_measured(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []

    def compare(part: str, *_: object) -> list[str] | dict[str, object]:
        measured.append(part)
        return {} if module is cluster else []

    monkeypatch.setattr(module, "compare", compare)
    monkeypatch.setattr(cluster_recovery, "workers", compare)
    monkeypatch.setattr(cluster_recovery, "workers_table", lambda *_: [])
    monkeypatch.setattr(sys, "argv", ["benchmark", "--no-page"])
    assert module.main() == 0
    assert len(measured) >= 2
