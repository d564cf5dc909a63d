"""Holds a lake in a directory: durable by fsync, atomic by rename and link, leased by a lock of the file system.

A lease is a file in the private directory, locked as long as its owner lives: the system releases the lock when a
process dies, for whatever reason.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ottla.core.files import SystemFiles
from ottla.core.runtime import new_uuid
from ottla.pipeline.lake.lake_store import PRIVATE, Lease, LeaseTaken, ObjectChanged, ObjectExists, StoredObject

_SUFFIX = ".lease"
_LOCK = PRIVATE + "put.lock"


@dataclass(frozen=True, slots=True)
class LocalStore:
    """A `LakeStore` in a directory, which need not exist before something is written."""

    root: Path

    is_remote = False

    def __post_init__(self) -> None:
        """Make the path absolute."""
        object.__setattr__(self, "root", self.root.absolute())

    @property
    def url(self) -> str:
        """Return the path."""
        return str(self.root)

    @property
    def name(self) -> str:
        """Return the directory's name."""
        return self.root.name

    def below(self, name: str) -> LocalStore:
        """Return the store of a directory in this one."""
        return LocalStore(self.root / name)

    def sibling(self, name: str) -> LocalStore:
        """Return the store of a directory beside this one."""
        return LocalStore(self.root.with_name(name))

    def at(self, location: str) -> LocalStore:
        """Return the store of another directory."""
        return LocalStore(Path(location.removeprefix("file://")))

    def with_credentials(self, options: Mapping[str, str]) -> LocalStore:  # noqa: ARG002
        """Return this store: a directory needs none."""
        return self

    def location(self, key: str) -> str:
        """Return the absolute path."""
        return str(self.root / key)

    def key(self, location: str) -> str | None:
        """Return the path relative to this directory."""
        path = Path(location.removeprefix("file://"))  # `pyiceberg` takes what follows as it is
        return str(path.relative_to(self.root)) if path.is_relative_to(self.root) else None

    def head(self, key: str) -> StoredObject | None:
        """Ask the file system."""
        try:
            return _described(key, os.stat(self.root / key))  # noqa: PTH116 - one call for all
        except (FileNotFoundError, NotADirectoryError):
            return None

    def objects(self, prefix: str = "") -> Iterator[StoredObject]:
        """Walk the directories."""
        keys = [
            (str((Path(directory) / name).relative_to(self.root)))
            for directory, _, names in os.walk(self.root / prefix)
            for name in names
        ]
        for key in sorted(keys):
            if (described := self.head(key)) is not None:  # it may be gone by now
                yield described

    def directories(self) -> list[str]:
        """List the directories in this one."""
        return sorted(path.name for path in self.root.iterdir() if path.is_dir()) if self.root.is_dir() else []

    def get(self, key: str, first: int = 0, end: int | None = None) -> bytes:
        """Read a file, or a part of it."""
        with (self.root / key).open("rb") as file:
            file.seek(first)
            return file.read() if end is None else file.read(end - first)

    def put(self, key: str, data: bytes) -> str:
        """Write a temporary file, sync it, and rename it."""
        path = self._ready(key)
        self._write_aside(path, data).rename(path)
        SystemFiles().sync_directory(path.parent)
        return self._tag(key)

    def put_if_absent(self, key: str, data: bytes) -> str:
        """Write a temporary file, sync it, and link the name to it, which fails if the name exists."""
        path = self._ready(key)
        aside = self._write_aside(path, data)
        try:
            os.link(aside, path)
        except FileExistsError:
            raise ObjectExists(str(path)) from None
        finally:
            aside.unlink()
            SystemFiles().sync_directory(path.parent)
        return self._tag(key)

    def put_if_unchanged(self, key: str, data: bytes, tag: str) -> str:
        """Compare and replace under a lock of this directory."""
        with self._locked():
            stored = self.head(key)
            if stored is None or stored.tag != tag:
                raise ObjectChanged(str(self.root / key))
            return self.put(key, data)

    def delete(self, key: str) -> None:
        """Remove a file."""
        (self.root / key).unlink(missing_ok=True)

    def delete_below(self, prefix: str) -> None:
        """Remove a directory."""
        shutil.rmtree(self.root / prefix, ignore_errors=True)

    def rename(self, key: str, new: str) -> None:
        """Rename a file, durably."""
        path = self._ready(new)
        (self.root / key).rename(path)
        SystemFiles().sync_directory(path.parent)

    def input(self, key: str) -> Any:
        """Open the file."""
        return pa.OSFile(str(self.root / key), "rb")

    def output(self, key: str) -> _LocalOutput:
        """Create the file."""
        return _LocalOutput(key, self._ready(key))

    def verify(self) -> None:
        """Do nothing: a file system links and renames atomically."""

    def sync_names(self, keys: Iterable[str]) -> None:
        """Sync the directories of the files and every one above, up to and with this one's parent."""
        directories = {self.root, self.root.parent}
        for key in keys:
            directories.update(
                directory for directory in (self.root / key).parents if directory.is_relative_to(self.root)
            )
        for directory in sorted(directories, key=lambda directory: -len(directory.parts)):
            SystemFiles().sync_directory(directory)

    def sync_written(self, keys: Iterable[str]) -> None:
        """Sync the files and their directories."""
        paths = list(keys)
        for key in paths:
            _sync_file(self.root / key)
        self.sync_names(paths)

    def note(self, key: str, text: str) -> None:
        """Write the file, and sync nothing."""
        path = self._ready(key)
        path.write_text(text)

    def library_options(self) -> Mapping[str, str]:
        """Return nothing: a path is enough."""
        return {}

    def library_errors(self) -> AbstractContextManager[None]:
        """Leave them as they are."""
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def lease(self, work: str) -> Iterator[Lease]:
        """Lock the lease's file."""
        path = self._ready(f"{PRIVATE}{work}{_SUFFIX}")
        mine = Lease(new_uuid().hex[:12], os.getpid(), socket.gethostname())
        try:
            lock = SystemFiles().lock(path)
        except BlockingIOError:
            holder = _holder(path)
            who = f"process {holder.pid} on {holder.host}" if holder else "another process"
            raise LeaseTaken(f"{who} is already at work on {self.name} ({work})") from None
        try:
            path.write_text(json.dumps(asdict(mine)))
            yield mine
        finally:
            lock.release()

    def held_leases(self) -> set[str]:
        """Try the locks."""
        ids = set()
        for path in (self.root / PRIVATE).glob(f"*{_SUFFIX}"):
            try:
                SystemFiles().lock(path).release()
            except BlockingIOError:
                if holder := _holder(path):
                    ids.add(holder.id)
        return ids

    def _ready(self, key: str) -> Path:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @staticmethod
    def _write_aside(path: Path, data: bytes) -> Path:
        aside = path.with_name(f"{path.name}.{new_uuid().hex[:12]}.tmp")
        file = SystemFiles().open(aside, create=True)
        try:
            file.append(data)
            file.sync()
        finally:
            file.close()
        return aside

    def _tag(self, key: str) -> str:
        stored = self.head(key)
        return "" if stored is None else stored.tag  # another process may have deleted it

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._ready(_LOCK).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class _LocalOutput:
    """An `Output` to a file, whose name no commit has yet."""

    def __init__(self, key: str, path: Path) -> None:
        self._key, self._path = key, path
        self.sink = pa.OSFile(str(path), "wb")

    def close(self) -> StoredObject:
        """Close and sync the file."""
        self.sink.close()
        _sync_file(self._path)
        return _described(self._key, os.stat(self._path))  # noqa: PTH116 - one call for all

    def abandon(self) -> None:
        """Close and remove the file."""
        self.sink.close()
        self._path.unlink(missing_ok=True)


def _described(key: str, status: os.stat_result) -> StoredObject:
    tag = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    return StoredObject(key, status.st_size, status.st_mtime_ns // 1_000_000, tag)


def _sync_file(path: Path) -> None:
    file = SystemFiles().open(path)
    try:
        file.sync()
    finally:
        file.close()


def _holder(path: Path) -> Lease | None:
    try:
        return Lease(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None  # taken this moment: its owner has not written its id yet
