"""Keeps what the last clean stop noted of the indexes of each log, for the next stop, in one short value a log.

A log that has not changed since the start is not read at the stop: what was noted of its indexes is noted again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ottla.storage.file_names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, offset_name
from ottla.storage.integrity.metadata_backup import BackedUpFile
from ottla.storage.log.partition_log import PartitionLog

INDEX_SUFFIXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
_COPY: Final = struct.Struct(">HqqI")  # which suffix, modification time, size, checksum


class IndexCopies:
    """The copies of the indexes of the last segment of each log."""

    __slots__ = ("_packed",)

    def __init__(self, entries: Mapping[str, BackedUpFile], logs: Iterable[PartitionLog]) -> None:
        """Take the copies of these logs from the entries of `ottla-copies`."""
        self._packed: dict[str, bytes] = {}  # by the name of the directory
        for log in logs:
            copies = [(at, entries.get(name)) for at, name in enumerate(_names(log))]
            packed = b"".join([_COPY.pack(at, *copy[:3]) for at, copy in copies if copy is not None])
            if packed:
                self._packed[log.directory.name] = packed

    def of(self, log: PartitionLog) -> dict[str, BackedUpFile]:
        """Return the copies of a log that has not changed since, by the names of the files; empty if none were."""
        packed, names = self._packed.get(log.directory.name, b""), _names(log)
        copies: Iterator[tuple[int, int, int, int]] = _COPY.iter_unpack(packed)
        return {names[at]: BackedUpFile(modified_ns, size, crc) for at, modified_ns, size, crc in copies}


def _names(log: PartitionLog) -> list[str]:
    return [f"{log.directory.name}/{offset_name(log.active.base_offset, suffix)}" for suffix in INDEX_SUFFIXES]
