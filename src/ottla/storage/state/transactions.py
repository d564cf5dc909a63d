"""Where transactions stand in one log: the first unstable offset, and the index of aborted ones (`.txnindex`).

A transaction is unstable from its first record until its marker is below the high watermark: readers of committed
records stop there (the last stable offset). Aborted transactions are listed per segment in Kafka's format:

    34 bytes an entry, big-endian: version 0 (2), producer id (8), first offset (8), last offset (8),
    last stable offset when the marker was written (8)
"""

from __future__ import annotations

import struct
from enum import IntEnum
from pathlib import PurePath
from typing import NamedTuple

from ottla.core.errors import InvalidProducerEpoch, TransactionCoordinatorFenced
from ottla.core.files import FileAccess, FileSystem, read_file
from ottla.records.batch import BatchHeader
from ottla.storage.state.producer_state import NO_OFFSET, ProducerStates

_ENTRY = struct.Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size
assert ENTRY_BYTES == 34
_VERSION = 0


class AbortedTransaction(NamedTuple):
    """Records that readers of committed records must skip."""

    producer_id: int
    first_offset: int
    last_offset: int  # of the ABORT marker
    last_stable_offset: int


class CompletedTransaction(NamedTuple):
    """A transaction whose marker is written."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


def append_aborted(files: FileAccess, path: PurePath, entry: AbortedTransaction) -> None:
    """Add one entry to a segment's index, which is made when it is first needed."""
    file = files.open(path, create=True)
    try:
        whole = file.size() - file.size() % ENTRY_BYTES
        try:
            file.write_at(whole, _ENTRY.pack(_VERSION, *entry))
        except OSError:
            file.truncate(whole)  # half an entry would make the whole index look damaged
            raise
    finally:
        file.close()


def read_aborted(files: FileAccess, path: PurePath) -> list[AbortedTransaction] | None:
    """A segment's aborted transactions; none if it has no index, None if that is damaged."""
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


def replace_aborted(files: FileSystem, path: PurePath, entries: list[AbortedTransaction]) -> bool:
    """Put these entries in place of all; no entries, no file (as Kafka does). Whether that changed anything."""
    if read_aborted(files, path) == entries and (entries or not files.exists(path)):
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


class MarkerType(IntEnum):
    """What a control record decides (`ControlRecordType`)."""

    ABORT = 0
    COMMIT = 1


class Marker(NamedTuple):
    """The end of a transaction, as its control record says it."""

    type: MarkerType
    coordinator_epoch: int


def read_marker(batch: memoryview) -> Marker | None:
    """The marker a control batch holds; None if it is a control record of another kind."""
    from ottla.records.record_reader import read_records

    record = next(iter(read_records(batch)), None)
    if record is None or record.key is None or record.value is None or len(record.key) < 4 or len(record.value) < 6:
        return None
    kind = int.from_bytes(record.key[2:4], "big", signed=True)
    if kind not in MarkerType.__members__.values():
        return None
    return Marker(MarkerType(kind), int.from_bytes(record.value[2:6], "big", signed=True))


class TransactionState:
    """Transactions that are decided but whose marker is not yet below the high watermark."""

    __slots__ = ("_any_aborted", "unreplicated")

    def __init__(self) -> None:
        self.unreplicated: list[CompletedTransaction] = []  # whose marker is above the high watermark
        self._any_aborted: bool | None = None  # None: not read yet

    def any_aborted(self, files: FileAccess, directory: PurePath) -> bool:
        """Whether an index of aborted transactions may be there: most logs have none, and reading asks each time."""
        if self._any_aborted is None:
            self._any_aborted = any(name.endswith(".txnindex") for name in files.names_in(directory))
        return self._any_aborted

    def first_unstable_offset(self, producers: ProducerStates) -> int | None:
        """Where readers of committed records must stop; None if nothing is undecided."""
        first_open = producers.first_open_offset()
        if not self.unreplicated:
            return first_open
        first_done = min(done.first_offset for done in self.unreplicated)
        return first_done if first_open is None else min(first_open, first_done)

    def check_marker(self, header: BatchHeader, marker: Marker, producers: ProducerStates) -> None:
        """Fence a coordinator or a producer epoch that has been replaced."""
        producer = producers.get(header.producer_id)
        if producer is None:
            return
        if header.producer_epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"Marker of producer {header.producer_id} has epoch {header.producer_epoch}, known is {producer.epoch}"
            )
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"Coordinator epoch {marker.coordinator_epoch} is below {producer.coordinator_epoch}"
            )

    def end(
        self, producers: ProducerStates, header: BatchHeader, marker: Marker, *, offset: int, now_ms: int
    ) -> AbortedTransaction | None:
        """Note the marker written at `offset`; what belongs into the index if it aborted a transaction."""
        producer_id = header.producer_id
        first_offset = producers.record_marker(
            producer_id,
            header.producer_epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp=header.max_timestamp,
            now_ms=now_ms,
        )
        if first_offset == NO_OFFSET:
            return None
        aborted = marker.type is MarkerType.ABORT
        self.unreplicated.append(CompletedTransaction(producer_id, first_offset, offset, aborted))
        if not aborted:
            return None
        self._any_aborted = True
        first_open = producers.first_open_offset()
        return AbortedTransaction(producer_id, first_offset, offset, offset + 1 if first_open is None else first_open)

    def replicated_up_to(self, high_watermark: int) -> None:
        """Markers below the high watermark are final."""
        self.unreplicated = [done for done in self.unreplicated if done.last_offset >= high_watermark]

    def clear(self) -> None:
        """Forget everything (truncation, before the replay)."""
        self.unreplicated.clear()
