"""Compiles the loops over records where the machine can; elsewhere the package is pure Python and works the same.

`src/ottla/records/_scan.py`, `_compact.py` and `_walk.py` are ordinary Python. With Cython and a C compiler they
are also built as `_scan_compiled` and so on, with the types of their `.pxd`, and `records/record_reader.py`,
`compaction.py` and `batch_scan.py` take those. No compiler, no headers, any failure: a line on stderr, and a build
that succeeds.
`OTTLA_COMPILE=0` leaves them out.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LOOPS = ("_scan", "_compact", "_walk")


class CompileScanner(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled module to a wheel; an editable install gets it beside its source."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files."""
        room = Path(self.root, "src", "ottla", "records")
        is_editable = version == "editable"
        for loop in LOOPS:
            self._add(loop, room, build_data, is_editable=is_editable)

    def _add(self, loop: str, room: Path, build_data: dict[str, Any], *, is_editable: bool) -> None:
        file_name = f"{loop}_compiled{sysconfig.get_config_var('EXT_SUFFIX')}"
        target = room / file_name if is_editable else Path(tempfile.mkdtemp(prefix="ottla-build-"), file_name)
        if os.environ.get("OTTLA_COMPILE") == "0":
            target.unlink(missing_ok=True)
            return
        try:
            compile_loop(loop, room, target)
        except Exception as error:  # noqa: BLE001 - whatever a foreign machine lacks, the pure twin works
            target.unlink(missing_ok=True)
            print(f"ottla: {loop} stays plain Python ({type(error).__name__}: {error})", file=sys.stderr)  # noqa: T201
            return
        if not is_editable:
            build_data["force_include"][str(target)] = f"ottla/records/{file_name}"
            build_data["pure_python"] = False
            build_data["infer_tag"] = True


def compile_loop(loop: str, room: Path, target: Path) -> None:
    """Build `target` from a loop's `.py` and `.pxd` in the room. Raises whatever went wrong."""
    from Cython.Compiler.Main import CompilationOptions, compile_single

    name = f"{loop}_compiled"
    source = (room / f"{loop}.py").read_text()
    with tempfile.TemporaryDirectory(prefix="ottla-build-") as scratch:
        module = Path(scratch, f"{name}.py")
        # The module remembers what it was made of, so that a test can tell a stale one.
        module.write_text(f'{source}\n\nSOURCE_SHA256 = "{hashlib.sha256(source.encode()).hexdigest()}"\n')
        Path(scratch, f"{name}.pxd").write_text((room / f"{loop}.pxd").read_text())
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
    """How this Python's own extensions are compiled and linked, in one call."""
    link = shlex.split(str(sysconfig.get_config_var("LDSHARED") or "cc -shared"))
    flags = shlex.split(str(sysconfig.get_config_var("CCSHARED") or "-fPIC"))
    return [*link, *flags, "-O2", "-w", f"-I{sysconfig.get_path('include')}", source, "-o", str(target)]
