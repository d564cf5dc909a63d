"""Holds leases: they mark work in progress on a table, so that it is not repeated and its files are not removed.

A lease is a file in the table's `_ottla` directory, locked as long as its owner lives: the system releases the lock
when a process dies, for whatever reason. Leases only save work; that two loads at once are correct is ensured by the
commits alone (`lake_table.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ottla.core.files import SystemFiles
from ottla.core.runtime import new_uuid

PRIVATE = "_ottla"
"""A directory of the table that readers ignore: names with an underscore are hidden in Delta and in Iceberg."""
_SUFFIX = ".lease"


class LeaseTaken(Exception):
    """Another process holds the lease. The message names it."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Work in progress. Every file it writes has its id in the name."""

    id: str
    pid: int
    host: str


@contextlib.contextmanager
def lease(table: Path, work: str) -> Iterator[Lease]:
    """Hold the lease for one kind of work on a table. Raises LeaseTaken if another process holds it."""
    directory = table / PRIVATE
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{work}{_SUFFIX}"
    mine = Lease(new_uuid().hex[:12], os.getpid(), socket.gethostname())
    try:
        lock = SystemFiles().lock(path)
    except BlockingIOError:
        holder = _holder(path)
        who = f"process {holder.pid} on {holder.host}" if holder else "another process"
        raise LeaseTaken(f"{who} is already at work on {table.name} ({work})") from None
    try:
        path.write_text(json.dumps(asdict(mine)))
        yield mine
    finally:
        lock.release()


def held_leases(table: Path) -> set[str]:
    """Return the ids of the leases that processes hold on a table at this moment."""
    found = set()
    for path in (table / PRIVATE).glob(f"*{_SUFFIX}"):
        try:
            SystemFiles().lock(path).release()
        except BlockingIOError:
            if holder := _holder(path):
                found.add(holder.id)
    return found


def _holder(path: Path) -> Lease | None:
    try:
        return Lease(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None  # taken this moment: its owner has not written its id yet
