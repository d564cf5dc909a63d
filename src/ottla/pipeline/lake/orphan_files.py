"""Removes orphaned files: those of this table that no version of it names and no process is writing.

Files of other writers in the directory are never candidates (`TableMaintenance.own_files`). A load that was killed
leaves orphaned files. A load in progress has them too: those carry the id of a lease that is held, or an intent names
them (`intent.py`). Young files stay whatever their name, for the tasks of a load that was killed may outlive it on
another machine for a moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ottla.pipeline.lake.intent import intended_names
from ottla.pipeline.lake.lake_table import TableMaintenance
from ottla.pipeline.lake.lease import held_leases

GRACE_MS = 600_000


@dataclass(frozen=True, slots=True)
class RemovedOrphans:
    """The number and size of the deleted files."""

    files: int
    size_bytes: int


def remove_orphans(table: TableMaintenance, *, now_ms: int, grace_ms: int = GRACE_MS) -> RemovedOrphans:
    """Delete the orphaned files of a table."""
    candidates = table.own_files()
    busy = held_leases(table.path)  # after the list of files and before that of the table: a load may end in between
    kept, intended = table.referenced_paths(), intended_names(table.path)
    files = size = 0
    for path in candidates:
        if str(path) in kept or path.name in intended or any(part in busy for part in path.stem.split("-")):
            continue
        if _age_ms(path, now_ms) < grace_ms:
            continue
        size += path.stat().st_size
        path.unlink(missing_ok=True)
        files += 1
    return RemovedOrphans(files, size)


def _age_ms(path: Path, now_ms: int) -> int:
    return now_ms - path.stat().st_mtime_ns // 1_000_000
