"""Names the table formats, and detects which of them a store holds, without importing a library of any."""

from __future__ import annotations

import re
from enum import StrEnum

from ottla.pipeline.lake.lake_store import LakeStore

_DELTA = re.compile(r"_delta_log/([0-9][^/]*\.json|_last_checkpoint)")
_ICEBERG = re.compile(r"metadata/[^/]*\.metadata\.json")


class TableFormat(StrEnum):
    """The format of a lake's tables."""

    DELTA = "delta"
    ICEBERG = "iceberg"


def formats_at(table: LakeStore) -> set[TableFormat]:
    """Return the formats whose metadata a store holds."""
    found = set()
    if any(_DELTA.fullmatch(entry.key) for entry in table.objects("_delta_log/")):
        found.add(TableFormat.DELTA)
    if any(_ICEBERG.fullmatch(entry.key) for entry in table.objects("metadata/")):
        found.add(TableFormat.ICEBERG)
    return found
