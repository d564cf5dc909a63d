"""Declares the port of a catalog of Iceberg tables, and the one that needs no server: a SQLite file in the lake.

A catalog knows the newest metadata file of each table by its name, and swaps it for a new one or refuses: that swap is
the commit. `pyiceberg` speaks to all kinds of catalogs; what it does not know is kept here: how to open one for a lake,
which of its errors say that another writer was first, and whether asking it would create it.

A catalog is a value, and opened for each use: nothing is kept between two commits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog as OpenCatalog

CATALOG_FILE = "catalog.db"
NAMESPACE = "lake"


class Catalog(Protocol):
    """Opens the catalog of a lake's Iceberg tables."""

    @property
    def namespace(self) -> tuple[str, ...]:
        """The namespace of the lake's tables."""
        ...

    def exists(self) -> bool:
        """Return whether there is a catalog to ask; asking creates none."""
        ...

    def open(self, io_properties: Mapping[str, str]) -> AbstractContextManager[OpenCatalog]:
        """Open the catalog; its tables are read and written with these properties."""
        ...

    def is_conflict(self, error: Exception) -> bool:
        """Return whether an error says that another writer holds the catalog: the commit is tried again."""
        ...


@dataclass(frozen=True, slots=True)
class SqliteCatalog:
    """A `Catalog` in a SQLite file in a directory of tables."""

    root: Path

    namespace = (NAMESPACE,)

    def exists(self) -> bool:
        """Return whether there is the file."""
        return (self.root / CATALOG_FILE).exists()

    @contextlib.contextmanager
    def open(self, io_properties: Mapping[str, str]) -> Iterator[OpenCatalog]:
        """Open the file, and create it if there is none."""
        self.root.mkdir(parents=True, exist_ok=True)
        with _sql_catalog(f"sqlite:///{self.root / CATALOG_FILE}", f"file://{self.root}", io_properties) as catalog:
            yield catalog

    def is_conflict(self, error: Exception) -> bool:
        """Return whether the file is locked, by another's commit."""
        return _is_locked(error)


@contextlib.contextmanager
def _sql_catalog(uri: str, warehouse: str, io_properties: Mapping[str, str]) -> Iterator[Any]:
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("ottla", uri=uri, warehouse=warehouse, **io_properties)
    try:
        yield catalog
    finally:
        catalog.close()


def _is_locked(error: Exception) -> bool:
    from sqlalchemy.exc import OperationalError

    return isinstance(error, OperationalError) and "locked" in str(error)
