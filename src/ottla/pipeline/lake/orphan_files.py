"""Removes orphaned files: those of this table that no version of it names and no process is writing.

Files of other writers in the directory are never candidates (`TableMaintenance.own_files`). A load that was killed
leaves orphaned files. A load in progress has them too: those carry the id of a lease that is held, or an intent names
them (`intent.py`). Young files stay whatever their name, for the tasks of a load that was killed may outlive it on
another machine for a moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from ottla.pipeline.lake.intent import intended_names
from ottla.pipeline.lake.lake_table import TableMaintenance

GRACE_MS = 600_000


@dataclass(frozen=True, slots=True)
class RemovedOrphans:
    """The number and size of the deleted files."""

    files: int
    size_bytes: int


def remove_orphans(table: TableMaintenance, *, now_ms: int, grace_ms: int = GRACE_MS) -> RemovedOrphans:
    """Delete the orphaned files of a table."""
    candidates = table.own_files()
    busy = table.store.held_leases()  # after the list of files and before the table's: a load may end in between
    kept, intended = table.referenced_keys(), intended_names(table.store)
    files = size = 0
    for file in candidates:
        path = PurePosixPath(file.key)
        if file.key in kept or path.name in intended or any(part in busy for part in path.stem.split("-")):
            continue
        if now_ms - file.modified_ms < grace_ms:
            continue
        size += file.size_bytes
        table.store.delete(file.key)
        files += 1
    return RemovedOrphans(files, size)
