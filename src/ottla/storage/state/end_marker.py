"""Builds and reads the marker that ends a transaction in a partition (KIP-98).

A marker is a control batch of one record. Its key has a version (2) and the type (2), its value a version (2) and the
epoch of the coordinator that has written it (4).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from ottla.records.builder import NewRecord, build_batch

_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_MARKER_VERSION = 0


class MarkerType(IntEnum):
    """The outcome in a transaction marker (`ControlRecordType`)."""

    ABORT = 0
    COMMIT = 1


class Marker(NamedTuple):
    """The end of a transaction, as its control record has it."""

    type: MarkerType
    coordinator_epoch: int


def read_marker(batch: memoryview) -> Marker | None:
    """Return the marker a control batch holds; None if it is a control record of another kind."""
    from ottla.records.record_reader import read_records

    record = next(iter(read_records(batch)), None)
    if record is None or record.key is None or record.value is None or len(record.key) < 4 or len(record.value) < 6:
        return None
    kind = int.from_bytes(record.key[2:4], "big", signed=True)
    if kind not in MarkerType.__members__.values():
        return None
    return Marker(MarkerType(kind), int.from_bytes(record.value[2:6], "big", signed=True))


def build_marker(marker: Marker, *, producer_id: int, epoch: int, now_ms: int) -> bytearray:
    """Build the control batch that ends a producer's transaction."""
    record = NewRecord(
        key=_MARKER_KEY.pack(_MARKER_VERSION, marker.type),
        value=_MARKER_VALUE.pack(_MARKER_VERSION, marker.coordinator_epoch),
        timestamp_ms=now_ms,
    )
    return build_batch([record], producer_id=producer_id, producer_epoch=epoch, transactional=True, control=True)
