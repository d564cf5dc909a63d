"""Names the table formats, and detects which of them a directory holds, without importing a library of any."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path


class TableFormat(StrEnum):
    """The format of a lake's tables."""

    DELTA = "delta"
    ICEBERG = "iceberg"


def formats_at(directory: Path) -> set[TableFormat]:
    """Return the formats whose metadata a directory holds."""
    found = set()
    if any((directory / "_delta_log").glob("[0-9]*.json")) or (directory / "_delta_log" / "_last_checkpoint").exists():
        found.add(TableFormat.DELTA)
    if any((directory / "metadata").glob("*.metadata.json")):
        found.add(TableFormat.ICEBERG)
    return found
