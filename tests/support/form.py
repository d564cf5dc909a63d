"""The form in which a test process runs the hot modules: compiled where that form is built from the present sources."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path

from ottla import compiled


def is_compiled() -> bool:
    """Whether this process runs the compiled form."""
    return compiled.LIBRARY in sys.modules


def import_compiled_modules() -> None:
    """Import every compiled module now: pytest would import a module with doctests from its source."""
    manifest = compiled.read_manifest(str(Path(compiled.ROOT, "_compiled"))) if is_compiled() else None
    for name in manifest.compiled if manifest else ():
        importlib.import_module(name)


def problem() -> str:
    """Why this process runs the plain form although it was not chosen and this machine can compile; empty if it does not."""
    if is_compiled() or os.environ.get("OTTLA_PLAIN") == "1" or shutil.which("cc") is None:
        return ""
    return (
        "The tests would run in the plain form: the compiled form of the hot modules is missing or older than their sources. "
        "Run: make compile (or choose the plain form: OTTLA_PLAIN=1)"
    )
