"""Keeps the files of brokers below a directory: of one broker in it, of several in one directory each.

One broker has the directory of `ottla server --data`. Several share a metadata store, in a file beside theirs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from ottla.core.files import Lock, SystemFiles
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore
from ottla.metadata_store.sqlite_file import FILE_NAME as METADATA_FILE
from ottla.storage.directories.log_directory import DirectoryInUse
from ottla.storage.small_files import LOCK, META_PROPERTIES

_FIRST_OF_SEVERAL = "broker-1"


def check_layout(path: Path, brokers: int) -> None:
    """Raise ValueError if a directory has the files of one broker and several are to start, or of several and one."""
    if brokers > 1 and (path / META_PROPERTIES).exists():
        raise ValueError(f"data={path}: these are the files of one broker; {brokers} need another directory")
    if brokers == 1 and (path / _FIRST_OF_SEVERAL).exists():
        raise ValueError(f"data={path}: these are the files of several brokers, of which one alone cannot start")


class StoreOnDisk:
    """The metadata store of several brokers. It is open until `close`, also while none of them runs."""

    def __init__(self, lock: Lock, store: EmbeddedMetadataStore) -> None:
        self._lock, self.store = lock, store
        self._session = store.session()

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open or create it. Raises DirectoryInUse, StorageError, OSError."""
        directory.mkdir(parents=True, exist_ok=True)
        try:
            lock = SystemFiles().lock(directory / LOCK)
        except BlockingIOError:
            raise DirectoryInUse(f"{directory} is in use by other brokers, perhaps of another process") from None
        try:
            return cls(lock, EmbeddedMetadataStore.open(directory / METADATA_FILE))
        except BaseException:
            lock.release()
            raise

    async def close(self) -> None:
        """Close the file. No broker runs."""
        try:
            await self._session.close()
        finally:
            self._lock.release()
