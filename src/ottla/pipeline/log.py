"""What a topic's log is to the pipeline: offsets, bounds, records as Arrow columns, and the port that reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

TIME = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
"""A record's headers, in order; a name may come twice."""
RECORDS = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("record_time", TIME),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)
"""A record as stored in the log. A reader that was asked for headers adds a column `headers` of type `HEADERS`."""


class CannotLoad(Exception):
    """The log and the table do not fit together: offsets the table needs are gone, or it is ahead of the log."""


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets of one partition from `first_offset` up to, not including, `end_offset`."""

    partition: int
    first_offset: int
    end_offset: int

    @property
    def count(self) -> int:
        """How many offsets; with gaps in the log there are fewer records."""
        return self.end_offset - self.first_offset

    @property
    def text(self) -> str:
        """The offsets in words, as every message and the audit name them: first and last.

        >>> OffsetRange(0, 5, 8).text, OffsetRange(0, 5, 6).text
        ('offsets 5 to 7', 'offset 5')
        """
        return offsets_text(self.first_offset, self.end_offset)


def offsets_text(first_offset: int, end_offset: int) -> str:
    """Name the offsets from `first_offset` up to, not including, `end_offset`."""
    if end_offset - first_offset <= 1:
        return f"offset {first_offset}"
    return f"offsets {first_offset} to {end_offset - 1}"


class Reader(Protocol):
    """Reads a range of a partition; `source.py` has the one that asks a broker. Sent to the tasks, so it pickles."""

    def read(self, offsets: OffsetRange) -> Iterator[pa.RecordBatch]:
        """The records as `RECORDS` batches, in order of offset, none outside the range."""
        ...
