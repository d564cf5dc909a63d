"""Plants a bug in the production code: a text replacement in one file, before it is imported.

Each bug is a realistic mistake. A simulation that does not find it within its seeds is no proof of anything. The text
must occur exactly once in the file; otherwise the bug has to be planted again where the code is now.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parents[2] / "src"


class PlantedBug(NamedTuple):
    """A mistake and the scenarios that find it."""

    number: int  # in the design's list
    title: str
    file: str  # below src/ottla
    before: str
    after: str
    brokers: int = 3
    replication: int = 3
    seeds: int = 2000  # within so many it must be found
    first: int = 1  # a seed near which it is found: the short version begins there


BUGS: tuple[PlantedBug, ...] = (
    PlantedBug(
        5,
        "the leader acknowledges before its flush",
        "replication/partition.py",
        'return log.flushed_offset if log.config.durability == "fsync" else log.end_offset',
        "return log.end_offset",
        brokers=1,
        replication=1,
    ),
    PlantedBug(
        7,
        "a failed fsync is tried again and believed",
        "storage/log/flush.py",
        "if error.errno in NO_HANDLES and not isinstance(error, SyncFailed):\n                self.refusal = error",
        "if True:\n                self.refusal = error",
        brokers=1,
        replication=1,
    ),
)


class CannotPlant(Exception):
    """The text to be replaced is not in the file exactly once."""


def find(name: str) -> PlantedBug:
    """Return the bug with this number."""
    return next(bug for bug in BUGS if str(bug.number) == name)


def check(bug: PlantedBug) -> str:
    """Return the file's text with the bug. Raises CannotPlant."""
    text = (SOURCE / "ottla" / bug.file).read_text()
    count = text.count(bug.before)
    if count != 1:
        raise CannotPlant(f"bug {bug.number} ({bug.title}): its text occurs {count} times in {bug.file}")
    return text.replace(bug.before, bug.after)


def plant(name: str) -> None:
    """Have the module be imported with the bug. Raises CannotPlant."""
    bug = find(name)
    module = "ottla." + bug.file.removesuffix(".py").replace("/", ".")
    if module in sys.modules:
        raise CannotPlant(f"{module} is imported already")
    sys.meta_path.insert(0, _Planter(module, SOURCE / "ottla" / bug.file, check(bug)))


class _Planter(importlib.abc.MetaPathFinder):
    """Finds one module, with another text."""

    def __init__(self, module: str, path: Path, text: str) -> None:
        self._module, self._path, self._text = module, path, text

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname != self._module:
            return None
        return importlib.util.spec_from_file_location(
            fullname, self._path, loader=_Loader(fullname, str(self._path), self._text)
        )


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a source file with another text, and caches nothing."""

    def __init__(self, fullname: str, path: str, text: str) -> None:
        super().__init__(fullname, path)
        self._text = text

    def get_data(self, path: str) -> bytes:
        """Return the changed text."""
        if not path.endswith(".py"):
            raise OSError("there is no cached bytecode of a planted bug")
        return self._text.encode()

    def set_data(self, *_: object, **__: object) -> None:
        """Write no bytecode: the next import must see the file as it is."""
