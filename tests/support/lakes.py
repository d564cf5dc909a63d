"""Gives tests the directories of tables, and lakes and tables in directories."""

from __future__ import annotations

from pathlib import Path

from ottla.pipeline.lake.delta import DeltaLakeTable
from ottla.pipeline.lake.iceberg import IcebergLakeTable
from ottla.pipeline.lake.lake import Lake
from ottla.pipeline.lake.lake_table import LakeTable, TableMaintenance, TableReader
from ottla.pipeline.lake.local_store import LocalStore
from ottla.pipeline.lake.table_format import TableFormat


def directory_of(table: TableReader | TableMaintenance | Lake) -> Path:
    """Return the directory of a table or a lake that is in one."""
    assert isinstance(table.store, LocalStore)
    return table.store.root


def delta_in(directory: Path) -> LakeTable:
    """Return the Delta table of a directory."""
    return DeltaLakeTable(LocalStore(directory))


def iceberg_in(directory: Path) -> LakeTable:
    """Return the Iceberg table of a directory."""
    return IcebergLakeTable(LocalStore(directory))


def lake_in(directory: Path, table_format: TableFormat = TableFormat.DELTA) -> Lake:
    """Return the lake in a directory."""
    return Lake(LocalStore(directory), table_format)
