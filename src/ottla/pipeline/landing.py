"""Landing: one task reads a piece of a partition, decodes whole batches and writes Parquet files of its own.

Records never enter Spark's JVM: a task hands back only the names of its files, row counts and offsets, and the driver
commits them (`load.py`). Memory is bounded: rows are written out whenever `_BUFFER_BYTES` of them have gathered.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ottla.pipeline.formats import access_log
from ottla.pipeline.lake import LandedFile, OffsetRange
from ottla.pipeline.load import LandedPiece, Piece

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BUFFER_BYTES = 64 << 20
_COORDINATES = (
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("record_time", pa.timestamp("us", tz="UTC")),
)
RECORDS = pa.schema([*_COORDINATES, pa.field("key", pa.binary()), pa.field("value", pa.binary())])
"""A record as it lies in the log, without its headers."""
PARTITION_BY = ("event_date", "event_hour")
REQUESTS = pa.schema(
    [*_COORDINATES, *access_log.FIELDS, pa.field("event_date", pa.date32()), pa.field("event_hour", pa.int32())]
)
"""The lake table: where a record came from, its fields, and the day and hour (UTC) it is filed under."""
QUARANTINE = pa.schema(
    [
        pa.field("topic", pa.string()),
        *_COORDINATES,
        access_log.REASON,
        pa.field("key", pa.binary()),
        pa.field("raw", pa.binary()),
    ]
)
"""What was not understood, whole, so that it can be looked at and loaded later."""

_LEAN_COLUMNS = ["offset", "record_time", "event_time"]
"""Numbers that climb: small as differences, useless as a dictionary."""


class Reader(Protocol):
    """Reads a range of a partition; `source.py` has the one that asks a broker. Sent to the tasks, so it pickles."""

    def read(self, offsets: OffsetRange) -> Iterator[pa.RecordBatch]:
        """The records as `RECORDS` batches, in order of offset, none outside the range."""
        ...


@dataclass(frozen=True, slots=True)
class LandingJob:
    """What a task needs to know beside its piece."""

    topic: str
    reader: Reader
    table: Path
    quarantine: Path


def land_with_spark(spark: SparkSession, job: LandingJob) -> Callable[[Sequence[Piece]], Iterable[LandedPiece]]:
    """A `load.Land` that gives each piece to a task of its own."""

    def land(pieces: Sequence[Piece]) -> list[LandedPiece]:
        todo = list(pieces)

        def tasks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            pa.set_cpu_count(1)  # Spark already runs one task per core
            for batch in batches:
                done = [_as_json(land_piece(job, todo[index])) for index in batch.column(0).to_pylist()]
                yield pa.record_batch({"landed": pa.array(done, pa.string())})

        landed = spark.range(0, len(todo), 1, len(todo)).mapInArrow(tasks, "landed string")
        return [_from_json(row.landed) for row in landed.collect()]

    return land


def land_piece(job: LandingJob, piece: Piece) -> LandedPiece:
    """Read, parse and write one piece. Running it twice leaves strays and harms nothing: names are never reused."""
    rows = _Landing(job.table, piece.offsets, PARTITION_BY)
    aside = _Landing(job.quarantine, piece.offsets, ())
    for records in job.reader.read(piece.offsets):
        parsed = access_log.parse(records.column("value"))
        good = pc.is_null(parsed["reason"])
        rows.add(_requests(records, parsed).filter(good))
        bad = pc.and_(pc.invert(good), pc.greater_equal(records.column("offset"), piece.quarantine_from))
        aside.add(_quarantined(job.topic, records, parsed).filter(bad))
    return LandedPiece(piece.offsets, rows.finish(), aside.finish())


def _requests(records: pa.RecordBatch, parsed: pa.Table) -> pa.Table:
    time = parsed["event_time"]
    columns = [records.column(field.name) for field in _COORDINATES] + parsed.columns[: len(access_log.FIELDS)]
    return pa.table([*columns, time.cast(pa.date32()), pc.hour(time).cast(pa.int32())], schema=REQUESTS)


def _quarantined(topic: str, records: pa.RecordBatch, parsed: pa.Table) -> pa.Table:
    columns: dict[str, Any] = {
        "topic": pa.repeat(topic, len(parsed)),
        "reason": parsed["reason"],
        "key": records.column("key"),
        "raw": records.column("value"),
    }
    columns |= {field.name: records.column(field.name) for field in _COORDINATES}
    return pa.table([columns[field.name] for field in QUARANTINE], schema=QUARANTINE)


class _Landing:
    """The files of one piece in one table: gathers rows, writes them by day and hour when there are enough."""

    def __init__(self, root: Path, offsets: OffsetRange, partition_by: Sequence[str]) -> None:
        self._root = root
        self._stem = f"{offsets.partition}-{offsets.first_offset}-{offsets.end_offset}"
        self._partition_by = partition_by
        self._gathered: list[pa.Table] = []
        self._gathered_bytes = 0
        self._files: list[LandedFile] = []

    def add(self, rows: pa.Table) -> None:
        if len(rows):
            self._gathered.append(rows)
            self._gathered_bytes += rows.nbytes
        if self._gathered_bytes >= _BUFFER_BYTES:
            self._write_out()

    def finish(self) -> list[LandedFile]:
        self._write_out()
        return self._files

    def _write_out(self) -> None:
        if not self._gathered:
            return
        rows = pa.concat_tables(self._gathered)
        self._gathered, self._gathered_bytes = [], 0
        for values, part in _split(rows, self._partition_by):
            self._files.append(self._write(values, part))

    def _write(self, values: Mapping[str, str], rows: pa.Table) -> LandedFile:
        directory = "".join(f"{name}={value}/" for name, value in values.items())
        name = f"{directory}part-{self._stem}-{uuid.uuid4().hex}.parquet"
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        dictionaries = [f.name for f in rows.schema if f.name not in {*_LEAN_COLUMNS, "raw", "key"}]
        pq.write_table(
            rows,
            path,
            compression="zstd",
            use_dictionary=dictionaries,
            column_encoding={f.name: "DELTA_BINARY_PACKED" for f in rows.schema if f.name in _LEAN_COLUMNS},
        )
        told = os.stat(path)  # noqa: PTH116 - one call for size and time
        limits = pc.min_max(rows["offset"]).as_py()
        return LandedFile(
            path=name,
            size_bytes=told.st_size,
            rows=len(rows),
            partition_values=values,
            first_offset=limits["min"],
            last_offset=limits["max"],
            modified_ms=told.st_mtime_ns // 1_000_000,
        )


def _split(rows: pa.Table, by: Sequence[str]) -> Iterator[tuple[dict[str, str], pa.Table]]:
    """The rows of each combination of the columns in `by`, without those columns: the directory names carry them."""
    if not by:
        yield {}, rows
        return
    rest = [name for name in rows.column_names if name not in by]
    rows = rows.sort_by([(name, "ascending") for name in (*by, "offset")])
    at = 0
    for group in rows.group_by(list(by), use_threads=False).aggregate([([], "count_all")]).to_pylist():
        count = group.pop("count_all")
        yield {name: str(value) for name, value in group.items()}, rows.slice(at, count).select(rest)
        at += count


def _as_json(landed: LandedPiece) -> str:
    return json.dumps(asdict(landed))


def _from_json(text: str) -> LandedPiece:
    told = json.loads(text)
    return LandedPiece(
        OffsetRange(**told["offsets"]),
        rows=[LandedFile(**file) for file in told["rows"]],
        quarantined=[LandedFile(**file) for file in told["quarantined"]],
    )
