"""Loads the compiled form of the hot modules where it was built from exactly the sources beside it.

`tools/compile_modules.py` compiles them with mypyc into one shared library in `ottla/_compiled/` and writes a manifest
with a hash of every source. `install` compares the hashes: after an edit, a rename or a deletion the plain source runs
and one line on stderr says how to rebuild. A compiled class is laid out for the other compiled classes, so that the
modules are taken together or not at all. `OTTLA_PLAIN=1` chooses the plain source. See docs/design/build.md.

The loops over bytes (`records/_*.py`) are compiled one by one, by Cython; `fastest` chooses between a loop's two forms
in the same way. See docs/design/build.md.
"""

from __future__ import annotations

import _imp
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from types import ModuleType

ROOT = os.path.dirname(os.path.abspath(__file__))
LIBRARY = "ottla__mypyc"
SUFFIX = EXTENSION_SUFFIXES[0]
REBUILD = "make compile"


class CompiledModules:
    """Finds and loads modules in the shared library, by the names in its manifest."""

    def __init__(self, library: str, names: frozenset[str]) -> None:
        self.library = library
        self.names = names

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - the signature of a finder
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the spec of a compiled module, or None for any other."""
        if name not in self.names:
            return None
        return ModuleSpec(name, self, origin=self.library)  # type: ignore[arg-type] # importlib.abc is not imported yet

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Create and run a compiled module; the library has one entry point for each."""
        entry = "ottla_entry_" + spec.name.replace(".", "___")
        module = _imp.create_dynamic(ModuleSpec(entry, None, origin=self.library))
        sys.modules.pop(entry, None)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: creating a compiled module has run it."""


class Manifest:
    """The record of one build: which modules it compiled, from which sources, and what stayed plain and why."""

    def __init__(self, text: str) -> None:
        self.compiled: dict[str, str] = {}
        self.plain: dict[str, str] = {}
        self.hashes: dict[str, str] = {}
        """Path under the package -> hash of the source, of every module that decided what the build is."""
        self.build = ""
        for line in text.splitlines():
            kind, _, rest = line.partition(" ")
            match kind:
                case "compiled" | "read":
                    name, path, digest = rest.split(" ")
                    self.hashes[path] = digest
                    if kind == "compiled":
                        self.compiled[name] = path
                case "plain":
                    name, _, reason = rest.partition(" ")
                    self.plain[name] = reason
                case "build":
                    self.build = rest

    def changed(self, root: str) -> list[str]:
        """List the sources that differ from those that were compiled."""
        return [path for path, digest in self.hashes.items() if hash_of(os.path.join(root, path)) != digest]


def hash_of(path: str) -> str:
    """Return the hash of a source file as manifests write it; empty for a file that cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return _imp.source_hash(0, file.read()).hex()
    except OSError:
        return ""


def manifest_path(directory: str) -> str:
    """Return where the manifest of this Python's build is."""
    return os.path.join(directory, f"manifest{SUFFIX}.txt")


def read_manifest(directory: str) -> Manifest | None:
    """Read the manifest of this Python's build, if there is one."""
    try:
        with open(manifest_path(directory), encoding="utf-8") as file:
            return Manifest(file.read())
    except OSError:
        return None


def _is_plain_wanted() -> bool:
    return os.environ.get("OTTLA_PLAIN") == "1"


def _warn(problem: str) -> None:
    print(f"ottla: {problem}. The plain source runs instead. Rebuild with: {REBUILD}", file=sys.stderr)


def install(directory: str = os.path.join(ROOT, "_compiled")) -> None:
    """Make the compiled modules importable if they were built from the present sources."""
    if _is_plain_wanted():
        return
    manifest = read_manifest(directory)
    if manifest is None:
        return
    if changed := manifest.changed(ROOT):
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        _warn(f"the compiled modules are stale: {changed[0]}{more} changed after the build")
        return
    library = os.path.join(directory, LIBRARY + SUFFIX)
    try:
        sys.modules[LIBRARY] = _imp.create_dynamic(ModuleSpec(LIBRARY, None, origin=library))
    except ImportError as error:
        _warn(f"the compiled modules cannot be loaded ({error})")
        return
    sys.meta_path.insert(0, CompiledModules(library, frozenset(manifest.compiled)))


def loop_hash(source: str) -> str:
    """Return the hash of a loop as its compiled form keeps it: of its source and of the types beside it."""
    return hash_of(source) + hash_of(source.removesuffix(".py") + ".pxd")


def fastest(plain: ModuleType) -> ModuleType:
    """Return the compiled form of a loop if it was built from the present source, otherwise the loop's plain module."""
    if _is_plain_wanted():
        return plain
    try:
        loop = importlib.import_module(f"{plain.__name__}_compiled")
    except ImportError:
        return plain
    if getattr(loop, "SOURCE_HASH", "") == loop_hash(str(plain.__file__)):
        return loop
    _warn(f"the compiled form of {plain.__name__} is stale: its source changed after the build")
    return plain


def _plain_loops() -> list[str]:
    records = os.path.join(ROOT, "records")
    names = [f"ottla.records.{name[:-4]}" for name in os.listdir(records) if name.endswith(".pxd")]
    return [name for name in names if fastest(loop := importlib.import_module(name)) is loop]


def is_plain() -> bool:
    """Return whether the hot modules run as plain Python."""
    return not any(isinstance(finder, CompiledModules) for finder in sys.meta_path)


def is_plain_unasked() -> bool:
    """Return whether they do so for want of a build, and not by `OTTLA_PLAIN=1`."""
    return is_plain() and not _is_plain_wanted()


def form() -> str:
    """Describe which form of the hot modules this process runs."""
    python = f"{sys.implementation.name.replace('cp', 'CP')} {sys.version.split()[0]}"
    if is_plain():
        return f"plain Python, {python}"
    manifest = read_manifest(os.path.join(ROOT, "_compiled"))
    plain = sorted([*(manifest.plain if manifest else ()), *_plain_loops()])
    return f"compiled, {python}" + (f"; plain: {', '.join(plain)}" if plain else "")
