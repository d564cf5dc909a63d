"""Writes and reads the index of a segment's aborted transactions (`.txnindex`), in Kafka's format.

34 bytes an entry, big-endian: version 0 (2), producer id (8), first offset (8), last offset (8),
last stable offset when the marker was written (8)
"""

from __future__ import annotations

import struct
from pathlib import PurePath
from typing import NamedTuple

from ottla.core.files import FileAccess, FileSystem, read_file

_ENTRY = struct.Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size
assert ENTRY_BYTES == 34
_ENTRIES_AT_ONCE = 64
_VERSION = 0


class AbortedTransaction(NamedTuple):
    """Records that readers of committed records must skip."""

    producer_id: int
    first_offset: int
    last_offset: int  # of the ABORT marker
    last_stable_offset: int


def append_aborted(files: FileAccess, path: PurePath, entry: AbortedTransaction) -> None:
    """Add one entry to a segment's index, which is made when it is first needed."""
    file = files.open(path, create=True)
    try:
        whole = file.size() - file.size() % ENTRY_BYTES
        try:
            file.write_at(whole, _ENTRY.pack(_VERSION, *entry))
        except OSError:
            file.truncate(whole)  # half an entry would make the whole index look corrupt
            raise
    finally:
        file.close()


def read_aborted(files: FileAccess, path: PurePath) -> list[AbortedTransaction] | None:
    """Return a segment's aborted transactions; none if it has no index, None if that is corrupt."""
    try:
        raw = read_file(files, path)
    except FileNotFoundError:
        return []
    if len(raw) % ENTRY_BYTES:
        return None
    found = []
    for version, *fields in _ENTRY.iter_unpack(raw):
        entry = AbortedTransaction(*fields)
        if version != _VERSION or not 0 <= entry.first_offset <= entry.last_offset:
            return None
        found.append(entry)
    return found


def find_aborted(
    files: FileAccess, path: PurePath, first_offset: int, end_offset: int
) -> tuple[list[AbortedTransaction], bool] | None:
    """Find the aborted transactions within a range of offsets in a segment's index; None if that is corrupt.

    Markers are in the order of the log, so the first one is searched for; the rest of the index is not read. The second
    value is whether no later index has any of the range.
    """
    try:
        file = files.open(path)
    except FileNotFoundError:
        return [], False
    try:
        count, rest = divmod(file.size(), ENTRY_BYTES)
        if rest:
            return None
        low, high = 0, count  # the first entry whose marker is at or after `first_offset`
        while low < high:
            middle = (low + high) // 2
            _, _, _, last_offset, _ = _ENTRY.unpack(file.read_at(middle * ENTRY_BYTES, ENTRY_BYTES))
            low, high = (middle + 1, high) if last_offset < first_offset else (low, middle)
        transactions: list[AbortedTransaction] = []
        for at in range(low, count, _ENTRIES_AT_ONCE):
            size = min(_ENTRIES_AT_ONCE, count - at) * ENTRY_BYTES
            for version, *fields in _ENTRY.iter_unpack(file.read_at(at * ENTRY_BYTES, size)):
                entry = AbortedTransaction(*fields)
                if version != _VERSION or not 0 <= entry.first_offset <= entry.last_offset:
                    return None
                if entry.first_offset < end_offset:
                    transactions.append(entry)
                if entry.last_stable_offset >= end_offset:
                    return transactions, True
        return transactions, False
    finally:
        file.close()


def replace_aborted(files: FileSystem, path: PurePath, entries: list[AbortedTransaction]) -> bool:
    """Put these entries in place of all; no entries, no file (as Kafka does). Whether that changed anything."""
    is_there = files.exists(path)
    if (not entries and not is_there) or (entries and is_there and read_aborted(files, path) == entries):
        return False  # what is durable stays so: a crash finds either all of it or none
    if not entries:
        files.remove(path)
        return True
    file = files.open(path, create=True)
    try:
        file.truncate(0)
        file.append(b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries))
    finally:
        file.close()
    return True
