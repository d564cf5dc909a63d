"""Declares the port of a catalog of Iceberg tables, and implements it: a SQLite file in the lake, or a server.

A catalog knows the newest metadata file of each table by its name, and swaps it for a new one or refuses: that swap is
the commit. `pyiceberg` speaks to all kinds of catalogs; what it does not know is kept here: how to open one for a lake,
which of its errors say that another writer was first, and whether asking it would create it.

A catalog is a value, and opened for each use: nothing is kept between two commits.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from ottla.pipeline.lake.lake_store import LakeStore
from ottla.pipeline.lake.local_store import LocalStore

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog as OpenCatalog

CATALOG_FILE = "catalog.db"
STORE = "ottla.store"
"""The property with the store of a table, for `iceberg_io.StoreIO`."""
IMPLEMENTATION = "ottla.pipeline.lake.iceberg_io.StoreIO"
NAMESPACE = "lake"
_SECRETS = ("credential", "token", "oauth2-server-uri", "scope", "auth")
_VARIABLE = "OTTLA_CATALOG_"
"""The beginning of the environment's names for what a job file does not contain: `OTTLA_CATALOG_CREDENTIAL`."""


class InvalidCatalog(ValueError):
    """A catalog's location is of no kind that is supported, or missing where a lake needs one."""


class Catalog(Protocol):
    """Opens the catalog of a lake's Iceberg tables."""

    @property
    def gives_credentials(self) -> bool:
        """Return True if it gives the credentials for the files of each table, which have no others then."""
        ...

    @property
    def namespace(self) -> tuple[str, ...]:
        """The namespace of the lake's tables."""
        ...

    def exists(self) -> bool:
        """Return whether there is a catalog to ask; asking creates none."""
        ...

    def open(self, io_properties: Mapping[str, Any]) -> AbstractContextManager[OpenCatalog]:
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
    gives_credentials = False

    def exists(self) -> bool:
        """Return whether there is the file."""
        return (self.root / CATALOG_FILE).exists()

    @contextlib.contextmanager
    def open(self, io_properties: Mapping[str, Any]) -> Iterator[OpenCatalog]:
        """Open the file, and create it if there is none."""
        self.root.mkdir(parents=True, exist_ok=True)
        with _sql_catalog(f"sqlite:///{self.root / CATALOG_FILE}", f"file://{self.root}", io_properties) as catalog:
            yield catalog

    def is_conflict(self, error: Exception) -> bool:
        """Return whether the file is locked, by another's commit."""
        return _is_locked(error)


@dataclass(frozen=True, slots=True)
class SqlCatalog:
    """A `Catalog` in a database that SQLAlchemy reaches by a URL: `postgresql+psycopg://host/catalog`, or SQLite."""

    uri: str = field(repr=False)
    """It may contain a password."""
    warehouse: str

    namespace = (NAMESPACE,)
    gives_credentials = False

    def exists(self) -> bool:
        """Return whether there is the file, if it is one."""
        path = self.uri.partition("sqlite:///")[2]
        return not path or Path(path).exists()

    def open(self, io_properties: Mapping[str, Any]) -> AbstractContextManager[OpenCatalog]:
        """Connect, and create the two tables of the catalog if there are none."""
        return _sql_catalog(self.uri, self.warehouse, io_properties)

    def is_conflict(self, error: Exception) -> bool:
        """Return whether the database is locked, by another's commit."""
        return _is_locked(error)


@dataclass(frozen=True, slots=True)
class RestCatalog:
    """A `Catalog` that a server has, by Iceberg's REST protocol: Polaris, Nessie, Glue, Unity and others.

    Credentials are in the environment, as `OTTLA_CATALOG_CREDENTIAL` (`id:secret`, for OAuth2) or
    `OTTLA_CATALOG_TOKEN`; Glue's are AWS's own.
    """

    uri: str
    warehouse: str | None = None
    namespace: tuple[str, ...] = (NAMESPACE,)
    gives_credentials: bool = False
    region: str | None = None
    """Of a server that wants requests signed as AWS does (Glue); None for others."""

    def exists(self) -> bool:
        """Return True: the server was there before the lake."""
        return True

    @contextlib.contextmanager
    def open(self, io_properties: Mapping[str, Any]) -> Iterator[OpenCatalog]:
        """Ask the server for its configuration."""
        from pyiceberg.catalog.rest import RestCatalog as Client

        properties: dict[str, Any] = {"uri": self.uri, **io_properties}
        if self.warehouse is not None:
            properties["warehouse"] = self.warehouse
        if not self.gives_credentials:
            properties["header.X-Iceberg-Access-Delegation"] = ""
        if self.region is not None:
            signed = {"sigv4-enabled": "true", "signing-region": self.region, "signing-name": "glue"}
            properties |= {f"rest.{name}": value for name, value in signed.items()}
        for name in _SECRETS:
            if value := os.environ.get(_VARIABLE + name.upper().replace("-", "_")):
                properties[name] = value
        catalog = Client("ottla", **properties)
        try:
            yield catalog
        finally:
            catalog.close()

    def is_conflict(self, error: Exception) -> bool:  # noqa: ARG002
        """Return False: the server says so itself."""
        return False


def catalog_of(
    location: str | None,
    store: LakeStore,
    *,
    warehouse: str | None = None,
    namespace: str = NAMESPACE,
    gives_credentials: bool = False,
    region: str | None = None,
) -> Catalog:
    """Return the catalog of a lake by its location: a URL of a REST server or a database. Raises InvalidCatalog."""
    if location is None:
        if isinstance(store, LocalStore):
            return SqliteCatalog(store.root)
        raise InvalidCatalog(
            f"Iceberg tables at {store.url} need a catalog: the URL of a REST catalog (https://host/path) or of a "
            "database (postgresql+psycopg://host/name, sqlite:////path)"
        )
    scheme = urlsplit(location).scheme
    if scheme in {"http", "https"}:
        return RestCatalog(location, warehouse, tuple(namespace.split(".")), gives_credentials, region)
    if scheme.partition("+")[0] in {"postgresql", "sqlite", "mysql"}:
        return SqlCatalog(location, warehouse or store.url)
    raise InvalidCatalog(
        f"a catalog on {scheme or 'a path'} is not supported. Name the URL of a REST catalog (https://host/path) or of "
        "a database (postgresql+psycopg://host/name, sqlite:////path)"
    )


@contextlib.contextmanager
def _sql_catalog(uri: str, warehouse: str, io_properties: Mapping[str, Any]) -> Iterator[Any]:
    from pyiceberg.catalog.sql import SqlCatalog as Client

    catalog = Client("ottla", uri=uri, warehouse=warehouse, **io_properties)
    try:
        yield catalog
    finally:
        catalog.close()


def _is_locked(error: Exception) -> bool:
    from sqlalchemy.exc import OperationalError

    return isinstance(error, OperationalError) and "locked" in str(error)
