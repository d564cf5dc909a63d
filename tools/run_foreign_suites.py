"""Runs tests of other projects that need a Kafka with brokers of Ottla in their process, and compares outcomes.

`tests/foreign_suites/suites.toml` has for each project its version, its tests and which do not pass, and why. A module
beside it replaces the fixture that started a Kafka. The tests are in no package of an index: `--sources` is a directory
with a clone of each project, at its version. An environment for each is made in `build/foreign_suites`. Fails if a test
fails that should pass, or passes that should fail.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pythons import ROOT, UV

HOME = ROOT / "build" / "foreign_suites"
CHANGES = ROOT / "tests" / "foreign_suites"
_PYTEST = ("-q", "-p", "no:cacheprovider", "-p", "foreign_suites.only_broker", "-o", "log_cli=false", "--timeout=120")


@dataclass
class Outcome:
    """The tests of a suite by what became of them; of those that did not pass, the first line of the reason."""

    passed: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def main() -> int:
    """Run the suites that are named, or all."""
    suites: dict[str, Any] = tomllib.loads((CHANGES / "suites.toml").read_text())
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sources", type=Path, required=True, help="a directory with a clone of each project")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(suites)}; none: all")
    parser.add_argument("--tests", nargs="*", help="paths or node ids, instead of the suite's")
    given = parser.parse_args()
    is_right = True
    for name in given.names or suites:
        outcome = run(name, suites[name], given.sources / name, given.tests)
        is_right &= report(name, suites[name], outcome, is_whole=not given.tests)
    return 0 if is_right else 1


def run(name: str, suite: dict[str, Any], source: Path, tests: list[str] | None) -> Outcome:
    """Copy the tests, replace the fixture and run them in an environment of their own."""
    directory = HOME / name
    python = environment(directory, suite["requirements"])
    copy = directory / "source"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".git", *suite.get("left_out", ())))
    with (copy / suite["conftest"]).open("a") as conftest:
        conftest.write(f"\n\nfrom foreign_suites.{name.replace('-', '_')} import *  # noqa: E402, F403\n")
    report_file = directory / "report.xml"
    report_file.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", *_PYTEST, f"--junitxml={report_file}", *suite.get("arguments", ())]
    command += [*(f"--ignore={path}" for path in suite.get("ignored", {})), *(tests or suite["tests"])]
    variables = os.environ | suite.get("variables", {}) | {"PYTHONPATH": str(CHANGES.parent)}
    with (directory / "tests.log").open("w") as log:
        subprocess.run(command, cwd=copy, env=variables, stdout=log, stderr=log, check=False)
    outcome = read(report_file) if report_file.exists() else Outcome()
    if not outcome.passed and not outcome.failed:
        sys.exit(f"{name}: the tests did not run; see {(directory / 'tests.log').relative_to(ROOT)}")
    return outcome


def environment(directory: Path, requirements: list[str]) -> Path:
    """Return the Python of an environment with Ottla and what the suite needs."""
    python = directory / "environment" / "bin" / "python"
    stamp = directory / "stamp"
    wanted = "\n".join(requirements)
    if not stamp.exists() or stamp.read_text() != wanted:
        directory.mkdir(parents=True, exist_ok=True)
        create = [UV, "venv", "--quiet", "--clear", "--python", sys.executable, str(python.parents[1])]
        subprocess.run(create, check=True)
        command = [UV, "pip", "install", "--quiet", "--python", str(python), "--editable", str(ROOT), "pytest-timeout"]
        subprocess.run([*command, *requirements], check=True, env=os.environ | {"OTTLA_COMPILE": "later"})
        stamp.write_text(wanted)
    return python


def read(report_file: Path) -> Outcome:
    """Return what became of the tests of a report of pytest."""
    outcome = Outcome()
    for case in ET.parse(report_file).iter("testcase"):  # noqa: S314 - written by our own run
        name = f"{case.get('classname')}::{case.get('name')}"
        if (child := case.find("failure")) is not None or (child := case.find("error")) is not None:
            outcome.failed[name] = (child.get("message") or "").strip().partition("\n")[0]
        elif (child := case.find("skipped")) is not None:
            outcome.skipped[name] = child.get("message") or "no reason"
        else:
            outcome.passed.add(name)
    outcome.passed -= outcome.failed.keys()  # a test whose end failed is there twice
    return outcome


def report(name: str, suite: dict[str, Any], outcome: Outcome, *, is_whole: bool) -> bool:
    """Print the outcome; return whether it is the expected one."""
    expected: dict[str, str] = suite.get("fails", {})
    as_expected = outcome.failed.keys() & expected.keys()
    print(
        f"{name} {suite['version']}: {len(outcome.passed)} passed, {len(as_expected)} failed as expected, "
        f"{len(outcome.skipped)} skipped",
        flush=True,
    )
    for path, reason in suite.get("ignored", {}).items():
        print(f"  not run: {path}: {reason}")
    for test, reason in sorted(outcome.skipped.items()):
        print(f"  skipped: {test}: {reason[:150]}")
    for test in sorted(as_expected):
        print(f"  fails: {test}: {expected[test]}")
    new = sorted(outcome.failed.keys() - expected.keys())
    for test in new:
        print(f"  FAILED: {test}: {outcome.failed[test][:150]}")
    passes = sorted(expected.keys() & outcome.passed)
    for test in passes:
        print(f"  passes, and should not: {test}")
    gone = sorted(expected.keys() - outcome.passed - outcome.failed.keys()) if is_whole else []
    for test in gone:
        print(f"  expected to fail, and not run: {test}")
    return not (new or passes or gone)


if __name__ == "__main__":
    sys.exit(main())
