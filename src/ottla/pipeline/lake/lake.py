"""Finds the tables of a lake: one place, each table below it under its name."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ottla.pipeline.lake.catalog import Catalog
from ottla.pipeline.lake.delta import DeltaLakeTable
from ottla.pipeline.lake.iceberg import IcebergLakeTable
from ottla.pipeline.lake.lake_store import LakeStore
from ottla.pipeline.lake.lake_table import LakeTable
from ottla.pipeline.lake.table_format import TableFormat, formats_at

_QUARANTINE = "_quarantine"
_NO_TABLE_NAME = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True, slots=True)
class Lake:
    """The tables of one format in one store."""

    store: LakeStore
    table_format: TableFormat = TableFormat.DELTA
    catalog: Catalog | None = None
    """Of Iceberg tables; None: the file beside them."""

    def table(self, name: str) -> LakeTable:
        """Return a table by its name, whether it exists or not."""
        return table_at(self.store.below(name), self.table_format, catalog=self.catalog)

    def existing_table(self, name: str) -> LakeTable:
        """Return a table in the format that it has, which may be another than the lake's."""
        formats = formats_at(self.store.below(name))
        return (self if len(formats) != 1 else replace(self, table_format=formats.pop())).table(name)

    def table_names(self) -> list[str]:
        """Return the names of the tables there are, without the quarantines."""
        names = self.store.directories()
        found = [name for name in names if name + _QUARANTINE in names]
        return [
            name
            for name in found
            if formats_at(self.store.below(name)) <= {self.table_format} and self.table(name).exists()
        ]

    def quarantine(self, name: str) -> LakeTable:
        """Return the quarantine of a table: the records of its topics that were not parsed."""
        return self.table(name + _QUARANTINE)


def table_at(
    store: LakeStore, table_format: TableFormat, version: int | None = None, *, catalog: Catalog | None = None
) -> LakeTable:
    """Return the table whose files are in a store."""
    if table_format is TableFormat.DELTA:
        return DeltaLakeTable(store, version)
    return IcebergLakeTable(store, version, catalog)


def table_name(topic: str) -> str:
    """Return a topic's name as a table's: readers by SQL want letters, digits and underscores.

    >>> table_name("web-access.v2")
    'web_access_v2'
    """
    return _NO_TABLE_NAME.sub("_", topic)
