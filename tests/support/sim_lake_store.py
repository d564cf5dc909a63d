"""A `LakeStore` in memory that injects the faults of an object store: lost answers, delayed lists, errors, conflicts.

`FaultPlan` says what happens to each request, by its number. Contents live in a `Bucket` that all stores of it share.
A request whose answer is lost has happened; one that fails has not.
"""

from __future__ import annotations

import contextlib
import io
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import pyarrow as pa

from ottla.pipeline.lake.lake_store import Lease, ObjectChanged, ObjectExists, StoredObject, StoreError
from ottla.pipeline.lake.object_lease import held_leases, hold_lease


class Fault(Enum):
    """What happens to one request."""

    ERROR = "the server answers 500, and did nothing"
    LOST_ANSWER = "the server did it, and the answer is lost"
    STALE_LIST = "the list leaves out what was written last"
    TORN = "the connection breaks in the middle of an upload"
    CRASH = "the client dies before its request"
    CRASH_AFTER = "the client dies before it reads the answer"


class Crashed(BaseException):
    """The process of the client died here."""


@dataclass
class Bucket:
    """The objects of a simulated store, and the requests so far."""

    objects: dict[str, tuple[bytes, StoredObject]] = field(default_factory=dict)
    faults: dict[int, Fault] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    now_ms: int = 1_431_856_800_000
    last_written: str = ""
    written: int = 0
    writes: int = 0
    fault_at_write: tuple[int, Fault] | None = None
    """The number of a put or a delete, counted from the first, and what happens to it."""

    def write(self, key: str, data: bytes) -> str:
        self.now_ms += 1
        self.written += 1
        tag = f"t{len(self.requests)}-{self.now_ms}"
        self.objects[key] = (data, StoredObject(key, len(data), self.now_ms, tag))
        self.last_written = key
        return tag

    def begin(self, what: str) -> Fault | None:
        """Count a request; raises what comes before the server does anything."""
        number = len(self.requests)
        self.requests.append(what)
        fault = self.faults.get(number)
        if what.startswith(("put", "delete")):
            if self.fault_at_write is not None and self.fault_at_write[0] == self.writes:
                fault, self.fault_at_write = self.fault_at_write[1], None
            self.writes += 1
        if fault is Fault.CRASH:
            raise Crashed(what)
        if fault in (Fault.ERROR, Fault.TORN):
            raise StoreError(f"{what}: {fault.value}")
        return fault

    def end(self, what: str, fault: Fault | None) -> None:
        """Raise what comes after the server has done it."""
        if fault is Fault.CRASH_AFTER:
            raise Crashed(what)
        if fault is Fault.LOST_ANSWER:
            raise StoreError(f"{what}: {fault.value}")


@dataclass(frozen=True)
class SimStore:
    """A part of a bucket."""

    bucket: Bucket = field(hash=False)
    prefix: str = "lake"

    is_remote = True

    @property
    def url(self) -> str:
        return f"sim://bucket/{self.prefix}"

    @property
    def name(self) -> str:
        return posixpath.basename(self.prefix)

    def below(self, name: str) -> SimStore:
        return replace(self, prefix=f"{self.prefix}/{name}")

    def sibling(self, name: str) -> SimStore:
        return replace(self, prefix=f"{posixpath.dirname(self.prefix)}/{name}")

    def at(self, location: str) -> SimStore:
        return replace(self, prefix=location.removeprefix("sim://bucket/"))

    def with_credentials(self, options: Mapping[str, str]) -> SimStore:
        return self

    def location(self, key: str) -> str:
        return f"{self.url}/{key}"

    def key(self, location: str) -> str | None:
        return location.removeprefix(self.url + "/") if location.startswith(self.url + "/") else None

    def head(self, key: str) -> StoredObject | None:
        fault = self.bucket.begin(f"head {key}")
        found = self.bucket.objects.get(self._full(key))
        self.bucket.end("head", fault)
        return None if found is None else replace(found[1], key=key)

    def objects(self, prefix: str = "") -> Iterator[StoredObject]:
        fault = self.bucket.begin(f"list {prefix}")
        self.bucket.end("list", fault)
        whole = self._full(prefix)
        for key, (_, found) in sorted(self.bucket.objects.items()):
            if key.startswith(whole) and not (fault is Fault.STALE_LIST and key == self.bucket.last_written):
                yield replace(found, key=key.removeprefix(self._full("")))

    def directories(self) -> list[str]:
        return sorted({found.key.split("/", 1)[0] for found in self.objects() if "/" in found.key})

    def get(self, key: str, first: int = 0, end: int | None = None) -> bytes:
        fault = self.bucket.begin(f"get {key}")
        found = self.bucket.objects.get(self._full(key))
        if found is None:
            raise FileNotFoundError(self.location(key))
        self.bucket.end("get", fault)
        return found[0][first:end]

    def put(self, key: str, data: bytes) -> str:
        fault = self.bucket.begin(f"put {key}")
        tag = self.bucket.write(self._full(key), data)
        self.bucket.end("put", fault)
        return tag

    def put_if_absent(self, key: str, data: bytes) -> str:
        return self._put_if(key, data, None, ObjectExists(key))

    def put_if_unchanged(self, key: str, data: bytes, tag: str) -> str:
        return self._put_if(key, data, tag, ObjectChanged(key))

    def _put_if(self, key: str, data: bytes, tag: str | None, failed: StoreError) -> str:
        fault = self.bucket.begin(f"put {key} if {tag or 'absent'}")
        found = self.bucket.objects.get(self._full(key))
        if (None if found is None else found[1].tag) != tag:
            if found is not None and found[0] == data:
                return found[1].tag
            raise failed
        written = self.bucket.write(self._full(key), data)
        self.bucket.end("put", fault)
        return written

    def delete(self, key: str) -> None:
        fault = self.bucket.begin(f"delete {key}")
        self.bucket.objects.pop(self._full(key), None)
        self.bucket.end("delete", fault)

    def delete_below(self, prefix: str) -> None:
        for found in list(self.objects(prefix)):
            self.delete(found.key)

    def rename(self, key: str, new: str) -> None:
        self.put(new, self.get(key))
        self.delete(key)

    def input(self, key: str) -> Any:
        return pa.BufferReader(self.get(key))

    def output(self, key: str) -> _SimOutput:
        return _SimOutput(self, key)

    def verify(self) -> None:
        """The simulated store does what its port guarantees."""

    def sync_names(self, keys: Iterable[str]) -> None:
        """Objects are durable with their names."""

    def sync_written(self, keys: Iterable[str]) -> None:
        """Objects are durable with their names."""

    def note(self, key: str, text: str) -> None:
        self.put(key, text.encode())

    def library_options(self) -> Mapping[str, str]:
        return {}

    def library_errors(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def lease(self, work: str) -> AbstractContextManager[Lease]:
        return hold_lease(self, work)

    def held_leases(self) -> set[str]:
        return held_leases(self)

    def _full(self, key: str) -> str:
        return f"{self.prefix}/{key}"


class _SimOutput:
    def __init__(self, store: SimStore, key: str) -> None:
        self._store, self._key, self._buffer = store, key, io.BytesIO()
        self.sink = pa.PythonFile(self._buffer, mode="w")

    def close(self) -> StoredObject:
        data = self._buffer.getvalue()
        self.sink.close()
        tag = self._store.put(self._key, data)
        return StoredObject(self._key, len(data), self._store.bucket.now_ms, tag)

    def abandon(self) -> None:
        self.sink.close()
