"""Compiles the hot modules where the machine can; elsewhere the package is plain Python and works the same.

`tools/compile_modules.py` does it with mypyc, for an editable install beside the sources and for a wheel in a scratch
directory. The loops over records are compiled by Cython from the same `.py` with the types of the `.pxd` beside it.
No compiler, no headers, any failure: a line on stderr, and a build that succeeds. `OTTLA_COMPILE=0` leaves all of it
out, and `later` leaves mypyc's part to `make compile`. Why not by the plug-in hatch-mypyc: docs/decisions/0053.
"""

from __future__ import annotations

import _imp
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileModules(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled modules to a wheel; an editable install gets them beside their sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files."""
        is_editable = version == "editable"
        records = Path(self.root, "src", "ottla", "records")
        for types in sorted(records.glob("_*.pxd")):
            self._add_loop(types.stem, records, build_data, is_editable=is_editable)
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

    def _add_loop(self, loop: str, records: Path, build_data: dict[str, Any], *, is_editable: bool) -> None:
        file_name = f"{loop}_compiled{sysconfig.get_config_var('EXT_SUFFIX')}"
        target = records / file_name if is_editable else Path(tempfile.mkdtemp(prefix="ottla-build-"), file_name)
        if os.environ.get("OTTLA_COMPILE") == "0":
            target.unlink(missing_ok=True)
            return
        try:
            compile_loop(loop, records, target)
        except Exception as error:  # noqa: BLE001 - whatever a foreign machine lacks, the plain source works
            target.unlink(missing_ok=True)
            print(f"ottla: {loop} stays plain Python ({type(error).__name__}: {error})", file=sys.stderr)  # noqa: T201
            return
        if not is_editable:
            self._include(target, f"ottla/records/{file_name}", build_data)

    def _include(self, file: Path, name: str, build_data: dict[str, Any]) -> None:
        build_data["force_include"][str(file)] = name
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def compile_loop(loop: str, records: Path, target: Path) -> None:
    """Build `target` from a loop's `.py` and `.pxd` in the directory `records`. Raises whatever failed."""
    from Cython.Compiler.Main import CompilationOptions, compile_single

    name = f"{loop}_compiled"
    source, types = (records / f"{loop}.py").read_bytes(), (records / f"{loop}.pxd").read_bytes()
    built_from = _imp.source_hash(0, source).hex() + _imp.source_hash(0, types).hex()
    with tempfile.TemporaryDirectory(prefix="ottla-build-") as scratch:
        module = Path(scratch, f"{name}.py")
        # The module keeps the hash of its source: ottla/compiled.py compares it, so that no stale one runs.
        module.write_bytes(source + f'\n\nSOURCE_HASH = "{built_from}"\n'.encode())
        Path(scratch, f"{name}.pxd").write_bytes(types)
        directives = {"language_level": 3, "annotation_typing": False}
        result = compile_single(str(module), CompilationOptions(compiler_directives=directives), full_module_name=name)
        if result.num_errors:
            raise RuntimeError("Cython found errors")
        built = Path(scratch, target.name)
        subprocess.run(_c_command(result.c_file, built), check=True, capture_output=True, timeout=300)
        fresh = target.with_suffix(".new")
        fresh.write_bytes(built.read_bytes())
        fresh.replace(target)  # never written in place: a process may have the old one mapped


def _c_command(source: str, target: Path) -> list[str]:
    """Return the command that compiles and links as this Python's own extensions are, in one call."""
    link = shlex.split(str(sysconfig.get_config_var("LDSHARED") or "cc -shared"))
    flags = shlex.split(str(sysconfig.get_config_var("CCSHARED") or "-fPIC"))
    return [*link, *flags, "-O3", "-w", f"-I{sysconfig.get_path('include')}", source, "-o", str(target)]
