"""Lists the checksums of the indexes that a clean stop leaves, for the copies of small files.

Of the segment that is written the indexes change until the stop; from then on they have a checksum too.
"""

from __future__ import annotations

from ottla.core.files import FileSystem
from ottla.storage.file_names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX
from ottla.storage.integrity.metadata_backup import BackedUpFile, MetadataBackup, backup_of
from ottla.storage.log.partition_log import PartitionLog

_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


def index_copies(files: FileSystem, log: PartitionLog) -> dict[str, BackedUpFile]:
    """Read the indexes of a log that was closed. Raises OSError."""
    paths = [log.active.path(suffix) for suffix in _SUFFIXES]
    found = {f"{log.directory.name}/{path.name}": backup_of(files, path, keep_text=False) for path in paths}
    return {name: copy for name, copy in found.items() if copy is not None}


def copies_of_last_stop(backup: MetadataBackup, log: PartitionLog) -> dict[str, BackedUpFile]:
    """Return what the last clean stop noted of a log that has not changed since; empty if it noted nothing."""
    names = [f"{log.directory.name}/{log.active.path(suffix).name}" for suffix in _SUFFIXES]
    return {name: backup.entries[name] for name in names if name in backup.entries}
