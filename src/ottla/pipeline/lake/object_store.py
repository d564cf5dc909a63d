"""Holds a lake in an object store, through `obstore`: an object is durable and visible as a whole, or not there.

The atomic primitive is the conditional put: `If-None-Match` for a new object, `If-Match` for a changed one. An answer
may be lost, and the library repeats requests, so a condition that fails is compared with what the object contains: the
very bytes that were to be written are a success. Some servers look first and write then: no table is made on one that
lets two writers create the same object (`verify`).

Files are gathered on the local disk and sent when they are complete, so that a task that ends early leaves nothing.
"""

from __future__ import annotations

import contextlib
import posixpath
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ottla.core.clock import SystemClock
from ottla.core.runtime import new_uuid
from ottla.pipeline.lake.lake_store import (
    PRIVATE,
    Lease,
    ObjectChanged,
    ObjectExists,
    StoredObject,
    StoreError,
    UnsafeStore,
)
from ottla.pipeline.lake.object_lease import held_leases, hold_lease
from ottla.pipeline.lake.store_settings import StoreSettings

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

_RETRY: Any = {"max_retries": 6, "retry_timeout": timedelta(seconds=60)}
_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 4
_PROBES = 8
_READ_AHEAD = 64 << 10
"""A footer and the small columns around it come in one request."""


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A `LakeStore` at a URL, `s3://bucket/prefix`."""

    url: str
    settings: StoreSettings = field(default_factory=StoreSettings)

    is_remote = True

    @property
    def name(self) -> str:
        """Return the last part of the URL's path."""
        return posixpath.basename(self.url)

    def below(self, name: str) -> ObjectStore:
        """Return the store of a longer prefix."""
        return ObjectStore(f"{self.url}/{name}", self.settings)

    def sibling(self, name: str) -> ObjectStore:
        """Return the store of another prefix."""
        return ObjectStore(f"{posixpath.dirname(self.url)}/{name}", self.settings)

    def at(self, location: str) -> ObjectStore:
        """Return the store of another URL."""
        return ObjectStore(location, self.settings)

    def with_credentials(self, options: Mapping[str, str]) -> ObjectStore:
        """Return the store with these options of `object_store`."""
        return ObjectStore(self.url, replace(self.settings, vended=tuple(sorted(options.items()))))

    def location(self, key: str) -> str:
        """Return the object's URL."""
        return f"{self.url}/{key}"

    def key(self, location: str) -> str | None:
        """Return what follows the prefix."""
        return location.removeprefix(self.url + "/") if location.startswith(self.url + "/") else None

    def head(self, key: str) -> StoredObject | None:
        """Send one HEAD request."""
        import obstore

        try:
            with self._errors(key):
                return _described(key, obstore.head(self._client(), key))
        except FileNotFoundError:
            return None

    def objects(self, prefix: str = "") -> Iterator[StoredObject]:
        """List a page at a time; the store sorts."""
        import obstore

        with self._errors(prefix):
            for page in obstore.list(self._client(), prefix=prefix.rstrip("/") or None):
                for entry in page:
                    yield _described(entry["path"], entry)

    def directories(self) -> list[str]:
        """List with a delimiter."""
        import obstore

        with self._errors(""):
            listing = obstore.list_with_delimiter(self._client())
        return sorted(prefix.rstrip("/") for prefix in listing["common_prefixes"])

    def get(self, key: str, first: int = 0, end: int | None = None) -> bytes:
        """Send a GET request, of a range where one is wanted."""
        import obstore

        with self._errors(key):
            if end is not None:
                return bytes(obstore.get_range(self._client(), key, start=first, end=end)) if end > first else b""
            whole = obstore.get(self._client(), key, options={"range": {"offset": first}} if first else None)
            return bytes(whole.bytes())

    def put(self, key: str, data: bytes) -> str:
        """Send a PUT request."""
        import obstore

        with self._errors(key):
            return _tag(obstore.put(self._client(), key, data, use_multipart=False))

    def put_if_absent(self, key: str, data: bytes) -> str:
        """Send a PUT request with If-None-Match."""
        return self._put_if(key, data, "create", ObjectExists)

    def put_if_unchanged(self, key: str, data: bytes, tag: str) -> str:
        """Send a PUT request with If-Match."""
        return self._put_if(key, data, {"e_tag": tag}, ObjectChanged)

    def _put_if(self, key: str, data: bytes, condition: Any, failed: Callable[[str], StoreError]) -> str:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            with self._errors(key, AlreadyExistsError, PreconditionError):
                return _tag(obstore.put(self._client(), key, data, mode=condition, use_multipart=False))
        except (AlreadyExistsError, PreconditionError, FileNotFoundError):
            stored = self.head(key)
            if stored is not None and stored.size_bytes == len(data) and self.get(key) == data:
                return stored.tag
            raise failed(self.location(key)) from None

    def delete(self, key: str) -> None:
        """Send a DELETE request."""
        import obstore

        with contextlib.suppress(FileNotFoundError), self._errors(key):
            obstore.delete(self._client(), key)

    def delete_below(self, prefix: str) -> None:
        """Delete one object after the other."""
        for stored in list(self.objects(prefix)):
            self.delete(stored.key)

    def rename(self, key: str, new: str) -> None:
        """Copy and delete."""
        self.put(new, self.get(key))
        self.delete(key)

    def input(self, key: str) -> Any:
        """Open a reader that requests ranges."""
        stored = self.head(key)
        if stored is None:
            raise FileNotFoundError(self.location(key))
        return pa.PythonFile(_RangeReader(self, key, stored.size_bytes), mode="r")

    def output(self, key: str) -> _Upload:
        """Begin a local file that is sent when it is closed."""
        return _Upload(self, key)

    def send(self, key: str, path: Path) -> None:
        """Send a local file, in parts where it is large: the object appears when all are there."""
        import obstore

        with self._errors(key):
            obstore.put(self._client(), key, path, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

    def verify(self) -> None:
        """Try a conditional put, once for each place in this process: some servers ignore its condition."""
        _verify(self.url, self.settings)

    def sync_names(self, keys: Iterable[str]) -> None:
        """Do nothing: an object is durable with its name."""

    def sync_written(self, keys: Iterable[str]) -> None:
        """Do nothing: an object is durable with its name."""

    def note(self, key: str, text: str) -> None:
        """Send a PUT request."""
        self.put(key, text.encode())

    def library_options(self) -> Mapping[str, str]:
        """Return the options of `object_store`, which `obstore` and `deltalake` share."""
        return self.settings.options()

    @contextlib.contextmanager
    def library_errors(self) -> Iterator[None]:
        """Shorten the texts, which contain whole requests."""
        try:
            yield
        except (StoreError, FileNotFoundError):
            raise
        except Exception as error:
            if isinstance(error, OSError) or type(error).__name__ == "DeltaError":
                raise StoreError(f"{self.url}: {self.settings.brief(str(error))}") from None
            raise

    def lease(self, work: str) -> AbstractContextManager[Lease]:
        """Hold an object that is renewed as long as this process lives."""
        return hold_lease(self, work)

    def held_leases(self) -> set[str]:
        """Read the objects of the leases."""
        return held_leases(self)

    def _client(self) -> Client:
        return _client_of(self.url, self.settings)

    @contextlib.contextmanager
    def _errors(self, key: str, *expected: type[Exception]) -> Iterator[None]:
        """Translate the library's errors: their texts contain whole requests."""
        from obstore.exceptions import BaseError

        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(self.location(key)) from None
        except (BaseError, OSError, ValueError) as error:
            if isinstance(error, (*expected, StoreError)):
                raise
            raise StoreError(f"{self.location(key)}: {self.settings.brief(str(error))}") from None


class _Upload:
    """An `Output` to a local file."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self._store, self._key = store, key
        self._directory = tempfile.TemporaryDirectory(prefix="ottla-upload-")
        self._path = Path(self._directory.name) / "file"
        self.sink = pa.OSFile(str(self._path), "wb")

    def close(self) -> StoredObject:
        """Send the file."""
        self.sink.close()
        try:
            size = self._path.stat().st_size
            self._store.send(self._key, self._path)
        finally:
            self._directory.cleanup()
        return StoredObject(self._key, size, SystemClock().wall_ms(), "")

    def abandon(self) -> None:
        """Remove the file."""
        self.sink.close()
        self._directory.cleanup()


class _RangeReader:
    """Reads an object by ranges, as Python's files do."""

    def __init__(self, store: ObjectStore, key: str, size: int) -> None:
        self._store, self._key, self._size = store, key, size
        self._position, self._first, self._ahead = 0, 0, b""
        self.closed = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move the position."""
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes from the position."""
        first = self._position
        end = self._size if size < 0 else min(first + size, self._size)
        if first >= end:
            return b""
        if not self._first <= first <= end <= self._first + len(self._ahead):
            self._first = max(0, min(first, end - _READ_AHEAD)) if end == self._size else first
            self._ahead = self._store.get(self._key, self._first, max(end, min(first + _READ_AHEAD, self._size)))
        self._position = end
        return self._ahead[first - self._first : end - self._first]

    def close(self) -> None:
        """Forget what was read."""
        self.closed, self._ahead = True, b""


@cache
def _client_of(url: str, settings: StoreSettings) -> Client:
    """Return the client of a place, one for each process: it keeps connections."""
    from obstore.store import from_url

    options: Any = settings.options()
    client: Any = {"allow_http": True} if options.pop("allow_http", "") == "true" else {}
    return from_url(url, config=options, client_options=client, retry_config=_RETRY)


@cache
def _verify(url: str, settings: StoreSettings) -> None:
    """Have several writers create the same object at once: one must succeed."""
    store, key = ObjectStore(url, settings), f"{PRIVATE}probe-{new_uuid().hex[:12]}"

    def create(number: int) -> bool:
        try:
            store.put_if_absent(key, b"%d" % number)
        except ObjectExists:
            return False
        return True

    with ThreadPoolExecutor(_PROBES) as writers:
        created = sum(writers.map(create, range(_PROBES)))
    with contextlib.suppress(StoreError):  # what matters is said below
        store.delete(key)
    if created != 1:
        raise UnsafeStore(
            f"{url}: the server does not keep the condition of a conditional put (If-None-Match): of {_PROBES} writers "
            f"at once {created} created the same object. Commits would be lost. Use a server that keeps it"
        )


def _described(key: str, found: Any) -> StoredObject:
    modified_ms = int(found["last_modified"].timestamp() * 1000)
    return StoredObject(key, found["size"], modified_ms, found["e_tag"] or "")


def _tag(written: Any) -> str:
    return written["e_tag"] or ""
