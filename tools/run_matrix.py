"""Runs tests with other versions: of Spark, of Python, and with the oldest versions that pyproject.toml allows.

Each combination has an environment in `build/matrix`, with the versions of the lock file but for what it varies. It is
created once, and again when the versions, the dependencies in pyproject.toml or the Python change. Skipped tests are
listed with their reasons, and a Python that is neither installed nor can be fetched is reported as not tried.

`oldest-spark` is a part of `make test`: the comparison with Spark's own connector, which resolves for the oldest
version, and what else of the pipeline depends on Spark's version. Its output is pytest's.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pythons import OLDEST, ROOT, UV, VERSIONS, available

HOME = ROOT / "build" / "matrix"
LOCK = ROOT / "locks" / "dev.txt"
SPARKS = ("4.0", "4.1", "4.2", "4.3")
FAST = (
    "tests/unit",
    "tests/properties",
    "tests/contracts",
    "tests/coordinator_schedules",
    "tests/tidy",
    "tests/crash_tests",
)
WITHOUT_JAVA = "not slow and not external and not spark"
PIPELINE = ("tests/pipeline",)
LONG = ("tests/pipeline/test_kills.py", "tests/pipeline/connector/test_large_topics.py", "tests/pipeline/test_guide.py")
"""They load tables under kills, for minutes: nothing in them depends on Spark's version."""
CONNECTOR = "tests/pipeline/connector"
SHORT = (
    f"{CONNECTOR}/test_official_connector.py",
    f"{CONNECTOR}/test_options.py",
    f"{CONNECTOR}/test_spark_api.py",
    f"{CONNECTOR}/test_spark_sink.py",
    f"{CONNECTOR}/test_spark_source.py",
    "tests/pipeline/test_job_stages.py",  # a load and a stream
)
"""Where the tests with a mark of SHORT_MARKS are."""
SHORT_MARKS = "official_connector or oldest_spark"
_LOCKED = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^\s\\;]+)( ; [^\\]+)?", re.MULTILINE)


@dataclass(frozen=True)
class Combination:
    """Versions to try, and the tests to run with them."""

    name: str
    python: str
    constraints: str
    """Versions as pip's constraints."""
    tests: Sequence[str]
    marks: str
    ignored: Sequence[str] = ()
    varied: Sequence[str] = ()
    """The packages whose versions the report shows."""
    in_make_test: bool = False
    """Prints as pytest does, and runs brokers and tasks in the form that is built."""

    @property
    def directory(self) -> Path:
        """The environment and what its tests print."""
        return HOME / self.name

    @property
    def program(self) -> Path:
        """The environment's Python."""
        return self.directory / "environment" / "bin" / "python"


@dataclass
class Outcome:
    """What the tests of a combination did."""

    versions: str
    counts: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    code: int = 0


def main() -> int:
    """Run the combinations of a kind."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=("sparks", "oldest-spark", "pythons", "floors"))
    parser.add_argument("versions", nargs="*", help="as 4.1 or 3.12; none: all")
    parser.add_argument("--jobs", type=int, default=2, help="processes for the tests")
    parser.add_argument("--prepare", action="store_true", help="create the environments and run nothing")
    given = parser.parse_args()
    failed = False
    for combination in combinations(given.kind, given.versions):
        try:
            prepare(combination)
        except subprocess.CalledProcessError as error:
            failed = True
            print(f"{combination.name}: the environment cannot be created: {error}", flush=True)
            continue
        if given.prepare:
            continue
        outcome = run(combination, given.jobs)
        failed |= outcome.code != 0
        print(f"{combination.name}: {summary(outcome)} ({outcome.versions})", flush=True)
        for reason, count in sorted(outcome.skipped.items()):
            print(f"  skipped {count}: {reason}", flush=True)
        if outcome.code and not combination.in_make_test:
            print(f"  see {(combination.directory / 'tests.log').relative_to(ROOT)}", flush=True)
    return int(failed)


def combinations(kind: str, versions: Sequence[str]) -> Iterator[Combination]:
    """Yield what a kind consists of."""
    match kind:
        case "sparks":
            for version in versions or SPARKS:
                yield with_spark(version)
        case "oldest-spark":
            oldest = with_spark(SPARKS[0])
            yield replace(oldest, tests=SHORT, marks=SHORT_MARKS, ignored=(), in_make_test=True)
        case "pythons":
            found = available(versions or VERSIONS)
            for version in versions or VERSIONS:
                if version in found:
                    yield Combination(f"python-{version}", found[version], locked(), (*FAST, *PIPELINE), WITHOUT_JAVA)
                else:
                    print(f"python-{version}: not tried; it is not installed and cannot be fetched", flush=True)
        case _:
            lowest = floors()
            names = [line.partition("==")[0] for line in lowest.splitlines()]
            constraints = lowest + locked(without=names)
            yield Combination(
                "floors", sys.executable, constraints, (*FAST, *PIPELINE), WITHOUT_JAVA, (), sorted(direct())
            )


def with_spark(version: str) -> Combination:
    """Return the pipeline's tests with a minor version of Spark."""
    constraints = f"{locked(without=('pyspark', 'py4j'))}pyspark=={version}.*\n"
    return Combination(f"spark-{version}", sys.executable, constraints, PIPELINE, "not nothing", LONG, ("pyspark",))


def locked(*, without: Sequence[str] = ()) -> str:
    """Return the versions of the lock file as constraints, without some packages."""
    found = (match.groups() for match in _LOCKED.finditer(LOCK.read_text()))
    return "".join(
        f"{name}=={version}{(marker or '').rstrip()}\n" for name, version, marker in found if name not in without
    )


def floors() -> str:
    """Return the oldest version that pyproject.toml allows of each dependency, and versions of theirs that fit."""
    command = [UV, "pip", "compile", "--quiet", "--resolution", "lowest-direct", "--python-version", f"3.{OLDEST}"]
    command += ["--all-extras", "--no-header", "--no-annotate", str(ROOT / "pyproject.toml")]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def direct() -> set[str]:
    """Return the names of the dependencies that pyproject.toml names, without those of tests and tools."""
    return {re.split(r"[^A-Za-z0-9._-]", one, maxsplit=1)[0] for one in dependencies()} - {"ottla"}


def dependencies() -> list[str]:
    """Return the dependencies that pyproject.toml names, with those of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    return [*project["dependencies"], *(one for extra in extras for one in extra)]


def prepare(combination: Combination) -> None:
    """Create the environment unless it is there as wanted."""
    stamp = combination.directory / "stamp"
    wanted = "\n".join([combination.python, combination.constraints, *dependencies()])
    if stamp.exists() and stamp.read_text() == wanted:
        return
    combination.directory.mkdir(parents=True, exist_ok=True)
    constraints = combination.directory / "constraints.txt"
    constraints.write_text(combination.constraints)
    if not stamp.exists() or not stamp.read_text().startswith(f"{combination.python}\n"):
        environment = combination.program.parent.parent
        subprocess.run([UV, "venv", "--quiet", "--clear", "--python", combination.python, str(environment)], check=True)
    stamp.unlink(missing_ok=True)
    command = [UV, "pip", "install", "--quiet", "--exact", "--python", str(combination.program)]
    command += ["--constraint", str(constraints), "--group", f"{ROOT / 'pyproject.toml'}:test"]
    extras = "cli,standard,pipeline,keystores,testing"
    command += ["--editable", f"{ROOT}[{extras}]", "pip"]  # by pip the pipeline installs a Java
    subprocess.run(command, check=True, env=os.environ | {"OTTLA_COMPILE": "later"})
    stamp.write_text(wanted)


def run(combination: Combination, jobs: int) -> Outcome:
    """Run the tests on some processes, and count."""
    report = combination.directory / "report.xml"
    report.unlink(missing_ok=True)
    command = [str(combination.program), "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    command += ["-n", str(jobs), "--dist", "loadgroup", "--no-loadscope-reorder"]
    command += ["-m", combination.marks, *(f"--ignore={path}" for path in combination.ignored), *combination.tests]
    path = f"{combination.program.parent}{os.pathsep}{os.environ['PATH']}"
    variables = {"OTTLA_EXAMPLES": "0.2"} | os.environ | {"PATH": path}
    if combination.in_make_test:
        variables |= {"OTTLA_SPARK_CLASSES": "0"}  # for one JVM an archive of classes costs more than it saves
        done = subprocess.run(command, cwd=ROOT, env=variables, check=False)
    else:
        with (combination.directory / "tests.log").open("w") as log:
            done = subprocess.run(
                command, cwd=ROOT, env=variables | {"OTTLA_PLAIN": "1"}, stdout=log, stderr=log, check=False
            )
    outcome = Outcome(versions(combination), code=done.returncode)
    if report.exists():
        count(ET.parse(report), outcome)  # noqa: S314 - our own file
    return outcome


def count(report: ET.ElementTree[ET.Element], outcome: Outcome) -> None:
    """Count the tests of pytest's report, and why some were skipped."""
    for case in report.iter("testcase"):
        kinds = {child.tag for child in case}
        outcome.counts["failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"] += 1
        for child in case.iter("skipped"):
            outcome.skipped[child.get("message") or "no reason"] += 1


def versions(combination: Combination) -> str:
    """Return the versions that the report shows: of Python, and of the packages that are varied."""
    program = (
        "import sys, importlib.metadata as m; "
        "print('Python', sys.version.split()[0], *(f', {n} {m.version(n)}' for n in sys.argv[1:]))"
    )
    done = subprocess.run(
        [str(combination.program), "-c", program, *combination.varied], check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.strip().replace(" , ", ", ")


def summary(outcome: Outcome) -> str:
    """Return the counts as pytest would."""
    found = [f"{outcome.counts[kind]} {kind}" for kind in ("passed", "failed", "skipped") if outcome.counts[kind]]
    return ", ".join(found) or f"no tests ran, exit code {outcome.code}"


if __name__ == "__main__":
    raise SystemExit(main())
