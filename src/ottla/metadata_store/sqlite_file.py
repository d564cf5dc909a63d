"""Stores the persistent nodes of the metadata tree in a SQLite file, and detects a file that is corrupt."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import NamedTuple

from ottla.core.errors import StorageError
from ottla.metadata_store.store import Node

FILE_NAME = "ottla-metadata.db"
"""In `metadata.log.dir` or the first log directory; Kafka's own tools ignore plain files that they do not know."""

EXPORTED_SUFFIX = ".exported"
"""Added to the file's name when the directory is exported to Kafka."""

_FORMAT = 2  # PRAGMA user_version: raised when the tables change
_SCHEMA = """
CREATE TABLE nodes (path TEXT PRIMARY KEY, value BLOB NOT NULL, version INT NOT NULL, created INT NOT NULL)
WITHOUT ROWID;
CREATE TABLE counter (last_commit INT NOT NULL);
INSERT INTO counter VALUES (0);
CREATE TABLE seal (digest BLOB NOT NULL);
"""
ADVICE = "Restore the file from a copy; docs/data-integrity.md explains what can be done without one"


class NodeRow(NamedTuple):
    """A node and the session that owns it."""

    node: Node
    owner: int  # the session an ephemeral node belongs to; 0 for the rest


class _DigestChange(NamedTuple):
    """The change that a commit makes to the digest of all rows."""

    rows: dict[str, int | None]  # by path: the digest of the new row, or None where none remains
    row_count: int
    combined: int

    def text(self, last_commit: int) -> bytes:
        """Return the digest that the file holds after this change."""
        content = b"%d %d %d" % (last_commit, self.row_count, self.combined)
        return hashlib.blake2b(content, digest_size=16).digest()


class _ContentDigest:
    """Detects rows that are missing, added or changed in the file: SQLite has no checksums of its own.

    The digests of all rows are combined by XOR, so a commit computes and copies only what it changes.
    """

    __slots__ = ("_combined", "_rows")

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._combined = 0

    def change(self, changed: Mapping[str, NodeRow | None]) -> _DigestChange:
        """Compute the digest after these rows are written; nothing changes here before `apply`."""
        rows: dict[str, int | None] = {}
        row_count, combined = len(self._rows), self._combined
        for path, entry in changed.items():
            old, new = self._rows.get(path), None if entry is None or entry.owner else _row_digest(path, entry.node)
            rows[path] = new
            row_count += (new is not None) - (old is not None)
            combined ^= (old or 0) ^ (new or 0)
        return _DigestChange(rows, row_count, combined)

    def apply(self, change: _DigestChange) -> None:
        """Make a change computed by `change` the current state."""
        for path, digest in change.rows.items():
            if digest is None:
                self._rows.pop(path, None)
            else:
                self._rows[path] = digest
        self._combined = change.combined


def _row_digest(path: str, node: Node) -> int:
    content = b"%s\0%d\0%d\0%s" % (path.encode(), node.version, node.created, node.value)
    return int.from_bytes(hashlib.blake2b(content, digest_size=16).digest(), "big")


class MetadataFile:
    """Reads and writes the SQLite file. The store's lock admits one thread at a time."""

    def __init__(self, path: PurePath) -> None:
        self._path = path
        self._digest = _ContentDigest()
        self._last_commit = 0
        self._last_commit_failed = False  # the next commit first checks that nothing of it is in the file
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=8)
        try:
            # Write-ahead: one sync a commit. Exclusive: the log directory is ours anyway, and no -shm file is needed.
            for pragma in (
                "locking_mode=EXCLUSIVE",
                "journal_mode=WAL",
                "synchronous=FULL",
                "cache_size=-256",
                "temp_store=MEMORY",
            ):
                self._connection.execute(f"PRAGMA {pragma}")
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            if version not in {0, _FORMAT}:
                raise StorageError(f"{path} has format {version}; this version of Ottla reads format {_FORMAT}")
            if version == 0:
                self._connection.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version={_FORMAT};COMMIT;")
            self._check_structure()
            self._identity = self._identity_on_disk()
        except BaseException:
            self._connection.close()
            raise

    def load(self) -> tuple[int, dict[str, NodeRow]]:
        """Read the number of the last commit and every node. Raises StorageError if rows are corrupt."""
        (last_commit,) = self._connection.execute("SELECT last_commit FROM counter").fetchone()
        rows = self._connection.execute("SELECT path, value, version, created FROM nodes").fetchall()
        if any([*map(type, row)] != [str, bytes, int, int] for row in rows):
            raise StorageError(f"the metadata store {self._path} is corrupt, a row has wrong types. {ADVICE}")
        node_rows = {
            path: NodeRow(Node(value, version, created, ephemeral=False), 0) for path, value, version, created in rows
        }
        read = self._digest.change(node_rows)
        stored = self._connection.execute("SELECT digest FROM seal").fetchone()
        is_unused = stored is None and last_commit == 0 and not node_rows  # the first commit writes the digest
        if not is_unused and stored != (read.text(last_commit),):
            raise StorageError(f"the metadata store {self._path} is corrupt, its digest does not match. {ADVICE}")
        self._digest.apply(read)
        self._last_commit = last_commit
        return last_commit, node_rows

    def _check_structure(self) -> None:
        """Raise StorageError if SQLite itself finds corrupt pages."""
        (verdict,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise StorageError(f"the metadata store {self._path} is corrupt, {verdict}. {ADVICE}")

    def write(self, commit: int, changed: dict[str, NodeRow | None]) -> None:
        """Write the changes up to a commit in one transaction; after an error none. Raises sqlite3.Error or OSError.

        The file must still exist: a write through the open handle succeeds even after the file was removed.
        """
        if self._identity_on_disk() != self._identity:
            raise FileNotFoundError(f"{self._path} was replaced by another file")
        gone = [(path,) for path, entry in changed.items() if entry is None or entry.owner]
        rows = [(path, *entry.node[:3]) for path, entry in changed.items() if entry is not None and not entry.owner]
        digest = self._digest.change(changed)
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        try:
            if self._last_commit_failed and execute("SELECT last_commit FROM counter").fetchone() != (
                self._last_commit,
            ):
                raise sqlite3.DatabaseError("the file contains a commit that failed")
            self._connection.executemany("DELETE FROM nodes WHERE path = ?", gone)
            self._connection.executemany("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?)", rows)
            execute("UPDATE counter SET last_commit = ?", (commit,))
            execute("DELETE FROM seal")
            execute("INSERT INTO seal VALUES (?)", (digest.text(commit),))
            execute("COMMIT")
            self._last_commit, self._last_commit_failed = commit, False
            self._digest.apply(digest)
        except BaseException:
            self._last_commit_failed = True
            with contextlib.suppress(sqlite3.Error):  # SQLite may have rolled back by itself (disk full)
                execute("ROLLBACK")
            raise

    def checkpoint(self) -> None:
        """Move the content of the write-ahead log into the main file. After an error the next call tries again."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _identity_on_disk(self) -> tuple[int, int]:
        there = Path(self._path).stat()
        return there.st_dev, there.st_ino

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
