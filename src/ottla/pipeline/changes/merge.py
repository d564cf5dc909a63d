"""Merges changes into the rows of a table, a bucket at a time: the last change of each key wins, or each is a version.

A file with a row that changes is replaced by one without it (copy on write), for readers of today agree on no other way
in both formats. The new rows are in the same new file. Files whose keys do not change stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

import numpy as np
import pyarrow as pa

from ottla.pipeline.changes.bucket_files import (
    NO_TIME,
    BucketChanges,
    BucketWork,
    Flags,
    Longs,
    MergeSpec,
    change_rows,
    deciding_columns,
    table_rows,
)
from ottla.pipeline.changes.rule import IS_CURRENT, VALID_FROM, VALID_TO
from ottla.pipeline.lake.file_writer import TableWriter
from ottla.pipeline.lake.lake_table import StagedFile, TableFile
from ottla.pipeline.lake.rewrite import FileSwap
from ottla.pipeline.topic_reader import TIME

MergeRunner = Callable[[MergeSpec, Sequence[BucketWork]], list[FileSwap]]
"""Merges buckets, each in a task of its own."""


def merge_bucket(job: MergeSpec, work: BucketWork) -> FileSwap:
    """Merge the changes of a bucket. Raises KeyInTwoPartitions; then, as after any error, its files are removed."""
    writer = job.writer()
    try:
        changes = BucketChanges.read(job, work)
        merge = _merge_versions if job.rule.history else _merge_latest
        removed = merge(job, work, changes, writer)
        return FileSwap(removed, writer.finish())
    except BaseException:
        writer.abandon()
        raise


def _merge_latest(job: MergeSpec, work: BucketWork, changes: BucketChanges, writer: TableWriter) -> list[TableFile]:
    """Write the rows that stay, and the last change of each key that does not delete it."""
    removed = []
    for file in work.files:
        rows = deciding_columns(job, file)
        keys = changes.find(job.rule.identities(rows))
        if not (keys >= 0).any():
            continue
        changes.check_partitions(rows, keys)
        removed.append(file)
        _write(writer, table_rows(job, file), keys < 0)
    lasts = changes.ends - 1
    is_kept = np.zeros(len(changes.order), np.bool_)
    is_kept[changes.order[lasts[~changes.deleted[lasts]]]] = True
    _write(writer, change_rows(job, work), is_kept)
    return removed


def _merge_versions(job: MergeSpec, work: BucketWork, changes: BucketChanges, writer: TableWriter) -> list[TableFile]:
    """Close the current version of each key that changes, and write the new versions."""
    before = np.full(len(changes.firsts), NO_TIME)
    changed_files: list[tuple[TableFile, Longs]] = []
    for file in work.files:
        rows = deciding_columns(job, file)
        keys = changes.find(job.rule.identities(rows))
        if not (keys >= 0).any():
            continue
        changes.check_partitions(rows, keys)
        changed_files.append((file, keys))
        since = rows[VALID_FROM].cast(pa.int64()).fill_null(NO_TIME).to_numpy()
        np.maximum.at(before, keys[keys >= 0], since[keys >= 0])
    times = times_of_versions(changes, before)
    for file, keys in changed_files:
        closed_at = np.where(keys >= 0, times[changes.firsts[np.maximum(keys, 0)]], NO_TIME)
        at = 0
        for rows in table_rows(job, file):
            some = slice(at, at + len(rows))
            at += len(rows)
            writer.add(rows.filter(pa.array(keys[some] < 0)))
            writer.add(_closed(rows, closed_at[some]).filter(pa.array(keys[some] >= 0)))
    _write_versions(job, work, changes, times, writer)
    return [file for file, _ in changed_files]


def times_of_versions(changes: BucketChanges, before: Longs) -> Longs:
    """Return the time at which each change became valid: its event time, but never before that of the version it ends.

    `before` has by key the time of the version that is current. After a deletion a key begins again, with no time
    before it, as it must where a load begins after the deletion: of that one the table has no trace.
    """
    times = changes.times_us.copy()
    starts = np.union1d(changes.firsts, np.flatnonzero(changes.deleted[:-1]) + 1)
    since = np.full(len(starts), NO_TIME)
    since[np.searchsorted(starts, changes.firsts)] = before
    previous = np.append(NO_TIME, times[:-1])
    previous[starts] = since
    ends = np.append(starts[1:], len(times))
    for n in np.unique(np.searchsorted(starts, np.flatnonzero(times < previous), side="right") - 1):
        first, end = starts[n], ends[n]
        times[first:end] = np.maximum.accumulate(np.append(since[n], times[first:end]))[1:]
    return times


def _write_versions(
    job: MergeSpec, work: BucketWork, changes: BucketChanges, times: Longs, writer: TableWriter
) -> None:
    """Write each change that is no deletion as a version, valid until the next change of its key."""
    count = len(changes.order)
    last = np.zeros(count, np.bool_)
    last[changes.ends - 1] = True
    until = np.where(last, NO_TIME, np.append(times[1:], NO_TIME))
    in_files = np.empty(count, np.int64)
    in_files[changes.order] = np.arange(count)
    at = 0
    for rows in change_rows(job, work):
        here = in_files[at : at + len(rows)]
        at += len(rows)
        rows = _with(rows, VALID_FROM, _times(times[here]))  # noqa: PLW2901
        rows = _with(rows, VALID_TO, _times(until[here]))  # noqa: PLW2901
        rows = _with(rows, IS_CURRENT, pa.array(last[here]))  # noqa: PLW2901
        writer.add(rows.filter(pa.array(~changes.deleted[here])))


def _write(writer: TableWriter, parts: Iterator[pa.Table], wanted: Flags) -> None:
    at = 0
    for rows in parts:
        writer.add(rows.filter(pa.array(wanted[at : at + len(rows)])))
        at += len(rows)


def _closed(rows: pa.Table, closed_at: Longs) -> pa.Table:
    rows = _with(rows, VALID_TO, _times(closed_at))
    return _with(rows, IS_CURRENT, pa.repeat(pa.scalar(value=False), len(rows)))


def _with(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index(name), name, values)


def _times(times_us: Longs) -> pa.Array:
    return pa.array(times_us, mask=times_us == NO_TIME).cast(TIME)


def as_json(swap: FileSwap) -> str:
    """Convert to JSON for the way back to the driver."""
    return json.dumps({"remove": [file.path for file in swap.remove], "add": [asdict(file) for file in swap.add]})


def from_json(text: str, work: BucketWork) -> FileSwap:
    """Decode what `as_json` encoded of this work."""
    document = json.loads(text)
    files = {file.path: file for file in work.files}
    return FileSwap([files[path] for path in document["remove"]], [StagedFile(**file) for file in document["add"]])
