"""Names the table formats, without importing a library of any."""

from __future__ import annotations

from enum import StrEnum


class TableFormat(StrEnum):
    """The format of a lake's tables."""

    DELTA = "delta"
    ICEBERG = "iceberg"
