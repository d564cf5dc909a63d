"""Finds the tables of a lake: one directory, each table a directory in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ottla.pipeline.lake.delta import DeltaLakeTable
from ottla.pipeline.lake.iceberg import IcebergLakeTable
from ottla.pipeline.lake.lake_table import LakeTable
from ottla.pipeline.lake.table_format import TableFormat, formats_at
from ottla.pipeline.locations import local_path

_QUARANTINE = "_quarantine"
_NO_TABLE_NAME = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True, slots=True)
class Lake:
    """A directory of tables of one format."""

    root: Path
    table_format: TableFormat = TableFormat.DELTA

    def __post_init__(self) -> None:
        """Convert a root that is a URI. Raises UnsupportedLocation."""
        object.__setattr__(self, "root", local_path(str(self.root)))

    def table(self, name: str) -> LakeTable:
        """Return a table by its name, whether it exists or not."""
        return (DeltaLakeTable if self.table_format is TableFormat.DELTA else IcebergLakeTable)(self.root / name)

    def existing_table(self, name: str) -> LakeTable:
        """Return a table in the format that it has, which may be another than the lake's."""
        formats = formats_at(self.root / name)
        return (self if len(formats) != 1 else Lake(self.root, *formats)).table(name)

    def table_names(self) -> list[str]:
        """Return the names of the tables there are, without the quarantines."""
        if not self.root.is_dir():
            return []
        names = {path.name for path in self.root.iterdir() if path.is_dir()}
        found = [name for name in sorted(names) if name + _QUARANTINE in names]
        return [
            name for name in found if formats_at(self.root / name) <= {self.table_format} and self.table(name).exists()
        ]

    def quarantine(self, name: str) -> LakeTable:
        """Return the quarantine of a table: the records of its topics that were not parsed."""
        return self.table(name + _QUARANTINE)


def table_name(topic: str) -> str:
    """Return a topic's name as a table's: readers by SQL want letters, digits and underscores.

    >>> table_name("web-access.v2")
    'web_access_v2'
    """
    return _NO_TABLE_NAME.sub("_", topic)
