"""The versions that pyproject.toml allows, those that `tools/run_matrix.py` tries, and those that pages name are the same."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.kafka_jars import NEWEST, OLDEST

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture
def matrix(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location("run_matrix", ROOT / "tools" / "run_matrix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "run_matrix", module)
    spec.loader.exec_module(module)
    return module


def test_every_spark_that_may_be_installed_is_tried(matrix: ModuleType) -> None:
    (pin,) = [one for one in PROJECT["optional-dependencies"]["pipeline"] if one.startswith("pyspark")]
    first, last = matrix.SPARKS[0], matrix.SPARKS[-1]
    major, minor = map(int, last.split("."))
    assert pin == f"pyspark>={first},<{major}.{minor + 1}"
    assert [f"{major}.{n}" for n in range(minor + 1)] == list(matrix.SPARKS)
    assert f"PySpark {first} to {last}" in (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    assert f"SPARKS ?= {' '.join(matrix.SPARKS)}\n" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_lock_file_has_the_newest_spark(matrix: ModuleType) -> None:
    assert re.search(rf"^pyspark=={re.escape(matrix.SPARKS[-1])}\.", matrix.locked(), re.MULTILINE)
    assert "pyspark" not in matrix.locked(without=("pyspark",))


def test_the_comparison_with_sparks_connector_runs_on_the_oldest_spark_in_make_test(matrix: ModuleType) -> None:
    """docs/design/connector.md has the reason."""
    (oldest,) = matrix.combinations("oldest-spark", [])
    assert oldest.constraints.splitlines()[-1] == f"pyspark=={matrix.SPARKS[0]}.*"
    (whole,) = matrix.combinations("sparks", matrix.SPARKS[:1])
    assert (oldest.directory, oldest.constraints) == (whole.directory, whole.constraints), "one environment for both"
    for path in (ROOT / "tests").rglob("test_*.py"):
        if "mark.official_connector" in path.read_text(encoding="utf-8") and path != Path(__file__):
            assert path.relative_to(ROOT).as_posix() in oldest.tests
    for path in oldest.tests:
        file, _, test = path.partition("::")
        assert f"def {test}" in (ROOT / file).read_text(encoding="utf-8")
    assert not oldest.ignored
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(r"^test:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert recipe is not None
    assert '-m "$(HERE)"' in recipe[1]
    assert re.search(r"^HERE := not official_connector\b", makefile, re.MULTILINE)
    assert "tools/run_matrix.py --jobs 2 oldest-spark" in recipe[1]
    assert f"OLDEST_SPARK := {oldest.program.relative_to(ROOT)}\n" in makefile


def test_an_environment_that_cannot_be_created_fails_the_run(
    matrix: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: object) -> None:
        raise subprocess.CalledProcessError(2, ["uv"])

    monkeypatch.setattr(matrix, "prepare", refuse)
    monkeypatch.setattr(sys, "argv", ["run_matrix.py", "oldest-spark"])
    assert matrix.main() == 1
    assert capsys.readouterr().out.startswith("spark-4.0: the environment cannot be created")


def test_the_pythons_of_the_classifiers_are_tried(matrix: ModuleType) -> None:
    named = [one.rpartition("3.")[2] for one in PROJECT["classifiers"] if "Python :: 3." in one]
    assert tuple(f"3.{minor}" for minor in named) == matrix.VERSIONS
    assert PROJECT["requires-python"] == f">=3.{matrix.OLDEST}"


def test_pages_name_the_kafka_that_is_compared_with() -> None:
    def text(name: str) -> str:
        return (ROOT / name).read_text(encoding="utf-8")

    for page in ("README.md", "CHANGELOG.md", "docs/protocol-support.md"):
        assert f"Apache Kafka {NEWEST}" in text(page), page
    assert re.search(r"Apache Kafka \d+\.\d+\.\d+", text("docs/benchmarks.md")), "the one that was measured"
    assert f"OTTLA_KAFKA={OLDEST} " in text("Makefile")
    for page in ("CHANGELOG.md", "docs/protocol-support.md"):
        assert OLDEST in text(page), page
    line = NEWEST.rpartition(".")[0]
    assert f"all the topic settings that Apache Kafka {line} lists" in text("docs/topic-settings.md")


def test_a_report_counts_tests_and_the_reasons_of_skips(matrix: ModuleType, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite><testcase/><testcase><failure/></testcase>"
        "<testcase><skipped message='no Java'/></testcase><testcase><skipped message='no Java'/></testcase>"
        "<testcase/></testsuite></testsuites>"
    )
    outcome = matrix.Outcome("Python 3.12.1")
    matrix.count(matrix.ET.parse(report), outcome)
    assert matrix.summary(outcome) == "2 passed, 1 failed, 2 skipped"
    assert outcome.skipped == {"no Java": 2}
    assert matrix.summary(matrix.Outcome("", code=4)) == "no tests ran, exit code 4"
