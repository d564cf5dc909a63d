"""Loads the function `crc32c` without the package around it, which imports 60 modules for its version and its program.

They cost a tenth of the start of a broker: docs/design/startup.md.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Protocol

PACKAGE, EXTENSION = "crc32c", "_crc32c"


class Crc32c(Protocol):
    """Computes the CRC-32C of data, or continues that of the data before."""

    def __call__(self, data: bytes | bytearray | memoryview, crc: int = 0, /) -> int:
        """Return the checksum."""


def _load() -> Crc32c:
    package = PathFinder.find_spec(PACKAGE)
    places = package and package.submodule_search_locations
    found = PathFinder.find_spec(f"{PACKAGE}.{EXTENSION}", places) if places else None
    if found is None or found.loader is None:  # a version that is cut differently
        from crc32c import crc32c as function

        return function
    module = module_from_spec(found)
    found.loader.exec_module(module)
    loaded: Crc32c = module.crc32c
    return loaded


crc32c = _load()
