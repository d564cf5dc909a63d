"""Writes and reads Kafka's `<20 digits>.snapshot` files: the state of producers before the record of that offset.

One is written at each roll and at a clean stop, so that a start replays one segment at most. A corrupt one is passed
over for an older one; without any, the log is replayed from its beginning.

A snapshot holds each producer's last batch (Kafka's format has space for one) and its open transaction:

    version 1 (2), CRC-32C of what follows (4), count (4), then for each producer, big-endian:
    producer id (8), epoch (2), last sequence (4), last offset (8), offset delta (4), timestamp (8),
    coordinator epoch (4), first offset of the open transaction or -1 (8)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import PurePath

from ottla.core.checksums import crc32c
from ottla.core.files import FileSystem
from ottla.core.ids import NO_OFFSET
from ottla.records.batch import NO_SEQUENCE, SEQUENCE_MAX
from ottla.storage.file_names import SNAPSHOT_SUFFIX, offset_name
from ottla.storage.state.producer_state_manager import BatchMetadata, ProducerStateEntry, ProducerStateManager

_HEAD = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_CRC_FROM = 6
_VERSION = 1


def encode_snapshot(producers: ProducerStateManager) -> bytes:
    """Encode the state as Kafka's file."""
    body = bytearray(struct.pack(">i", len(producers)))
    for producer_id, entry in producers.entries():
        last = entry.batches[-1] if entry.batches else None
        body += _ENTRY.pack(
            producer_id,
            entry.epoch,
            last.last_sequence if last else NO_SEQUENCE,
            last.last_offset if last else NO_OFFSET,
            last.last_offset - last.first_offset if last else 0,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.txn_first_offset,
        )
    return struct.pack(">hI", _VERSION, crc32c(body)) + bytes(body)


def read_snapshot(data: bytes) -> list[tuple[int, int, int, int, int, int, int, int]] | None:
    """Return a snapshot's rows; None if version, length or CRC are not right."""
    if len(data) < _HEAD.size:
        return None
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION or crc32c(data[_CRC_FROM:]) != crc or count < 0:
        return None
    if len(data) != _HEAD.size + count * _ENTRY.size:
        return None
    rows: Iterable[tuple[int, int, int, int, int, int, int, int]] = _ENTRY.iter_unpack(data[_HEAD.size :])
    return list(rows)


def load_snapshot(data: bytes, producers: ProducerStateManager, *, now_ms: int) -> bool:
    """Replace the state by a snapshot's; False, and nothing changed, if it is corrupt."""
    rows = read_snapshot(data)
    if rows is None:
        return False
    entries: dict[int, ProducerStateEntry] = {}
    for producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first_offset in rows:
        entry = entries[producer_id] = ProducerStateEntry()
        entry.epoch = epoch
        entry.last_timestamp = timestamp
        entry.seen_ms = now_ms
        entry.coordinator_epoch = coordinator_epoch
        entry.txn_first_offset = txn_first_offset
        entry.is_of_snapshot = True
        if offset != NO_OFFSET:
            first_sequence = (sequence - delta) & SEQUENCE_MAX if sequence != NO_SEQUENCE else NO_SEQUENCE
            entry.batches.append(BatchMetadata(first_sequence, sequence, offset - delta, offset, timestamp))
    producers.load(entries)
    return True


class ProducerSnapshots:
    """The snapshot files of one log."""

    __slots__ = ("_directory", "_files", "_offsets")

    def __init__(self, files: FileSystem, directory: PurePath, offsets: Iterable[int] = ()) -> None:
        self._files = files
        self._directory = directory
        self._offsets = tuple(sorted(offsets))

    @property
    def offsets(self) -> list[int]:
        """Of which offsets there are snapshots, ascending."""
        return list(self._offsets)

    @property
    def files(self) -> FileSystem:
        """Return the file system of the snapshots."""
        return self._files

    def path(self, offset: int) -> PurePath:
        """Return the path of one snapshot."""
        return self._directory / offset_name(offset, SNAPSHOT_SUFFIX)

    def moved(self, directory: PurePath) -> None:
        """Note that the partition's directory was renamed."""
        self._directory = directory

    def write(self, offset: int, producers: ProducerStateManager) -> PurePath:
        """Write the state at `offset`; the caller sees to the sync. Raises OSError."""
        path = self.path(offset)
        self._offsets = tuple(sorted({*self._offsets, offset}))
        file = self._files.open(path, create=True)
        try:
            file.truncate(0)
            file.append(encode_snapshot(producers))
        finally:
            file.close()
        return path

    def load_newest(
        self, producers: ProducerStateManager, *, not_after: int, end_offset: int, now_ms: int
    ) -> int | None:
        """Load the newest whole snapshot at or below `not_after`; drop corrupt ones and those after the log's end.

        Gives the offset to replay from, or None if the replay must begin with the log.
        """
        for offset in reversed(self.offsets):
            data = self._read(offset) if offset <= end_offset else b""
            if not_after < offset <= end_offset:
                if read_snapshot(data) is None:  # of a write that a crash cut short
                    self.drop(offset)
            elif offset <= end_offset and load_snapshot(data, producers, now_ms=now_ms):
                return offset
            else:
                self.drop(offset)
        producers.clear()
        return None

    def _read(self, offset: int) -> bytes:
        try:
            return self._files.read(f"{self._directory}/{offset_name(offset, SNAPSHOT_SUFFIX)}")
        except FileNotFoundError:
            return b""

    def drop(self, offset: int) -> None:
        """Remove one snapshot, if it is there."""
        self._offsets = tuple(other for other in self._offsets if other != offset)
        self._files.remove(self.path(offset))

    def drop_all(self) -> None:
        """Remove all of them."""
        for offset in self.offsets:
            self.drop(offset)

    def drop_above(self, offset: int) -> None:
        """Remove those of a range that a crash may have changed."""
        for newer in [at for at in self._offsets if at > offset]:
            self.drop(newer)

    def drop_below(self, offset: int) -> None:
        """Remove those that retention has made useless."""
        for old in [at for at in self._offsets if at < offset]:
            self.drop(old)
