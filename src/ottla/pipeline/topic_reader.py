"""Declares the port that reads a topic for the pipeline, as Arrow columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa

from ottla.pipeline.offset_range import OffsetRange

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


class TopicReader(Protocol):
    """Reads a range of a partition; `source.py` has the one that asks a broker. Sent to the tasks, so it pickles."""

    def read(self, offsets: OffsetRange) -> Iterator[pa.RecordBatch]:
        """Return the records as `RECORDS` batches, in order of offset, none outside the range."""
        ...
