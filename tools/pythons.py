"""Finds a CPython of each minor version that Ottla supports: on PATH, among pyenv's, or fetched.

uv fetches from GitHub. Where that is out of reach, Maven fetches what JavaCPP publishes as `org.bytedeco:cpython`, for
the versions in `MAVEN`.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = str(Path(sys.executable).with_name("uv"))
OLDEST, NEWEST = 11, 14
VERSIONS = tuple(f"3.{minor}" for minor in range(OLDEST, NEWEST + 1))
FETCHED = ROOT / "build" / "pythons"
MAVEN = {"3.14": "3.14.3-1.5.13"}
_HAS_HEADERS = "import sysconfig, os; print(os.path.exists(sysconfig.get_path('include') + '/Python.h'))"


def installed() -> Iterator[tuple[str, str]]:
    """Yield version and path of each usable Python on PATH and among pyenv's, once per minor version."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for version in VERSIONS:
        found = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"{version}.*/bin/python{version}")))]
        for path in filter(None, found):
            # The shims of pyenv are on PATH for versions that are not chosen too, and then fail.
            done = subprocess.run([path, "-c", _HAS_HEADERS], capture_output=True, text=True, check=False)
            if done.returncode == 0 and done.stdout.strip() == "True":
                yield version, path
                break


def available(versions: Sequence[str] = VERSIONS) -> dict[str, str]:
    """Return the Pythons of these versions that are installed or can be fetched, with their paths."""
    found = dict(installed())
    for version in versions:
        path = found.get(version) or _by_uv(version) or _by_maven(version)
        if path is not None:
            found[version] = path
    return {version: found[version] for version in versions if version in found}


def _by_uv(version: str) -> str | None:
    subprocess.run([UV, "python", "install", "--quiet", version], capture_output=True, check=False)
    done = subprocess.run([UV, "python", "find", version], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _by_maven(version: str) -> str | None:
    """Fetch a build for Linux and unpack it."""
    maven = shutil.which("mvn")
    if version not in MAVEN or maven is None or (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return None
    home = FETCHED / MAVEN[version]
    program = home / "org" / "bytedeco" / "cpython" / "linux-x86_64" / "bin" / f"python{version}"
    if not program.exists():
        artifact = f"org.bytedeco:cpython:{MAVEN[version]}:jar:linux-x86_64"
        copy = [maven, "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={FETCHED}"]
        FETCHED.mkdir(parents=True, exist_ok=True)
        if subprocess.run(copy, cwd=FETCHED, capture_output=True, check=False).returncode != 0:
            return None
        archive = FETCHED / f"cpython-{MAVEN[version]}-linux-x86_64.jar"
        with zipfile.ZipFile(archive) as files:
            files.extractall(home)
        archive.unlink()
        for file in program.parent.iterdir():
            file.chmod(0o755)
    return str(program)


if __name__ == "__main__":
    for one, path in available().items():
        print(one, path)
