"""Holds leases in a store without locks: an object that its owner renews.

A lease is held while its object is younger than `LEASE_S`, by the clock of the store alone, or until its owner releases
it; on the machine of the owner it ends with the owner's process. It is taken, renewed and released by conditional puts.
A process that is stopped for longer than that loses its lease without noticing, and on some servers two that take over
a lease at the same moment both have it: they waste work, and no commit depends on it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ottla.core.runtime import new_uuid
from ottla.pipeline.lake.lake_store import PRIVATE, Lease, LeaseTaken, ObjectAccess, ObjectChanged, ObjectExists

LEASE_S, RENEW_S = 30.0, 8.0
_SUFFIX = ".lease"


@dataclass(frozen=True, slots=True)
class _Record:
    """The content of a lease's object."""

    id: str
    pid: int
    host: str
    machine: str
    """Of the process numbers: a start of the system, and a namespace."""
    renewals: int = 0
    released: bool = False

    def encode(self) -> bytes:
        return json.dumps({name: getattr(self, name) for name in self.__slots__}).encode()


@contextlib.contextmanager
def hold_lease(store: ObjectAccess, work: str, *, renew_s: float = RENEW_S) -> Iterator[Lease]:
    """Hold a lease, and renew it in a thread. Raises LeaseTaken."""
    key = f"{PRIVATE}{work}{_SUFFIX}"
    mine = _Record(new_uuid().hex[:12], os.getpid(), socket.gethostname(), _machine())
    held = _Held(store, key, mine, _take(store, key, mine, work))
    over = threading.Event()

    def renew() -> None:
        while not over.wait(renew_s) and held.renew():
            pass

    thread = threading.Thread(target=renew, name="ottla-lease", daemon=True)  # noqa: TID251  # of a command, never simulated
    thread.start()
    try:
        yield Lease(mine.id, mine.pid, mine.host)
    finally:
        over.set()
        thread.join()
        held.release()


def held_leases(store: ObjectAccess) -> set[str]:
    """Return the ids of the leases that are held."""
    ids = set()
    for entry in list(store.objects(PRIVATE)):
        if entry.key.endswith(_SUFFIX):
            record = _record(store, entry.key)
            if record is not None and _is_held(store, entry.key, record):
                ids.add(record.id)
    return ids


class _Held:
    """A lease that this process holds, and the tag of its object."""

    def __init__(self, store: ObjectAccess, key: str, record: _Record, tag: str) -> None:
        self._store, self._key, self._record, self._tag = store, key, record, tag
        self._renewals = 0

    def renew(self) -> bool:
        """Write the object again; returns False if another process has taken the lease."""
        self._renewals += 1
        return self._write(released=False)

    def release(self) -> None:
        """Mark the object as released."""
        self._write(released=True)

    def _write(self, *, released: bool, again: bool = True) -> bool:
        values = {name: getattr(self._record, name) for name in self._record.__slots__}
        record = _Record(**(values | {"renewals": self._renewals, "released": released}))
        try:
            self._tag = self._store.put_if_unchanged(self._key, record.encode(), self._tag)
        except ObjectChanged:
            if self._is_taken():
                return False
            if again:
                self._write(released=released, again=False)
        except OSError:
            pass  # no answer: the next renewal tries again
        return True

    def _is_taken(self) -> bool:
        """Return whether another process has the lease; if an earlier answer was lost, note the tag that it had."""
        try:
            stored, record = self._store.head(self._key), _record(self._store, self._key)
        except OSError:
            return False
        if stored is None or record is None:
            return False
        if record.id == self._record.id:
            self._tag = stored.tag
        return record.id != self._record.id


def _take(store: ObjectAccess, key: str, mine: _Record, work: str) -> str:
    try:
        stored = store.head(key)
        if stored is None:
            return store.put_if_absent(key, mine.encode())
        holder = _record(store, key)
        if holder is None or not _is_held(store, key, holder):
            return store.put_if_unchanged(key, mine.encode(), stored.tag)
    except (ObjectExists, ObjectChanged):
        holder = _record(store, key)
    who = f"process {holder.pid} on {holder.host}" if holder else "another process"
    raise LeaseTaken(f"{who} is already at work ({work})")


def _is_held(store: ObjectAccess, key: str, record: _Record) -> bool:
    if record.released or _is_dead(record):
        return False
    written, now_ms = store.head(key), _store_clock_ms(store)
    return written is not None and now_ms - written.modified_ms < LEASE_S * 1000


def _is_dead(record: _Record) -> bool:
    """Return whether the owner ran here and has ended."""
    return record.machine != "" and record.machine == _machine() and not Path(f"/proc/{record.pid}").exists()


def _store_clock_ms(store: ObjectAccess) -> int:
    """Return the time by the store's clock: that of an object written now."""
    key = f"{PRIVATE}clock-{new_uuid().hex[:12]}"
    store.put(key, b"")
    clock = store.head(key)
    store.delete(key)
    assert clock is not None
    return clock.modified_ms


def _record(store: ObjectAccess, key: str) -> _Record | None:
    try:
        values: Any = json.loads(store.get(key))
        return _Record(**values)
    except (OSError, ValueError, TypeError):
        return None


def _machine() -> str:
    """Return what process numbers here are unique in; "" where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - no path
    except OSError:
        return ""
