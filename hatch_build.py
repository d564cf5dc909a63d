"""Compiles the hot modules where the machine can; elsewhere the package is plain Python and works the same.

`tools/compile_modules.py` does it with mypyc, for an editable install beside the sources and for a wheel in a scratch
directory. The loops over records are compiled by Cython from the same `.py` with the types of the `.pxd` beside it.
No compiler, no headers, any failure: a line on stderr, and a build that succeeds. `OTTLA_COMPILE=0` leaves all of it
out, and `later` leaves mypyc's part to `make compile`. Why not by the plug-in hatch-mypyc: docs/design/build.md.
"""

from __future__ import annotations

import _imp
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileModules(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled modules to a wheel; an editable install gets them beside their sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files."""
        is_editable = version == "editable"
        records = Path(self.root, "src", "ottla", "records")
        with ThreadPoolExecutor() as compilers:
            loops = [types.stem for types in sorted(records.glob("_*.pxd"))]
            begun = [self._begin_loop(loop, records, compilers, is_editable=is_editable) for loop in loops]
        for loop, target, build in begun:
            if self._is_built(loop, target, build) and not is_editable:
                self._include(target, f"ottla/records/{target.name}", build_data)
        self._add_modules(build_data, is_editable=is_editable)

    def _add_modules(self, build_data: dict[str, Any], *, is_editable: bool) -> None:
        if os.environ.get("OTTLA_COMPILE") == "later":
            return
        command = [sys.executable, str(Path(self.root, "tools", "compile_modules.py"))]
        if is_editable:
            subprocess.run(command, check=True)
            return
        made = Path(tempfile.mkdtemp(prefix="ottla-build-"))
        subprocess.run([*command, "--into", str(made)], check=True)
        for file in made.glob("*"):  # none if it runs as plain Python
            self._include(file, f"ottla/_compiled/{file.name}", build_data)

    def _begin_loop(
        self, loop: str, records: Path, compilers: ThreadPoolExecutor, *, is_editable: bool
    ) -> tuple[str, Path, Future[None]]:
        """Begin to build a loop unless it is there, newer than all it is made from."""
        file_name = f"{loop}_compiled{sysconfig.get_config_var('EXT_SUFFIX')}"
        target = records / file_name if is_editable else Path(tempfile.mkdtemp(prefix="ottla-build-"), file_name)
        made_from = (records / f"{loop}.py", records / f"{loop}.pxd", Path(self.root, "hatch_build.py"))
        done: Future[None] = Future()
        try:
            if os.environ.get("OTTLA_COMPILE") == "0":
                target.unlink(missing_ok=True)
            elif not target.exists() or target.stat().st_mtime <= max(path.stat().st_mtime for path in made_from):
                return loop, target, compile_loop(loop, records, target, compilers)
            done.set_result(None)
        except Exception as error:  # noqa: BLE001 - whatever a foreign machine lacks, the plain source works
            done.set_exception(error)
        return loop, target, done

    def _is_built(self, loop: str, target: Path, build: Future[None]) -> bool:
        """Whether a loop is built; says why it stays plain Python where that failed."""
        error = build.exception()
        if error is not None:
            target.unlink(missing_ok=True)
            print(f"ottla: {loop} stays plain Python ({type(error).__name__}: {error})", file=sys.stderr)  # noqa: T201
        return target.exists()

    def _include(self, file: Path, name: str, build_data: dict[str, Any]) -> None:
        build_data["force_include"][str(file)] = name
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def compile_loop(loop: str, records: Path, target: Path, compilers: ThreadPoolExecutor) -> Future[None]:
    """Translate a loop's `.py` and `.pxd` in the directory `records` to C; a thread of `compilers` builds `target`.

    Cython runs in the caller's thread: its state belongs to one. Raises whatever failed, or returns it.
    """
    from Cython.Compiler.Main import CompilationOptions, compile_single

    name = f"{loop}_compiled"
    source, types = (records / f"{loop}.py").read_bytes(), (records / f"{loop}.pxd").read_bytes()
    built_from = _imp.source_hash(0, source).hex() + _imp.source_hash(0, types).hex()
    scratch = tempfile.TemporaryDirectory(prefix="ottla-build-")
    module = Path(scratch.name, f"{name}.py")
    # The module keeps the hash of its source: ottla/compiled.py compares it, so that no stale one runs.
    module.write_bytes(source + f'\n\nSOURCE_HASH = "{built_from}"\n'.encode())
    Path(scratch.name, f"{name}.pxd").write_bytes(types)
    directives = {"language_level": 3, "annotation_typing": False}
    result = compile_single(str(module), CompilationOptions(compiler_directives=directives), full_module_name=name)
    if result.num_errors:
        raise RuntimeError("Cython found errors")

    def build() -> None:
        with scratch:
            built = Path(scratch.name, target.name)
            subprocess.run(_c_command(result.c_file, built), check=True, capture_output=True, timeout=300)
            fresh = target.with_suffix(".new")
            fresh.write_bytes(built.read_bytes())
            fresh.replace(target)  # never written in place: a process may have the old one mapped

    return compilers.submit(build)


def _c_command(source: str, target: Path) -> list[str]:
    """Return the command that compiles and links as this Python's own extensions are, in one call."""
    link = shlex.split(str(sysconfig.get_config_var("LDSHARED") or "cc -shared"))
    flags = shlex.split(str(sysconfig.get_config_var("CCSHARED") or "-fPIC"))
    return [*link, *flags, "-O3", "-w", f"-I{sysconfig.get_path('include')}", source, "-o", str(target)]
