"""Declares the port of the place that holds a lake's files: a directory, or a prefix of an object store.

Everything above this port names files by keys relative to a store and knows no path. What a store guarantees:

- `put` and `output` make an object visible as a whole, when it is durable, or not at all; `LocalStore` makes the names
  of written files durable with `sync_names`, many at once.
- `put_if_absent` is one atomic step of the store, not a look and a write, and `verify` tries that. The bytes that are
  there already count as written: an answer may have been lost.
- `put_if_unchanged` refuses a change that it sees. Servers were found on which two at once may both succeed, so only
  leases use it, and no commit depends on those.
- `list` shows every object whose `put` has returned. An answer may be lost: a call that raised may have happened.

A store is a value: it is pickled and sent to the tasks of a load. One suite holds all of them
(`tests/contracts/test_lake_stores.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

PRIVATE = "_ottla/"
"""A directory of a table that readers ignore: names with an underscore are hidden in Delta and in Iceberg."""


class StoreError(OSError):
    """A store refused a call, or did not answer: it may have happened. The text contains no credentials."""


class UnsafeStore(OSError):
    """A place does not keep what its port guarantees: tables in it could lose commits."""


class ObjectExists(StoreError):
    """There is an object of this name; nothing was written."""


class ObjectChanged(StoreError):
    """The object is no longer the one whose tag was given, or is gone; nothing was written."""


class LeaseTaken(Exception):
    """Another process holds the lease. The message names it."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """Describes an object of a store."""

    key: str
    size_bytes: int
    modified_ms: int
    tag: str
    """Changes whenever the object is written."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Work in progress. Every file it writes has its id in the name."""

    id: str
    pid: int
    host: str


class Output(Protocol):
    """A file that is being written: no reader sees it before `close`."""

    sink: Any
    """The `pyarrow.NativeFile` to write to."""

    def close(self) -> StoredObject:
        """Complete the file. Its bytes are durable now; its name may need `sync_names`."""
        ...

    def abandon(self) -> None:
        """Drop what was written."""
        ...


class ObjectReader(Protocol):
    """Reads objects by their keys."""

    def head(self, key: str) -> StoredObject | None:
        """Describe an object; None if there is none."""
        ...

    def objects(self, prefix: str = "") -> Iterator[StoredObject]:
        """Yield the objects whose keys begin with a prefix that is empty or ends in a slash, sorted by key."""
        ...

    def directories(self) -> list[str]:
        """Return the first parts of all keys that have several, sorted."""
        ...

    def get(self, key: str, first: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of an object, or a range of them. Raises FileNotFoundError."""
        ...

    def input(self, key: str) -> Any:
        """Open an object for `pyarrow` to read parts of. Raises FileNotFoundError."""
        ...


class ObjectWriter(Protocol):
    """Writes objects by their keys."""

    def put(self, key: str, data: bytes) -> str:
        """Write an object, in place of the one of this name if there is one, and return its tag."""
        ...

    def put_if_absent(self, key: str, data: bytes) -> str:
        """Write a new object and return its tag. Raises ObjectExists."""
        ...

    def put_if_unchanged(self, key: str, data: bytes, tag: str) -> str:
        """Replace the object that has this tag and return the new one's. Raises ObjectChanged."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object, if there is one. After a power cut it may be back, until `sync_names`."""
        ...

    def delete_below(self, prefix: str) -> None:
        """Delete the objects whose keys begin with a prefix that ends in a slash."""
        ...

    def rename(self, key: str, new: str) -> None:
        """Rename an object, in place of the one of the new name. After a failure there may be both."""
        ...

    def output(self, key: str) -> Output:
        """Begin a file for `pyarrow` to write."""
        ...


class ObjectAccess(ObjectReader, ObjectWriter, Protocol):
    """Reads and writes objects by their keys."""


class StoreLocation(Protocol):
    """Names a place and the places around it."""

    @property
    def url(self) -> str:
        """The absolute location: a path for a directory, a URL otherwise. It contains no credentials."""
        ...

    @property
    def name(self) -> str:
        """The last part of the location."""
        ...

    def below(self, name: str) -> LakeStore:
        """Return the store of the objects whose keys begin with a name and a slash."""
        ...

    def sibling(self, name: str) -> LakeStore:
        """Return the store of this name beside this one."""
        ...

    def at(self, location: str) -> LakeStore:
        """Return the store of another absolute location, reached in the same way."""
        ...

    def with_credentials(self, options: Mapping[str, str]) -> LakeStore:
        """Return this store, reached with the credentials that a catalog gave for it."""
        ...

    def location(self, key: str) -> str:
        """Return an object's absolute location, as readers open it."""
        ...

    def key(self, location: str) -> str | None:
        """Return the key of an absolute location, path or URL; None for one elsewhere."""
        ...


class StoreGuarantees(Protocol):
    """Makes what is written durable, keeps loads apart, and lets other libraries in."""

    is_remote: bool
    """True if every call is a request to a server. Such a store tears nothing: an object is there as a whole or not."""

    def verify(self) -> None:
        """Raise UnsafeStore if this place does not keep what its port guarantees; called before a table is made."""
        ...

    def sync_names(self, keys: Iterable[str]) -> None:
        """Make the names of files durable that `output` has closed, and the deletion of others."""
        ...

    def sync_written(self, keys: Iterable[str]) -> None:
        """Make files durable that another library has written, with their names."""
        ...

    def note(self, key: str, text: str) -> None:
        """Write a small object that may be lost."""
        ...

    def library_options(self) -> Mapping[str, str]:
        """Return the settings with which `deltalake` opens this place itself. They may contain credentials."""
        ...

    def library_errors(self) -> AbstractContextManager[None]:
        """Translate the errors of a library that opened this place itself to StoreError, without credentials."""
        ...

    def lease(self, work: str) -> AbstractContextManager[Lease]:
        """Hold the lease for one kind of work on what is here. Raises LeaseTaken.

        Leases only save work: that two loads at once are correct is ensured by the commits alone (`lake_table.py`).
        """
        ...

    def held_leases(self) -> set[str]:
        """Return the ids of the leases that processes hold at this moment."""
        ...


class LakeStore(ObjectAccess, StoreLocation, StoreGuarantees, Protocol):
    """Holds a lake, a table or any part of one."""
