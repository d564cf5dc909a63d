"""Makes Delta's log durable after a commit, and repairs it after a power cut.

`deltalake` leaves both to the operating system. Within the moment from a commit to its fsync a power cut may leave a
log entry, or a checkpoint, with its name and without its bytes. Such a commit was never acknowledged: it is renamed to
`*.torn`. A checkpoint only repeats the log: a torn one is renamed too, with the file that points to it, and readers
read the log again.
"""

from __future__ import annotations

import json
from pathlib import Path

from ottla.core.files import SystemFiles
from ottla.pipeline.lake.durable import sync_file

LOG = "_delta_log"
_ENTRY = "[0-9]" * 20 + ".json"
_CHECKPOINT = "[0-9]" * 20 + ".checkpoint.parquet"
_LAST_CHECKPOINT = "_last_checkpoint"
_PARQUET_ENDS = b"PAR1"
_NEWEST = 2
"""A change may write two entries."""


def sync_log(table: Path) -> None:
    """Make the newest entries durable, and the newest checkpoint, and their names."""
    log = table / LOG
    newest = [*sorted(log.glob(_ENTRY))[-_NEWEST:], *sorted(log.glob(_CHECKPOINT))[-1:]]
    if (hint := log / _LAST_CHECKPOINT).exists():
        newest.append(hint)
    for path in newest:
        sync_file(path)
    SystemFiles().sync_directory(log)
    SystemFiles().sync_directory(table)


def repair_log(table: Path) -> None:
    """Set aside what a power cut took the bytes of."""
    log = table / LOG
    if (hint := log / _LAST_CHECKPOINT).exists() and not _is_whole_checkpoint(log, hint):
        for path in [*sorted(log.glob(_CHECKPOINT))[-1:], hint]:
            path.rename(path.with_name(path.name + ".torn"))
    entries = sorted(log.glob(_ENTRY))
    if entries and not _is_whole_entry(entries[-1]):
        entries[-1].rename(entries[-1].with_suffix(".torn"))


def _is_whole_entry(entry: Path) -> bool:
    lines = entry.read_bytes().splitlines()
    try:
        return bool(lines) and all(isinstance(json.loads(line), dict) for line in (lines[0], lines[-1]))
    except ValueError:
        return False


def _is_whole_checkpoint(log: Path, hint: Path) -> bool:
    try:
        pointer = json.loads(hint.read_bytes())
        version, size = int(pointer["version"]), pointer.get("sizeInBytes")
        if pointer.get("parts"):
            return True  # another writer's, in several files: not validated here
        with (log / f"{version:020}.checkpoint.parquet").open("rb") as file:
            file.seek(-len(_PARQUET_ENDS), 2)
            ends = file.read()
            return ends == _PARQUET_ENDS and (size is None or file.tell() == size)
    except (OSError, ValueError, KeyError, TypeError):
        return False
