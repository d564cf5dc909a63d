"""Finds the records that earlier attempts of a task have written to the log.

Records are compared by their content, for Spark gives a repeated task the same rows, but after a shuffle not in the
same order.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from ottla.core.ids import TopicPartition
from ottla.pipeline.connector.options import ReadOptions
from ottla.pipeline.connector.range_reader import PartitionRange, RangeReader
from ottla.records.record_reader import read_records

Headers = Sequence[tuple[str, bytes | None]]
_LENGTH = struct.Struct(">i").pack
_TIME = struct.Struct(">q").pack


def fingerprint(key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int | None = None) -> bytes:
    """Return 16 bytes that identify a record; without its time if the broker or the clock set it."""
    parts = [b"" if timestamp_ms is None else _TIME(timestamp_ms)]
    for part in (key, value):
        parts += (_LENGTH(-1),) if part is None else (_LENGTH(len(part)), part)
    for name, content in headers:
        encoded = name.encode()
        parts += (_LENGTH(len(encoded)), encoded)
        parts += (_LENGTH(-1),) if content is None else (_LENGTH(len(content)), content)
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()


class AlreadyWritten:
    """Records that are in the log, each to be claimed by one row."""

    def __init__(self) -> None:
        self._left: dict[TopicPartition, Counter[bytes]] = {}
        self.found = 0

    def add(self, tp: TopicPartition, record_fingerprint: bytes) -> None:
        """Add a record that the log has."""
        self._left.setdefault(tp, Counter())[record_fingerprint] += 1
        self.found += 1

    def claim(self, partitions: Iterable[TopicPartition], *fingerprints: bytes) -> bool:
        """Return whether a record is left in one of the partitions, and remove it.

        `fingerprints` are those of the same record with and without its time.
        """
        for tp in partitions:
            left = self._left.get(tp)
            for found in fingerprints if left is not None else ():
                assert left is not None
                if left[found] > 0:
                    left[found] -= 1
                    return True
        return False

    @property
    def left(self) -> int:
        """Records in the log that no row of this attempt was."""
        return sum(count for counter in self._left.values() for count in counter.values())


def find_already_written(
    read_options: ReadOptions,
    writers: Iterable[int],
    ranges: Mapping[TopicPartition, tuple[int, int]],
    *,
    timed: bool,
    read: Callable[[ReadOptions, PartitionRange], RangeReader] = RangeReader,
) -> AlreadyWritten:
    """Find the records that these producer ids wrote into the ranges. `timed`: rows bring their own time, so it counts.

    Raises DataLoss where part of a range is deleted: what was written there is unknown.
    """
    ids = set(writers)
    already_written = AlreadyWritten()
    for tp, (first, end) in ranges.items():
        reader = read(read_options, PartitionRange(tp.topic, tp.partition, first, end))
        for batches in reader.batches():
            for view, header in batches:
                if header.producer_id not in ids:
                    continue
                with_time = timed and not header.log_append_time
                for record in read_records(view):
                    time_ms = record.timestamp_ms if with_time else None
                    already_written.add(tp, fingerprint(record.key, record.value, record.headers, time_ms))
    return already_written
