"""Compiles the hot modules with mypyc into one shared library, in `src/ottla/_compiled/` or a directory named.

Which modules: the patterns in pyproject.toml, `[tool.hatch.build.targets.wheel.hooks.custom]`. A module that mypyc
refuses stays plain, with a line on stderr; so does everything where there is no C compiler. Nothing happens when the
sources, the patterns, mypyc and Python are those of the last build, and C that an earlier build compiled is taken from
`build/`. `ottla/compiled.py` loads the result and checks that it is not stale.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import importlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src"
PLUGIN = ROOT / "tools" / "mypy_plugin.py"
FLAGS = ("-O1", "-g0", "-w", "-DNDEBUG", "-fwrapv", "-fno-strict-aliasing", "-fvisibility=hidden")
# Of a message of mypy or mypyc: the file it stands for.
_REFUSED = re.compile(r"^(\S+\.py):\d+: (?:\w*[Ee]rror): *(.*)$", re.MULTILINE)


class CannotCompile(Exception):
    """This machine or this build environment lacks something; the message names it."""


def _loader() -> ModuleType:
    """Load `ottla/compiled.py` without the package, which would load an earlier build."""
    spec = importlib.util.spec_from_file_location("ottla_compiled", SOURCES / "ottla" / "compiled.py")
    if spec is None or spec.loader is None:
        raise CannotCompile("src/ottla/compiled.py is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings() -> dict[str, Any]:
    """Read the patterns from pyproject.toml."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found: dict[str, Any] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    return found


def selected() -> list[Path]:
    """List the sources to compile, relative to `src`."""
    patterns = settings()

    def matching(key: str) -> set[Path]:
        return {path for pattern in patterns[key] for path in SOURCES.glob(pattern) if path.name != "__init__.py"}

    return sorted(path.relative_to(SOURCES) for path in matching("compile") - matching("keep-plain"))


def module_name(path: Path) -> str:
    """Return the dotted name of a source relative to `src`."""
    return ".".join(path.with_suffix("").parts)


def read_by(paths: list[Path]) -> list[Path]:
    """List the plain modules of ours that the compiled ones import: their constants are compiled in."""
    found: set[Path] = set()
    for path in paths:
        for node in ast.walk(ast.parse((SOURCES / path).read_text())):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            files = (Path(*name.split(".")).with_suffix(".py") for name in names if name.split(".")[0] == "ottla")
            found.update(file for file in files if (SOURCES / file).is_file())
    return sorted(found - set(paths))


def with_plain_subclasses(paths: list[Path]) -> dict[Path, str]:
    """Find modules with a class that a plain module inherits from; a compiled class admits no plain subclass."""
    compiled = set(paths)
    found: dict[Path, str] = {}
    queue = [path.relative_to(SOURCES) for path in sorted(SOURCES.glob("ottla/**/*.py"))]
    queue = [path for path in queue if path not in compiled]
    while queue:
        plain = queue.pop()
        tree = ast.parse((SOURCES / plain).read_text())
        origin = {
            alias.asname or alias.name: (Path(*node.module.split(".")).with_suffix(".py"), alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }
        for node in ast.walk(tree):
            for base in node.bases if isinstance(node, ast.ClassDef) else ():
                path, name = origin.get(base.id, (None, "")) if isinstance(base, ast.Name) else (None, "")
                if path in compiled and path is not None and _is_native(path, name):
                    compiled.discard(path)
                    found[path] = f"{module_name(plain)} inherits from {name}"
                    queue.append(path)
    return found


def _is_native(path: Path, name: str) -> bool:
    """Return whether mypyc would give the class a layout of its own."""
    for node in ast.parse((SOURCES / path).read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            return not bases & {"Protocol", "NamedTuple", "TypedDict", "Enum", "IntEnum", "StrEnum"}
    return False


def build_key(paths: list[Path]) -> str:
    """Hash everything a build depends on."""
    from importlib.metadata import version

    key = hashlib.sha256()
    for part in (sys.version, version("mypy"), *FLAGS, _compiler(), Path(__file__).read_text(), PLUGIN.read_text()):
        key.update(part.encode() + b"\0")
    for path in [*paths, *read_by(paths)]:
        key.update(str(path).encode() + b"\0" + (SOURCES / path).read_bytes() + b"\0")
    return key.hexdigest()


def _compiler() -> str:
    """Return the C compiler's command. Raises CannotCompile."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise CannotCompile("this Python runs without the GIL")
    command = os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "cc")
    if shutil.which(shlex.split(command)[0]) is None:
        command = shutil.which("cc") or ""
    if not command:
        raise CannotCompile("no C compiler was found")
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        raise CannotCompile("Python's header files were not found")
    return command


def mypy_arguments(directory: Path) -> list[str]:
    """Return the options with which the modules are read: no settings but the plugin; writes a file to `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "mypy.ini"
    config.write_text(f"[mypy]\nplugins = {PLUGIN}:set_operators\n")
    return [f"--config-file={config}", f"--cache-dir={directory}/.mypy", "--ignore-missing-imports"]


def write_c(paths: list[Path], target: Path, library: str) -> tuple[list[Path], dict[Path, str]]:
    """Write C for the modules into `target`; returns those written, and those that mypyc refused with its reason."""
    try:
        importlib.import_module("setuptools")  # mypyc takes distutils from it
        from mypyc.build import mypycify
    except ImportError as error:
        raise CannotCompile(f"mypyc is not installed: {error}") from error
    kept, refused = list(paths), dict[Path, str]()
    here = Path.cwd()
    os.chdir(SOURCES)  # so that mypy names modules from here
    try:
        while kept:
            messages = io.StringIO()
            try:
                with contextlib.redirect_stdout(messages), contextlib.redirect_stderr(messages):
                    mypycify(
                        [*mypy_arguments(target), *map(str, kept)],
                        multi_file=True,
                        target_dir=str(target),
                        group_name=library.removesuffix("__mypyc"),
                    )
                return kept, refused
            except SystemExit:
                found = {Path(file): reason for file, reason in _REFUSED.findall(messages.getvalue())}
                bad = {file: reason for file, reason in found.items() if file in kept}
                if not bad:
                    raise CannotCompile(messages.getvalue().strip().replace("\n", " | ")[-500:]) from None
                refused |= bad
                kept = [path for path in kept if path not in bad]
    finally:
        os.chdir(here)
    raise CannotCompile("mypyc refused every module")


def write_entries(paths: list[Path], target: Path) -> None:
    """Write the entry points that `ottla/compiled.py` calls, one for each module."""
    lines = ["#include <Python.h>"]
    for path in paths:
        name = module_name(path).replace(".", "___")
        lines.append(f"extern PyObject *CPyInit_{name}(void);")
        lines.append(f"PyMODINIT_FUNC PyInit_ottla_entry_{name}(void) {{ return CPyInit_{name}(); }}")
    (target / "entries.c").write_text("\n".join(lines) + "\n")


def compile_c(target: Path, objects: Path, library: Path) -> None:
    """Compile every C file in `target` on all processors and link `library`."""
    import mypyc

    compiler = shlex.split(_compiler())
    runtime = Path(str(mypyc.__file__)).parent / "lib-rt"
    flags = [*shlex.split(str(sysconfig.get_config_var("CCSHARED") or "-fPIC")), *FLAGS]
    flags += [f"-I{target}", f"-I{runtime}", f"-I{sysconfig.get_path('include')}"]
    shared = hashlib.sha256("\0".join([*compiler, *flags, sys.version]).encode())
    for header in sorted(target.glob("*.h")):
        shared.update(header.read_bytes())
    objects.mkdir(parents=True, exist_ok=True)

    def compile_one(source: Path) -> Path:
        digest = shared.copy()
        digest.update(source.read_bytes())
        made = objects / f"{source.stem}-{digest.hexdigest()[:20]}.o"
        if not made.exists():
            fresh = made.with_suffix(".new")
            _run([*compiler, *flags, "-c", str(source), "-o", str(fresh)])
            fresh.replace(made)
        return made

    sources = sorted(target.glob("*.c"), key=lambda path: -path.stat().st_size)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        made = list(pool.map(compile_one, sources))
    for old in set(objects.iterdir()) - set(made):
        old.unlink()
    fresh = library.with_suffix(".new")
    link = [*compiler, "-shared", "-s", *shlex.split(str(sysconfig.get_config_var("CCSHARED") or "-fPIC"))]
    _run([*link, *map(str, made), "-o", str(fresh)])
    fresh.replace(library)  # never written in place: a process may have the old one mapped


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotCompile(f"the C compiler failed: {error}") from error
    if done.returncode:
        raise CannotCompile(f"the C compiler failed: {done.stderr.strip().splitlines()[:1]}")


def build(into: Path, work: Path) -> bool:
    """Compile into `into`, with intermediate files in `work`; returns whether there was anything to do."""
    loader = _loader()
    paths = selected()
    if not paths:
        raise CannotCompile("no module matches the patterns in pyproject.toml")
    key = build_key(paths)
    before = loader.read_manifest(str(into))
    library = into / f"{loader.LIBRARY}{loader.SUFFIX}"
    if before is not None and before.build == key and library.exists():
        return False
    into.mkdir(parents=True, exist_ok=True)
    Path(loader.manifest_path(str(into))).unlink(missing_ok=True)  # a failed build leaves the plain source
    target = work / "c"
    refused: dict[Path, str] = {}
    while True:
        refused |= with_plain_subclasses([path for path in paths if path not in refused])
        shutil.rmtree(target, ignore_errors=True)
        wanted = [path for path in paths if path not in refused]
        kept, rejected = write_c(wanted, target, loader.LIBRARY)
        refused |= rejected
        write_entries(kept, target)
        compile_c(target, work / "objects", library)
        write_manifest(Path(loader.manifest_path(str(into))), loader, key, kept, refused)
        failed = fails_to_run(into, kept)
        if failed is None:
            break
        Path(loader.manifest_path(str(into))).unlink()
        refused[failed[0]] = failed[1]
    if build_key(paths) != key:
        Path(loader.manifest_path(str(into))).unlink()
        raise CannotCompile("the sources changed while they were compiled; run `make compile` again")
    for file, reason in refused.items():
        print(f"ottla: {module_name(file)} stays plain Python: {reason}", file=sys.stderr)
    return True


def write_manifest(path: Path, loader: ModuleType, key: str, kept: list[Path], refused: dict[Path, str]) -> None:
    """Write which modules were compiled from which sources."""
    lines = [f"build {key}"]
    for kind, files in (("compiled", kept), ("read", read_by(kept))):
        for file in files:
            name = file.relative_to("ottla")
            lines.append(f"{kind} {module_name(file)} {name} {loader.hash_of(str(SOURCES / file))}")
    lines += [f"plain {module_name(file)} {reason}" for file, reason in refused.items()]
    path.write_text("\n".join(lines) + "\n")


def fails_to_run(into: Path, kept: list[Path]) -> tuple[Path, str] | None:
    """Import every compiled module in a new process; returns the first that fails and why.

    A build environment may lack Ottla's dependencies: what needs them is not tried there.
    """
    program = IMPORT_ALL.format(into=str(into), names=[module_name(path) for path in kept])
    environment = {**os.environ, "OTTLA_PLAIN": "1", "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode == 0:
        return None
    reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    for file in reversed(re.findall(r'File "(ottla/\S+\.py)", line \d+, in <module>', done.stderr)):
        if Path(file) in kept:
            return Path(file), reason
    raise CannotCompile(f"the compiled modules do not run: {reason}")


IMPORT_ALL = """
import importlib, os
from ottla import compiled
del os.environ["OTTLA_PLAIN"]
compiled.install({into!r})
for name in {names!r}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "ottla":
            raise
"""


def main() -> int:
    """Compile, or remove the compiled modules with `OTTLA_COMPILE=0`; succeeds in any case."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--into", type=Path, default=SOURCES / "ottla" / "_compiled", help="where the library goes")
    options = parser.parse_args()
    work = ROOT / "build" / f"compile-{sys.implementation.cache_tag}"
    if os.environ.get("OTTLA_COMPILE") == "0":
        shutil.rmtree(options.into, ignore_errors=True)
        return 0
    try:
        build(options.into, work)
    except CannotCompile as error:
        print(f"ottla: runs as plain Python: {error}", file=sys.stderr)
    except Exception as error:  # noqa: BLE001 - whatever a foreign machine lacks, the plain source works
        print(f"ottla: runs as plain Python ({type(error).__name__}: {error})", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
