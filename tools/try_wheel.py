"""Tries a wheel as a user installs it, by each way of `WAYS`: a server has to serve a record that was produced."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from pythons import ROOT, UV

READY = re.compile(r"ottla ready: \S+:(\d+) ")
WAYS = {
    "clone": "pip install '.[cli,standard]'",
    "wheel": "pip install 'dist/WHEEL[cli,standard]'",
    "uvx": "uvx --from dist/WHEEL ottla server --dev",
    "pipx": "pipx run --spec dist/WHEEL ottla server --dev",
}
"""The ways of installation that the README names, and no other; WHEEL is the name of a wheel's file."""
BASE_MB_MAX = 25
COMPILED, PLAIN = "(compiled, ", "(plain "
"""What `ottla --version` says of the form."""
STATED = {PLAIN: r"^\| none \|.*\| (\d+) \|$", COMPILED: r"compiled it is (\d+) MB"}
"""Where docs/installation.md says how large the base installation is."""


def run(*command: str, **variables: str) -> str:
    """Run a command and return its output; its errors are shown."""
    print("$", " ".join(command), flush=True)
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, env=os.environ | variables).stdout


def stated_mb(form: str) -> int:
    """Return how large the base installation is according to docs/installation.md."""
    page = (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")
    found = re.search(STATED[form], page, re.MULTILINE)
    assert found is not None
    return int(found[1])


def missing(wheel: Path) -> list[str]:
    """Return the modules and data files of the packages under src that a wheel lacks."""
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    listed = run("git", "-C", str(ROOT), "ls-files", "src", "examples/access.log.gz").splitlines()
    wanted = [name.removeprefix("src/") for name in listed]
    wanted[wanted.index("examples/access.log.gz")] = "ottla/pipeline/data/access.log.gz"
    return sorted(set(wanted) - inside)


class Trial:
    """Tries a wheel in environments of its own; any surprise ends the program with a message."""

    def __init__(self, wheel: Path, python: str, scratch: Path, form: str) -> None:
        self._wheel, self._python, self._scratch, self._form = wheel, python, scratch, form
        self._seeds: set[str] = set()  # what is in a new environment

    def run(self) -> None:
        """Try the base installation, and that with extras."""
        if lacking := missing(self._wheel):
            raise SystemExit(f"{self._wheel.name} lacks {', '.join(lacking)}")
        base = self._installed(str(self._wheel))
        self._check_version(run(str(base / "bin" / "ottla"), "--version"))
        size = self._size_mb(base)
        if size >= BASE_MB_MAX:
            raise SystemExit(f"{self._wheel.name} installs {size:.1f} MB; less than {BASE_MB_MAX} are allowed")
        stated = stated_mb(self._form)
        if abs(size - stated) >= 1:
            raise SystemExit(f"{self._wheel.name} installs {size:.1f} MB; docs/installation.md says {stated}")
        whole = self._installed(self._words("wheel")[-1])
        whole_size = self._size_mb(whole)
        for environment in (base, whole):
            self.serve([str(environment / "bin" / "ottla"), "server"], client=whole / "bin" / "ottla")
        print(f"{self._wheel.name}: base {size:.1f} MB, with cli and standard {whole_size:.1f} MB", flush=True)

    def run_other_ways(self, tools: Path) -> None:
        """Try a clone, uvx and pipx, as the README shows them, with the programs of `tools`."""
        plain = {} if self._form == COMPILED else {"OTTLA_COMPILE": "0"}
        clone = self._installed(self._words("clone")[-1], **plain)
        self._check_version(run(str(clone / "bin" / "ottla"), "--version"))
        client = clone / "bin" / "ottla"
        self.serve([str(client), "server"], client=client)
        homes = {"PIPX_HOME": str(self._scratch / "pipx"), "UV_TOOL_DIR": str(self._scratch / "uvx")}
        python = ["--python", self._python]
        uvx, pipx = self._words("uvx"), self._words("pipx")
        for command in ([UV, "tool", "run", *python, *uvx[1:]], [str(tools / pipx[0]), pipx[1], *python, *pipx[2:]]):
            self._check_version(run(*command[: command.index("server")], "--version", **homes))
            self.serve(command, client=client, **homes)

    def _words(self, way: str) -> list[str]:
        return shlex.split(WAYS[way].replace("dist/WHEEL", str(self._wheel)))

    def _installed(self, what: str, **variables: str) -> Path:
        """Install with pip in a new environment."""
        environment = self._scratch / f"installed-{'with-extras' if what.endswith(']') else 'base'}"
        run(UV, "venv", "--quiet", "--seed", "--clear", "--python", self._python, str(environment))
        self._seeds = {entry.name for entry in packages_of(environment).iterdir()}
        pip = [str(environment / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, what], cwd=ROOT, check=True, env=os.environ | variables)
        return environment

    def _size_mb(self, environment: Path) -> float:
        """Return the size of the installed files without pip's own and bytecode, in units of 1,000,000 bytes."""
        packages = packages_of(environment)
        files = [file for file in packages.rglob("*") if file.relative_to(packages).parts[0] not in self._seeds]
        return sum(file.stat().st_size for file in files if file.is_file() and file.suffix != ".pyc") / 1e6

    def _check_version(self, reported: str) -> None:
        if self._form not in reported:
            raise SystemExit(f"{self._wheel.name} reports {reported.strip()!r}; {self._form!r} was expected")

    def serve(self, command: Sequence[str], *, client: Path, **variables: str) -> None:
        """Pass a record through a server that this command starts."""
        data = self._scratch / "data"
        options = ["--port", "0", "--data", str(data)]
        print("$", " ".join([*command, *options]), flush=True)
        server = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, text=True, env=os.environ | variables, start_new_session=True
        )
        try:
            assert server.stdout is not None
            ready = next(filter(None, map(READY.search, server.stdout)), None)
            if ready is None:
                raise SystemExit(f"{self._wheel.name}: the server ended with exit code {server.wait()}")
            to = ("--brokers", f"127.0.0.1:{ready[1]}")
            run(str(client), "topic", "create", "tried", *to)
            subprocess.run([str(client), "produce", "tried", *to], input="a record\n", text=True, check=True)
            read = run(str(client), "consume", "tried", "--from", "start", "--count", "1", *to)
            if "a record" not in read:
                raise SystemExit(f"{self._wheel.name} returned {read!r} instead of the record")
        finally:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGTERM)  # uvx and pipx wait for the server, which is their child
            server.wait(60)
            shutil.rmtree(data, ignore_errors=True)


def packages_of(environment: Path) -> Path:
    """Return the directory of an environment's packages."""
    (packages,) = environment.glob("lib/python3.*/site-packages")
    return packages


def main() -> int:
    """Try a wheel of dist with a Python."""
    wheel, python = Path(sys.argv[1]).resolve(), sys.argv[2]
    with tempfile.TemporaryDirectory(prefix="ottla-try-") as name:
        Trial(wheel, python, Path(name), PLAIN if "py3-none-any" in wheel.name else COMPILED).run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
