"""Runs a write task: reads ranges of partitions, decodes whole batches and writes Parquet files of its own.

Records never enter Spark's JVM: a task hands back only the names of its files, row counts, offsets and the columns it
found, and the driver commits them (`commit_protocol.py`). Memory is bounded by the writer's (`lake/file_writer.py`).

A task that meets a wider value than its columns had repeats its ranges with the wider type, for a file's column has one
type. That can happen once per column and step, and usually not at all: the driver knows the table's types.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import pyarrow as pa

from ottla.core.runtime import new_uuid
from ottla.pipeline.lake.content_hash import Known, quarantine_checksums, record_checksums, row_checksums
from ottla.pipeline.lake.field_names import Spelling
from ottla.pipeline.lake.file_writer import FileTarget, TableWriter
from ottla.pipeline.lake.lake_table import StagedFile
from ottla.pipeline.lake.recorded_content import QUARANTINED, ROWS, SOURCE, ContentSums
from ottla.pipeline.lake.schema import Path, find_leaf, merge, promoted_columns, wider
from ottla.pipeline.loading.change_mapping import ChangeMapper
from ottla.pipeline.loading.row_mapping import MappedRows, RowMapper, RowMapping
from ottla.pipeline.offset_range import OffsetRange
from ottla.pipeline.topic_reader import TopicReader


@dataclass(frozen=True, slots=True)
class WriteSpec:
    """The parameters of a write task besides its ranges. Serialized to the tasks."""

    topic: str
    reader: TopicReader
    mapping: RowMapping
    rows: FileTarget
    quarantine: FileTarget
    fields: pa.Schema
    """The table's field columns."""
    fixed: frozenset[Path] = frozenset()
    """The leaves of the fields that keep their type."""
    excluded: tuple[OffsetRange, ...] = ()
    """Offsets to leave out."""
    stem: str = ""
    """The beginning of the names of its files: the id of the load's lease."""
    checksums: bool = True
    """Whether the content of records and rows is summed up, for the commit to record."""


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """The files that a task wrote for its ranges."""

    ranges: Sequence[OffsetRange]
    rows: Sequence[StagedFile]
    quarantined: Sequence[StagedFile]
    fields: pa.Schema
    """The table's field columns as the task would have them."""
    records: int = 0
    late: int = 0
    value_bytes: int = 0
    tally: dict[str, int] = field(default_factory=dict)
    """Reasons of the quarantine, and how many rows have each."""
    exact: Sequence[Path] = ()
    """The leaves of longs that hold a number which no double holds."""
    content: Sequence[Sequence[int | str]] = ()
    """The checksums of the records, the rows and the quarantined records: entries of `ContentSums`."""


class _Wider(Exception):
    """A column must be wider than it was in what is written already."""


def write_ranges(
    job: WriteSpec, ranges: Sequence[OffsetRange], progress: Callable[[int], None] = lambda _: None
) -> StagedFiles:
    """Read, map and write records. Running it twice leaves orphaned files only: names are never reused."""
    fields = job.fields
    while True:
        attempt = _Attempt(job, fields)
        try:
            return attempt.run(ranges, progress)
        except _Wider:
            fields = merge([fields, attempt.mapper.fields], fixed=job.fixed)
            attempt.abandon()
        except BaseException:
            attempt.abandon()
            raise


class _Attempt:
    """One go at the ranges of a task."""

    def __init__(self, job: WriteSpec, fields: pa.Schema) -> None:
        stem = f"{job.stem}-{new_uuid().hex[:12]}"
        self.job = job
        self.mapper = RowMapper(job.mapping, job.topic, fields, job.fixed)
        changes = job.mapping.changes
        self.map = self.mapper.map if changes is None else ChangeMapper(self.mapper, changes).map
        self.rows = TableWriter(job.rows, stem)
        self.quarantined_files = TableWriter(job.quarantine, stem)
        self.records = self.late = self.value_bytes = 0
        self.tally: dict[str, int] = {}
        self.content = ContentSums()

    def run(self, ranges: Sequence[OffsetRange], progress: Callable[[int], None]) -> StagedFiles:
        for offset_range in ranges:
            for records in self.job.reader.read(offset_range):
                self._take(_without(records, self.job.excluded))
                progress(len(records))
        return StagedFiles(
            ranges,
            self.rows.finish(),
            self.quarantined_files.finish(),
            self.mapper.fields,
            self.records,
            self.late,
            self.value_bytes,
            self.tally,
            sorted(self.mapper.fixed - self.job.fixed),
            self.content.entries(),
        )

    def abandon(self) -> None:
        self.rows.abandon()
        self.quarantined_files.abandon()

    def _take(self, records: pa.RecordBatch) -> None:
        before = self.mapper.fields
        mapped = self.map(records)
        if self.records and any(promoted_columns(before, self.mapper.fields)):
            raise _Wider
        self.rows.add(mapped.rows)
        self.quarantined_files.add(mapped.quarantined)
        self._add_content(records, mapped)
        self.records += len(records)
        self.late += mapped.late
        self.value_bytes += records.nbytes
        if not len(mapped.quarantined):
            return
        for row in mapped.quarantined.group_by("reason").aggregate([([], "count_all")]).to_pylist():
            reason = row["reason"][:_REASON_CHARS]
            if reason in self.tally or len(self.tally) < _REASONS_MAX:
                self.tally[reason] = self.tally.get(reason, 0) + row["count_all"]

    def _add_content(self, records: pa.RecordBatch, mapped: MappedRows) -> None:
        """Add up the checksums. A reader's batch is of one partition."""
        if self.job.mapping.changes is not None or not (self.job.checksums and len(records)):
            return
        known: Known = {}
        partition = records.column("partition")[0].as_py()
        self.content.add(SOURCE, partition, records.column("offset").to_numpy(), record_checksums(records, known))
        rows, quarantined = mapped.rows, mapped.quarantined
        of_rows = row_checksums(rows, self.job.rows.partition_by, known)
        self.content.add(ROWS, partition, rows["offset"].to_numpy(), of_rows)
        if len(quarantined):
            self.content.add(
                QUARANTINED, partition, quarantined["offset"].to_numpy(), quarantine_checksums(quarantined)
            )


def _without(records: pa.RecordBatch, excluded: Sequence[OffsetRange]) -> pa.RecordBatch:
    """Leave out the records in ranges, which are sorted and do not overlap."""
    if not excluded or not len(records):
        return records
    partition = records.column("partition")[0].as_py()
    ranges = [r for r in excluded if r.partition == partition]
    offsets = records.column("offset").to_numpy()
    before = np.searchsorted([r.first_offset for r in ranges], offsets, side="right")
    ends = np.array([0, *(r.end_offset for r in ranges)])
    return records.filter(pa.array(offsets >= ends[before]))


_REASONS_MAX, _REASON_CHARS = 50, 200


def unify_columns(staged: Iterable[StagedFiles], job: WriteSpec) -> tuple[WriteSpec, list[int]]:
    """Return the job with the columns that fit all tasks' files, and the numbers of the tasks that must run it again.

    The table's own types come first, then those of the tasks in the order of their ranges, as if one task had read all:
    a conflict is decided for the earlier. A task with rows in another type runs again before those after it are
    considered, for the records that it quarantines then decide no type.
    """
    tasks = list(staged)
    fields, fixed = job.fields, job.fixed | job.mapping.fixed
    for n, task in enumerate(tasks):
        if _contradicts(task, fields, fixed):
            return replace(job, fields=fields, fixed=fixed), [n]
        fields = merge([fields, task.fields], fixed=fixed)
        leaves = [leaf for path in task.exact if (leaf := find_leaf(fields, path)) is not None]
        fixed |= {path for path, kind in leaves if kind == pa.int64()}
    again = [n for n, task in enumerate(tasks) if not _fits(task.fields, fields)]
    return replace(job, fields=fields, fixed=fixed), again


def _contradicts(task: StagedFiles, fields: pa.Schema, fixed: frozenset[Path]) -> bool:
    known, spelling = {f.name: f for f in fields}, Spelling(fields.names)
    for f in task.fields:
        have = known.get(spelling.of(f.name))
        if have is None:
            continue
        both = wider(have.type, f.type, fixed, (have.name,))
        if both is None or wider(both, f.type) != both:
            return True
    leaves = (find_leaf(fields, path) for path in task.exact)
    return any(leaf is not None and leaf[1] == pa.float64() for leaf in leaves)


def _fits(have: pa.Schema, wanted: pa.Schema) -> bool:
    return all(f.name in wanted.names for f in have) and not any(promoted_columns(have, wanted))


def as_json(staged: StagedFiles) -> str:
    """Convert to JSON for the way back to the driver."""
    document = asdict(staged) | {"fields": base64.b64encode(staged.fields.serialize()).decode()}
    return json.dumps(document)


def from_json(text: str) -> StagedFiles:
    """Decode what `as_json` encoded."""
    document = json.loads(text)
    document["ranges"] = [OffsetRange(**r) for r in document["ranges"]]
    document["rows"] = [StagedFile(**f) for f in document["rows"]]
    document["quarantined"] = [StagedFile(**f) for f in document["quarantined"]]
    document["exact"] = [tuple(path) for path in document["exact"]]
    document["fields"] = pa.ipc.read_schema(pa.BufferReader(base64.b64decode(document["fields"])))
    return StagedFiles(**document)
