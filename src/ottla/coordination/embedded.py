"""The metadata store of one machine: a tree in memory, behind it a SQLite file that a power cut cannot tear.

One `Tree` is the truth; each broker has a `Session` with it (a server has one, a simulated cluster several). Reading
costs a dictionary look-up. A commit is checked against the tree, written to the file in a worker thread as one SQLite
transaction, and only then visible: what anybody has seen would survive a power cut. Without a file the tree lives in
memory only and nothing ever waits, which is what simulations and tests want.

Ephemeral nodes are never written to the file: a process that died left no session behind. The commit counter is
written with every commit, so that a node's `created` grows across restarts (it is a broker's epoch).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from ottla.core.errors import StorageError

from .store import (
    ANY_VERSION,
    NO_VERSION,
    Check,
    Create,
    Delete,
    NoChildrenAllowed,
    Node,
    NodeExists,
    NodeHasChildren,
    NoSuchNode,
    Op,
    Put,
    SessionLost,
    VersionConflict,
    is_within,
    parent_of,
)

FILE_NAME = "__ottla_metadata.db"
"""Inside the first log directory; Kafka's own tools pass by plain files they do not know."""

_FORMAT = 2  # PRAGMA user_version: raised when the tables change
_SCHEMA = """
CREATE TABLE nodes (path TEXT PRIMARY KEY, value BLOB NOT NULL, version INT NOT NULL, created INT NOT NULL)
WITHOUT ROWID;
CREATE TABLE counter (last_commit INT NOT NULL);
INSERT INTO counter VALUES (0);
CREATE TABLE seal (digest BLOB NOT NULL);
"""
_SEAL_FORMAT_1 = "BEGIN;CREATE TABLE seal (digest BLOB NOT NULL);PRAGMA user_version=2;COMMIT;"
_SETTLE_SECONDS = 1.0  # a crowd of commits shares the second sync that this costs
_DAMAGED = "put a copy of the file back (docs/data-integrity.md says what can be done without one)"
_PASSING = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR_WRITE})
"""No room, no file handle, a quota used up: nothing was written, and the next commit may be. SQLite reports a failed
fsync as another error, also where the disk was full."""

logger = logging.getLogger(__name__)
_ROOT = Node(b"", 0, 0, ephemeral=False)


class _Entry(NamedTuple):
    node: Node
    owner: int  # the session an ephemeral node belongs to; 0 for the rest


class _Draft:
    """A commit in the making: the tree as it would be. The tree itself is untouched until the file has the change."""

    __slots__ = ("_children", "_commit", "_nodes", "_session", "changed", "counted")

    def __init__(self, tree: Tree, commit: int, session: int) -> None:
        self._nodes, self._children = tree.nodes, tree.names_below
        self._commit, self._session = commit, session
        self.changed: dict[str, _Entry | None] = {}
        self.counted: dict[str, int] = {}  # parent -> change in its number of children

    def do(self, op: Op) -> int:
        match op:
            case Create(path, value, ephemeral):
                self._create(path, value, ephemeral=ephemeral)
                return 0
            case Put(path, value, expected):
                entry = self._expect(path, expected)
                node = entry.node._replace(value=value, version=entry.node.version + 1)
                self.changed[path] = _Entry(node, entry.owner)
                return node.version
            case Delete(path, expected):
                self._expect(path, expected)
                self.remove(path)
                return NO_VERSION
            case Check(path, expected):
                self._expect(path, expected)
                return NO_VERSION

    def remove(self, path: str) -> None:
        if len(self._children.get(path, ())) + self.counted.get(path, 0) > 0:
            raise NodeHasChildren(path)
        self.changed[path] = None
        self._count(path, -1)

    def _create(self, path: str, value: bytes, *, ephemeral: bool) -> None:
        assert path[:1] == "/" != path[-1:], f"{path!r} is no path"
        if self._entry(path) is not None:
            raise NodeExists(path)
        parent = self._entry(parent_of(path))
        if parent is None:
            raise NoSuchNode(parent_of(path))
        if parent.owner:
            raise NoChildrenAllowed(parent_of(path))
        node = Node(value, 0, self._commit, ephemeral)
        self.changed[path] = _Entry(node, self._session if ephemeral else 0)
        self._count(path, 1)

    def _entry(self, path: str) -> _Entry | None:
        return self.changed[path] if path in self.changed else self._nodes.get(path)

    def _expect(self, path: str, version: int) -> _Entry:
        entry = self._entry(path)
        if entry is None:
            raise NoSuchNode(path)
        if version not in {ANY_VERSION, entry.node.version}:
            raise VersionConflict(path)
        return entry

    def _count(self, path: str, by: int) -> None:
        parent = parent_of(path)
        self.counted[parent] = self.counted.get(parent, 0) + by


class _Seal:
    """What tells whether all rows are there and as they were written: SQLite has no checksums of its own."""

    __slots__ = ("_digests", "_together")

    def __init__(self) -> None:
        self._digests: dict[str, int] = {}
        self._together = 0  # the digests of all rows, whatever their order

    def after(self, changed: Mapping[str, _Entry | None]) -> _Seal:
        """The seal once these rows are written; this one is given up only then."""
        new = _Seal()
        new._digests, new._together = dict(self._digests), self._together
        for path, entry in changed.items():
            new._together ^= new._digests.pop(path, 0)
            if entry is not None and not entry.owner:
                node = entry.node
                content = b"%s\0%d\0%d\0%s" % (path.encode(), node.version, node.created, node.value)
                digest = int.from_bytes(hashlib.blake2b(content, digest_size=16).digest(), "big")
                new._digests[path] = digest
                new._together ^= digest
        return new

    def text(self, last_commit: int) -> bytes:
        """What is written."""
        content = b"%d %d %d" % (last_commit, len(self._digests), self._together)
        return hashlib.blake2b(content, digest_size=16).digest()


class _Database:
    """The SQLite file. One thread at a time: the tree's lock sees to that."""

    def __init__(self, path: PurePath) -> None:
        self._path = path
        self._seal = _Seal()
        self._is_doubtful = False  # the last commit failed: before the next one the file must say that it did
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=8)
        try:
            # Write-ahead: one sync a commit. Exclusive: the log directory is ours anyway, and no -shm file is needed.
            for pragma in (
                "locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL", "cache_size=-256",
                "temp_store=MEMORY",
            ):  # fmt: skip
                self._connection.execute(f"PRAGMA {pragma}")
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            if version > _FORMAT:
                raise StorageError(f"{path} has format {version}; this version of Ottla knows up to {_FORMAT}")
            if version == 0:
                self._connection.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version={_FORMAT};COMMIT;")
            elif version == 1:
                self._connection.executescript(_SEAL_FORMAT_1)
            self._check_structure()
            self._identity = self._identity_on_disk()
        except BaseException:
            self._connection.close()
            raise

    def load(self) -> tuple[int, dict[str, _Entry]]:
        """The last commit's number and every node."""
        (last_commit,) = self._connection.execute("SELECT last_commit FROM counter").fetchone()
        rows = self._connection.execute("SELECT path, value, version, created FROM nodes").fetchall()
        if any([*map(type, row)] != [str, bytes, int, int] for row in rows):
            raise StorageError(f"the metadata store {self._path} is damaged, a row has other types: {_DAMAGED}")
        found = {
            path: _Entry(Node(value, version, created, ephemeral=False), 0) for path, value, version, created in rows
        }
        self._seal = _Seal().after(found)
        seal = self._connection.execute("SELECT digest FROM seal").fetchone()
        if seal is None:  # written by a version that had no seal yet, or before the first commit
            with contextlib.suppress(sqlite3.Error):  # the first commit writes it too
                self._connection.execute("INSERT INTO seal VALUES (?)", (self._seal.text(last_commit),))
        elif seal != (self._seal.text(last_commit),):
            raise StorageError(f"the metadata store {self._path} is damaged, it is not what was written: {_DAMAGED}")
        return last_commit, found

    def _check_structure(self) -> None:
        """Raises StorageError where SQLite itself can see that pages are damaged."""
        (verdict,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise StorageError(f"the metadata store {self._path} is damaged, {verdict}: {_DAMAGED}")

    def write(self, commit: int, changed: dict[str, _Entry | None]) -> None:
        """Everything in one transaction; nothing of it after an error. Raises sqlite3.Error or OSError.

        The file must still be there: our handle would write into one that was removed as if nothing had happened.
        """
        if self._identity_on_disk() != self._identity:
            raise FileNotFoundError(f"{self._path} was replaced by another file")
        gone = [(path,) for path, entry in changed.items() if entry is None or entry.owner]
        rows = [(path, *entry.node[:3]) for path, entry in changed.items() if entry is not None and not entry.owner]
        seal = self._seal.after(changed)
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        try:
            if self._is_doubtful and execute("SELECT last_commit FROM counter").fetchone() != (commit - 1,):
                raise sqlite3.DatabaseError("a commit that failed is in the file all the same")
            self._connection.executemany("DELETE FROM nodes WHERE path = ?", gone)
            self._connection.executemany("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?)", rows)
            execute("UPDATE counter SET last_commit = ?", (commit,))
            execute("DELETE FROM seal")
            execute("INSERT INTO seal VALUES (?)", (seal.text(commit),))
            execute("COMMIT")
            self._is_doubtful = False
            self._seal = seal
        except BaseException:
            self._is_doubtful = True
            with contextlib.suppress(sqlite3.Error):  # SQLite may have rolled back by itself (disk full)
                execute("ROLLBACK")
            raise

    def settle(self) -> None:
        """Move what is in the write-ahead log into the file itself. A disk that refuses is asked again next time."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _identity_on_disk(self) -> tuple[int, int]:
        there = Path(self._path).stat()
        return there.st_dev, there.st_ino

    def close(self) -> None:
        self._connection.close()


class Tree:
    """The nodes, who watches them, and the file behind them."""

    def __init__(self, database: _Database | None = None) -> None:
        self._database = database
        self._last_commit, self.nodes = database.load() if database else (0, {})
        self.nodes["/"] = _Entry(_ROOT, 0)
        self.names_below: dict[str, set[str]] = {}
        for path in self.nodes:
            self._link(path)
        self._broken: BaseException | None = None
        self._is_refusing = False
        self.settle_seconds = _SETTLE_SECONDS
        self._settling: asyncio.Task[None] | None = None
        self._is_settled = True
        self._writing = asyncio.Lock()
        self._watchers: set[_Watcher] = set()
        self._last_session = 0
        self._sessions: set[Session] = set()

    @classmethod
    def open(cls, path: PurePath) -> Tree:
        """Open or create the file. Raises `StorageError` naming the file if it cannot be read."""
        try:
            database = _Database(path)
            try:
                return cls(database)
            except BaseException:
                database.close()
                raise
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise StorageError(f"the metadata store {path} cannot be opened, {error}: {_DAMAGED}") from error

    def abandon(self) -> None:
        """Close the file without having used the tree: whoever only wanted to know whether it is sound."""
        if self._database is not None:
            self._database.close()

    def session(self) -> Session:
        """A new participant, alive from now until it is closed or expired."""
        self._last_session += 1
        session = Session(self, self._last_session)
        self._sessions.add(session)
        return session

    async def commit(self, session: Session, ops: Sequence[Op]) -> list[int]:
        """Check, write, show; one commit at a time, in the order they came."""
        async with self._writing:
            if session not in self._sessions:
                raise SessionLost(ops[0].path if ops else "/")
            draft = _Draft(self, self._last_commit + 1, session.number)
            results = [draft.do(op) for op in ops]
            await self._apply(draft)
            return results

    async def end(self, session: Session) -> None:
        """Remove what the session left, and close the file with the last one."""
        if session not in self._sessions:
            return
        self._sessions.discard(session)
        async with self._writing:
            draft = _Draft(self, self._last_commit + 1, session.number)
            for path in [path for path, entry in self.nodes.items() if entry.owner == session.number]:
                draft.remove(path)
            self._show(draft.changed)  # ephemeral only: the file knew nothing of them
            if not self._sessions and self._database is not None:
                if self._settling is not None:
                    self._settling.cancel()
                await asyncio.to_thread(self._database.close)

    async def _apply(self, draft: _Draft) -> None:
        if not draft.changed:
            return
        cancelled = await self._write(draft.changed) if self._database is not None else None
        if self._database is not None:
            self._is_settled = False
            if self._settling is None or self._settling.done():
                self._settling = asyncio.get_running_loop().create_task(self._settle(self._database))
        self._last_commit += 1
        self._show(draft.changed)
        if cancelled is not None:
            raise cancelled

    async def _settle(self, database: _Database) -> None:
        """A while after a commit: a damaged frame ends the log there, and commits would be lost without a word."""
        while not self._is_settled:
            await asyncio.sleep(self.settle_seconds)
            async with self._writing:
                self._is_settled = True
                await asyncio.to_thread(database.settle)

    async def _write(self, changed: dict[str, _Entry | None]) -> asyncio.CancelledError | None:
        """Wait for the disk. A caller may give up, but then the commit is still finished and shown before it hears."""
        if self._broken is not None:
            raise StorageError("the metadata store failed earlier and takes no changes") from self._broken
        assert self._database is not None
        work = asyncio.get_running_loop().run_in_executor(None, self._database.write, self._last_commit + 1, changed)
        cancelled = None
        while not work.done():
            try:
                await asyncio.wait((work,))
            except asyncio.CancelledError as error:
                cancelled = error
        try:
            work.result()
        except (sqlite3.Error, OSError) as error:
            self._refused(error)
            raise StorageError(f"the metadata store could not write: {error}") from error
        if self._is_refusing:
            self._is_refusing = False
            logger.info("the metadata store takes changes again")
        return cancelled

    def _refused(self, error: sqlite3.Error | OSError) -> None:
        """A full disk may empty, a used-up quota be raised. After any other error nobody knows what is in the file."""
        if getattr(error, "sqlite_errorcode", None) not in _PASSING:
            self._broken = error
            logger.error("the metadata store takes no more changes until a restart: %s", error)
        elif not self._is_refusing:
            self._is_refusing = True
            logger.warning("the metadata store refuses changes for now: %s", error)

    def _show(self, changed: dict[str, _Entry | None]) -> None:
        for path, entry in changed.items():
            if entry is None:
                self.nodes.pop(path, None)
                self._unlink(path)
            else:
                self.nodes[path] = entry
                self._link(path)
        for watcher in self._watchers:
            watcher.tell(changed)

    def _link(self, path: str) -> None:
        if path != "/":
            self.names_below.setdefault(parent_of(path), set()).add(path.rpartition("/")[2])

    def _unlink(self, path: str) -> None:
        names = self.names_below.get(parent_of(path), set())
        names.discard(path.rpartition("/")[2])
        if not names:
            self.names_below.pop(parent_of(path), None)

    def add_watcher(self, watcher: _Watcher) -> None:
        """From now on it is told of every change."""
        self._watchers.add(watcher)
        watcher.tell(self.nodes)

    def remove_watcher(self, watcher: _Watcher) -> None:
        """It is told no more."""
        self._watchers.discard(watcher)


class _Watcher:
    """The paths that changed since somebody last asked."""

    __slots__ = ("_root", "changed", "something")

    def __init__(self, root: str) -> None:
        self._root = root
        self.changed: set[str] = set()
        self.something = asyncio.Event()

    def tell(self, changed: dict[str, _Entry] | dict[str, _Entry | None]) -> None:
        self.changed.update(path for path in changed if is_within(path, self._root))
        if self.changed:
            self.something.set()

    def take(self) -> frozenset[str]:
        taken = frozenset(self.changed)
        self.changed.clear()
        self.something.clear()
        return taken


class Session:
    """One participant's view of the tree: the `MetadataStore` port."""

    def __init__(self, tree: Tree, number: int) -> None:
        self._tree, self.number = tree, number
        self._over = asyncio.Event()

    async def get(self, path: str) -> Node | None:
        """The node, or None if there is none."""
        self._must_be_alive(path)
        entry = self._tree.nodes.get(path)
        return entry.node if entry else None

    async def children(self, path: str) -> frozenset[str]:
        """The names directly below."""
        self._must_be_alive(path)
        return frozenset(self._tree.names_below.get(path, ()))

    async def commit(self, ops: Sequence[Op]) -> list[int]:
        """All of `ops` or none."""
        self._must_be_alive(ops[0].path if ops else "/")
        return await self._tree.commit(self, ops)

    async def watch(self, path: str) -> AsyncIterator[frozenset[str]]:
        """Everything below `path`, then what changes. Ends with the session."""
        watcher = _Watcher(path)
        self._tree.add_watcher(watcher)
        over = asyncio.ensure_future(self._over.wait())
        try:
            first = watcher.take()
            yield first
            while not self._over.is_set():
                something = asyncio.ensure_future(watcher.something.wait())
                try:
                    await asyncio.wait((something, over), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    something.cancel()
                if watcher.changed and not self._over.is_set():
                    yield watcher.take()
        finally:
            over.cancel()
            self._tree.remove_watcher(watcher)

    async def lost(self) -> None:
        """Returns when the session is over."""
        await self._over.wait()

    async def close(self) -> None:
        """End the session; its ephemeral nodes go."""
        self._over.set()
        await self._tree.end(self)

    async def expire(self) -> None:
        """What a store does to a participant that it has not heard of for too long. For tests and simulations."""
        await self.close()

    def _must_be_alive(self, path: str) -> None:
        if self._over.is_set():
            raise SessionLost(path)
