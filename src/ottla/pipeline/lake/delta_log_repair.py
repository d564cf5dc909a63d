"""Makes Delta's log durable after a commit, and repairs it after a power cut.

`deltalake` leaves both to the operating system. Within the moment from a commit to its fsync a power cut may leave a
log entry, or a checkpoint, with its name and without its bytes. Such a commit was never acknowledged: it is renamed to
`*.torn`. A checkpoint only repeats the log: a torn one is renamed too, with the file that points to it, and readers
read the log again. Object stores tear nothing, so there is nothing to do.
"""

from __future__ import annotations

import json
import re

from ottla.pipeline.lake.lake_store import LakeStore

LOG = "_delta_log/"
_ENTRY = re.compile(r"[0-9]{20}\.json")
_CHECKPOINT = re.compile(r"[0-9]{20}\.checkpoint\.parquet")
_LAST_CHECKPOINT = LOG + "_last_checkpoint"
_PARQUET_ENDS = b"PAR1"
_NEWEST = 2
"""A change may write two entries."""


def sync_log(table: LakeStore) -> None:
    """Make the newest entries durable, and the newest checkpoint, and their names."""
    if table.is_remote:
        return
    newest = [*_log(table, _ENTRY)[-_NEWEST:], *_log(table, _CHECKPOINT)[-1:]]
    if table.head(_LAST_CHECKPOINT) is not None:
        newest.append(_LAST_CHECKPOINT)
    table.sync_written(newest)


def repair_log(table: LakeStore) -> None:
    """Set aside what a power cut took the bytes of."""
    if table.is_remote:
        return
    if table.head(_LAST_CHECKPOINT) is not None and not _is_whole_checkpoint(table):
        for key in [*_log(table, _CHECKPOINT)[-1:], _LAST_CHECKPOINT]:
            table.rename(key, key + ".torn")
    entries = _log(table, _ENTRY)
    if entries and not _is_whole_entry(table.get(entries[-1])):
        table.rename(entries[-1], entries[-1].removesuffix(".json") + ".torn")


def _log(table: LakeStore, names: re.Pattern[str]) -> list[str]:
    return [entry.key for entry in table.objects(LOG) if names.fullmatch(entry.key.removeprefix(LOG))]


def _is_whole_entry(entry: bytes) -> bool:
    lines = entry.splitlines()
    try:
        return bool(lines) and all(isinstance(json.loads(line), dict) for line in (lines[0], lines[-1]))
    except ValueError:
        return False


def _is_whole_checkpoint(table: LakeStore) -> bool:
    try:
        pointer = json.loads(table.get(_LAST_CHECKPOINT))
        version, size = int(pointer["version"]), pointer.get("sizeInBytes")
        if pointer.get("parts"):
            return True  # another writer's, in several files: not validated here
        key = f"{LOG}{version:020}.checkpoint.parquet"
        checkpoint = table.head(key)
        if checkpoint is None or checkpoint.size_bytes < len(_PARQUET_ENDS):
            return False
        ends = table.get(key, checkpoint.size_bytes - len(_PARQUET_ENDS))
        return ends == _PARQUET_ENDS and (size is None or checkpoint.size_bytes == size)
    except (OSError, ValueError, KeyError, TypeError):
        return False
