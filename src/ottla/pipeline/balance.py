"""The books: lines read = records acknowledged = offsets in the log = rows in the lake + quarantined, per partition.

Each column has a source of its own: the reader of the file, the broker's answers, the broker's offsets after the run,
and the tables' files as any reader sees them. A number that came from another column would balance by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ottla.pipeline.log import OffsetRange


@dataclass(frozen=True, slots=True)
class Count:
    """Rows of one partition in a table's files, and how many different offsets they have."""

    rows: int
    distinct: int


@dataclass(frozen=True, slots=True)
class PartitionBooks:
    """One line of the sheet."""

    partition: int
    read: int
    acknowledged: int
    in_log: int
    in_lake: int
    quarantined: int
    repeated: int = 0
    """Rows whose offset another row has, in the lake or the quarantine."""

    @property
    def faults(self) -> list[str]:
        """What does not balance, in words; empty when everything does."""
        steps = (
            ("lines read", self.read, "records acknowledged", self.acknowledged),
            ("records acknowledged", self.acknowledged, "offsets in the log", self.in_log),
            ("offsets in the log", self.in_log, "rows in the lake and quarantined", self.in_lake + self.quarantined),
        )
        found = [
            f"partition {self.partition}: {left} {before}, but {right} {after} ({right - left:+,})"
            for before, left, after, right in steps
            if left != right
        ]
        if self.repeated:
            found.append(f"partition {self.partition}: {self.repeated} rows repeat an offset")
        return found


@dataclass(frozen=True, slots=True)
class BalanceSheet:
    """All partitions of a run."""

    lines: Sequence[PartitionBooks]

    @property
    def faults(self) -> list[str]:
        """Every fault of every partition."""
        return [fault for line in self.lines for fault in line.faults]

    @property
    def balanced(self) -> bool:
        """Nothing lost, nothing twice."""
        return not self.faults

    @property
    def exit_code(self) -> int:
        """What a command that prints the sheet ends with."""
        return 0 if self.balanced else 1

    def total(self) -> PartitionBooks:
        """The sums; partition -1."""
        return PartitionBooks(
            partition=-1,
            read=sum(line.read for line in self.lines),
            acknowledged=sum(line.acknowledged for line in self.lines),
            in_log=sum(line.in_log for line in self.lines),
            in_lake=sum(line.in_lake for line in self.lines),
            quarantined=sum(line.quarantined for line in self.lines),
            repeated=sum(line.repeated for line in self.lines),
        )


def balance_sheet(
    *,
    read: Mapping[int, int],
    acknowledged: Mapping[int, int],
    in_log: Mapping[int, OffsetRange],
    lake_files: Sequence[str],
    quarantine_files: Sequence[str],
) -> BalanceSheet:
    """The sheet of the offsets in `in_log`, the part of the log that this run wrote."""
    lake, aside = tally(lake_files, in_log), tally(quarantine_files, in_log)
    both = tally([*lake_files, *quarantine_files], in_log)
    return BalanceSheet(
        [
            PartitionBooks(
                partition,
                read=read.get(partition, 0),
                acknowledged=acknowledged.get(partition, 0),
                in_log=span.count,
                in_lake=lake[partition].rows,
                quarantined=aside[partition].rows,
                repeated=both[partition].rows - both[partition].distinct,
            )
            for partition, span in sorted(in_log.items())
        ]
    )


def tally(files: Iterable[str], spans: Mapping[int, OffsetRange]) -> dict[int, Count]:
    """Count the rows of these Parquet files within the spans: one byte of memory per offset, one file at a time."""
    import numpy as np
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    rows = dict.fromkeys(spans, 0)
    seen = {partition: np.zeros(span.count, dtype=np.bool_) for partition, span in spans.items()}
    for file in files:
        table = pq.ParquetFile(file).read(columns=["partition", "offset"], use_threads=False)
        for partition in pc.unique(table["partition"]).to_pylist():
            span = spans.get(partition)
            if span is None:
                continue
            at = table.filter(pc.equal(table["partition"], partition))["offset"].to_numpy() - span.first_offset
            at = at[(at >= 0) & (at < span.count)]
            rows[partition] += len(at)
            seen[partition][at] = True
    return {partition: Count(rows[partition], int(seen[partition].sum())) for partition in spans}
