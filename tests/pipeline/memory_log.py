"""A topic in memory, behind the port a landing task reads from: for tests of everything but the broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from ottla.pipeline.lake import OffsetRange
from ottla.pipeline.landing import RECORDS
from ottla.pipeline.load import LogSpan

BATCH_RECORDS = 7


@dataclass
class MemoryTopic:
    """Values by partition; keys are the partition's number, times the offset."""

    values: dict[int, list[bytes | None]] = field(default_factory=dict)

    def spans(self) -> dict[int, LogSpan]:
        return {partition: LogSpan(0, len(values)) for partition, values in self.values.items()}

    def read(self, offsets: OffsetRange) -> Iterator[pa.RecordBatch]:
        values = self.values[offsets.partition]
        for first in range(offsets.first_offset, offsets.end_offset, BATCH_RECORDS):
            places = range(first, min(first + BATCH_RECORDS, offsets.end_offset))
            yield pa.record_batch(
                [
                    pa.array([offsets.partition] * len(places), pa.int32()),
                    pa.array(places, pa.int64()),
                    pa.array([place * 1000 for place in places], pa.timestamp("us", tz="UTC")),
                    pa.array([b"%d" % offsets.partition] * len(places), pa.binary()),
                    pa.array([values[place] for place in places], pa.binary()),
                ],
                schema=RECORDS,
            )
