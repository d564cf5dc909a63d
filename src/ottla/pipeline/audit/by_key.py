"""Compares a table whose rows change with the log: a key's row must be of its last record, and a deletion leaves none.

Of a table that keeps former rows, every record must have its version, and the current one must be of the last record.
Keys are compared by 64-bit hashes: two of ten million keys share one with a probability of 3 in a million, and then a
difference may be overlooked. Memory is about 50 bytes for each record of a partition's log and each row of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ottla.pipeline.audit.compare import Faults, Flags, Longs, PartitionExtent, buckets_of, enter
from ottla.pipeline.audit.model import NO_TIME, DiscrepancyKind, PartitionAudit
from ottla.pipeline.audit.readers import times_ms
from ottla.pipeline.changes.rule import DELETED, IS_CURRENT, ChangeRule
from ottla.pipeline.lake.lake_table import TableFile, TableReader
from ottla.pipeline.lake.parquet_files import read_columns
from ottla.pipeline.loading.change_mapping import ChangeMapper
from ottla.pipeline.loading.row_mapping import RowMapper, RowMapping
from ottla.pipeline.offset_range import OffsetRange
from ottla.pipeline.topic_reader import TopicReader


@dataclass(frozen=True, slots=True)
class KeyedRecords:
    """Records of one partition's log, in the order of offsets."""

    keys: Longs
    """The hash of each record's identity; of refused records it means nothing."""
    offsets: Longs
    times_ms: Longs
    deleted: Flags
    refused: Flags
    """Whether the record changes no row: it belongs into the quarantine."""


@dataclass(frozen=True, slots=True)
class KeyedRows:
    """Rows of a table that are of one partition's records."""

    keys: Longs
    offsets: Longs
    times_ms: Longs
    current: Flags

    def where(self, mask: Any) -> KeyedRows:
        """Return some of the rows."""
        return KeyedRows(self.keys[mask], self.offsets[mask], self.times_ms[mask], self.current[mask])


@dataclass(frozen=True, slots=True)
class LogKeys:
    """Reads the log as the changes that a load makes of it."""

    reader: TopicReader
    mapping: RowMapping
    topic: str
    fields: pa.Schema
    """The table's field columns."""
    progress: Callable[[int], None] = lambda _: None

    def read(self, extent: PartitionExtent) -> KeyedRecords:
        """Return all records of a partition. Raises what the reader raises."""
        offsets = OffsetRange(extent.partition, extent.log_start, extent.log_end)
        parts = [_NO_RECORDS, *map(self._of_batch, self._batches(offsets))]
        return KeyedRecords(*(np.concatenate([getattr(p, name) for p in parts]) for name in _RECORD_COLUMNS))

    def key_at(self, partition: int, offset: int) -> bytes | None:
        """Return the identity of a record; None if the log has it no more."""
        for batch in self._batches(OffsetRange(partition, offset, offset + 1)):
            for key in self._changes(batch)[0].to_pylist():
                return bytes(key) if key is not None else None
        return None

    def _batches(self, offsets: OffsetRange) -> Iterator[pa.RecordBatch]:
        for batch in self.reader.read(offsets) if offsets.count > 0 else ():
            if len(batch):
                self.progress(len(batch))
                yield batch

    def _of_batch(self, batch: pa.RecordBatch) -> KeyedRecords:
        identities, deleted, refused = self._changes(batch)
        times = times_ms(batch.column("record_time"))
        return KeyedRecords(hashes(identities), batch.column("offset").to_numpy(), times, deleted, refused)

    def _changes(self, batch: pa.RecordBatch) -> tuple[pa.Array, Flags, Flags]:
        """Return the identity that each record changes, whether it deletes it, and whether the record is refused.

        A record that means nothing, like the tombstone after a deletion of Debezium's, deletes a key that no row has.
        """
        rule = self.mapping.changes
        assert rule is not None
        mapped = ChangeMapper(RowMapper(self.mapping, self.topic, self.fields), rule).map(batch)
        offsets, rows = batch.column("offset"), mapped.rows
        refused = pc.is_in(offsets, value_set=mapped.quarantined["offset"]).to_numpy(zero_copy_only=False)
        if not len(rows):
            return pa.nulls(len(batch), pa.large_binary()), np.ones(len(batch), np.bool_), refused
        at = pc.index_in(offsets, value_set=rows["offset"])
        deleted = pc.fill_null(rows[DELETED].combine_chunks().take(at), fill_value=True)
        return rule.identities(rows).take(at), np.asarray(deleted.to_numpy(zero_copy_only=False)), refused


_RECORD_COLUMNS = ("keys", "offsets", "times_ms", "deleted", "refused")
_NONE, _NO_FLAGS = np.zeros(0, np.int64), np.zeros(0, np.bool_)
_NO_RECORDS = KeyedRecords(_NONE, _NONE, _NONE, _NO_FLAGS, _NO_FLAGS)


class TableKeys:
    """A table's rows of one topic by partition, as of the moment this was made."""

    def __init__(self, table: TableReader, topic: str, rule: ChangeRule) -> None:
        self._table, self._topic, self._rule = table, topic, rule
        self._files = table.files() if table.exists() else []
        parts = [self._read(file) for file in self._files]
        self._partitions = np.concatenate([_NONE, *(partitions for partitions, _ in parts)])
        columns = ("keys", "offsets", "times_ms", "current")
        none = KeyedRows(_NONE, _NONE, _NONE, _NO_FLAGS)
        keyed_rows = [none, *(rows for _, rows in parts)]
        self._rows = KeyedRows(*(np.concatenate([getattr(part, name) for part in keyed_rows]) for name in columns))

    def rows(self, partition: int) -> KeyedRows:
        """Return the rows of a partition's records."""
        return self._rows.where(self._partitions == partition)

    def keys_at(self, partition: int, offsets: Collection[int]) -> dict[int, bytes]:
        """Return the identities of the rows with these offsets."""
        keys: dict[int, bytes] = {}
        sorted_offsets = pa.array(sorted(offsets), pa.int64())
        for file in self._files if len(sorted_offsets) else ():
            rows = self._columns(file)
            here = pc.and_(pc.equal(rows["partition"], partition), pc.is_in(rows["offset"], value_set=sorted_offsets))
            rows = rows.filter(here)
            keys |= dict(zip(rows["offset"].to_pylist(), self._rule.identities(rows).to_pylist(), strict=True))
        return keys

    def _columns(self, file: TableFile) -> pa.Table:
        names = ("topic", "partition", "offset", "record_time", *self._rule.identity_columns)
        rows = read_columns(self._table.store, file.path, names)
        return rows.filter(pc.equal(rows["topic"], self._topic))

    def _read(self, file: TableFile) -> tuple[Longs, KeyedRows]:
        rows = self._columns(file)
        current = np.full(len(rows), file.partition_values.get(IS_CURRENT, "true") == "true")
        keys = hashes(self._rule.identities(rows))
        keyed_rows = KeyedRows(keys, rows["offset"].to_numpy(), times_ms(rows["record_time"]), current)
        return rows["partition"].to_numpy().astype(np.int64), keyed_rows


def hashes(identities: pa.Array) -> Longs:
    """Return a 64-bit hash of each identity, the same in this process."""
    return np.fromiter(map(hash, identities.to_pylist()), np.int64, len(identities))


@dataclass(frozen=True, slots=True)
class KeyComparison:
    """Compares one partition."""

    extent: PartitionExtent
    records: KeyedRecords
    rows: KeyedRows
    quarantined: Longs
    """The offsets of quarantined records."""
    history: bool
    compacts: bool
    bucket_ms: int

    def audit(self, discrepancies_max: int) -> PartitionAudit:
        """Count, and name what is wrong, except for the producers' reports."""
        extent, records, rows = self.extent, self.records, self.rows
        audit = PartitionAudit(extent.partition, extent.first_offset, extent.position, extent.log_start, extent.log_end)
        audit.skipped = extent.skipped
        audit.newest_ms = int(records.times_ms.max(initial=NO_TIME))
        faults = Faults(extent.partition, discrepancies_max)
        below = (records.offsets >= extent.first_offset) & (records.offsets < extent.position)
        aside = np.isin(records.offsets, self.quarantined)
        live = below & ~aside & ~records.refused
        last = self._lasts(live)
        current = last & ~records.deleted
        expected = live & ~records.deleted if self.history else current
        self._count_log(audit, below, live & ~expected)
        self._count_rows(audit)
        absent = (expected | (below & ~aside & records.refused)) & ~np.isin(records.offsets, rows.offsets)
        declared = absent & self._within(extent.deleted)
        self._enter(audit, "deleted", records.times_ms[declared])
        self._note(audit, faults, DiscrepancyKind.MISSING, "missing", absent & ~declared)
        self._check_rows(audit, faults, expected, last, current)
        audit.faults = faults.found
        return audit

    def _lasts(self, live: Flags) -> Flags:
        """Return which records are the last ones of their keys."""
        at = np.flatnonzero(live)
        order = at[np.lexsort((self.records.offsets[at], self.records.keys[at]))]
        keys = self.records.keys[order]
        is_last = np.zeros(len(live), np.bool_)
        is_last[order[np.append(keys[1:] != keys[:-1], True)[: len(order)]]] = True
        return is_last

    def _count_log(self, audit: PartitionAudit, below: Flags, replaced: Flags) -> None:
        records, extent = self.records, self.extent
        waiting = records.offsets >= extent.position
        self._enter(audit, "in_log", records.times_ms[below | waiting])
        self._enter(audit, "waiting", records.times_ms[waiting])
        self._enter(audit, "replaced", records.times_ms[replaced])
        if waiting.any():
            audit.waiting_from_ms = int(records.times_ms[waiting].min())
        skipped = sum(r.count for r in extent.skipped if r.end_offset <= extent.position)
        if skipped:
            audit.line(NO_TIME).skipped += skipped

    def _count_rows(self, audit: PartitionAudit) -> None:
        self._enter(audit, "loaded", self.rows.times_ms)
        if len(self.quarantined):
            at = np.searchsorted(self.records.offsets, self.quarantined)
            known = (at < len(self.records.offsets)) & np.isin(self.quarantined, self.records.offsets)
            times = np.full(len(self.quarantined), NO_TIME, np.int64)
            times[known] = self.records.times_ms[at[known]]
            self._enter(audit, "quarantined", times)

    def _check_rows(self, audit: PartitionAudit, faults: Faults, expected: Flags, last: Flags, current: Flags) -> None:
        """Note rows of records that must have none, and current rows of records that are not the last."""
        extent, records, rows = self.extent, self.records, self.rows
        repeated = np.unique(rows.offsets, return_counts=True)
        for offset, count in zip(*(values[repeated[1] > 1] for values in repeated), strict=True):
            faults.note(DiscrepancyKind.DUPLICATED, int(offset), int(offset) + 1, int(count) - 1, None)
            audit.line(NO_TIME).duplicated += int(count) - 1
        odd = ~np.isin(rows.offsets, records.offsets[expected])
        newer = self._newest_of(rows.keys, last) > rows.offsets
        outside = (rows.offsets < extent.first_offset) | (rows.offsets >= extent.position)
        taken = ~np.isin(rows.offsets, records.offsets)
        expired = taken & (rows.offsets < extent.log_start)
        if self.compacts:
            waiting = records.keys[records.offsets >= extent.position]
            expired |= taken & (np.isin(rows.keys, waiting) if not self.history else True)
        stale = odd & newer & ~outside & (not self.history)
        fine = odd & ~stale & expired & ~outside
        self._enter(audit, "expired", rows.times_ms[fine])
        foreign = odd & ~stale & ~fine
        if self.history:
            unclosed = rows.current & ~np.isin(rows.offsets, records.offsets[current]) & newer
            closed = ~rows.current & np.isin(rows.offsets, records.offsets[current])
            stale = unclosed | closed
        for kind, where in ((DiscrepancyKind.STALE, stale), (DiscrepancyKind.FOREIGN, foreign)):
            self._note_offsets(faults, kind, rows.offsets[where], rows.times_ms[where])

    def _newest_of(self, keys: Longs, last: Flags) -> Longs:
        """Return the offset of the last record of each key; -1 for keys that the log has none of."""
        order = np.flatnonzero(last)
        order = order[np.argsort(self.records.keys[order], kind="stable")]
        known = self.records.keys[order]
        if not len(known):
            return np.full(len(keys), -1, np.int64)
        at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        return np.where(known[at] == keys, self.records.offsets[order][at], -1)

    def _within(self, ranges: Iterable[OffsetRange]) -> Flags:
        offsets = self.records.offsets
        inside = np.zeros(len(offsets), np.bool_)
        for r in ranges:
            inside |= (offsets >= r.first_offset) & (offsets < r.end_offset)
        return inside

    def _enter(self, audit: PartitionAudit, column: str, found_ms: NDArray[Any]) -> None:
        enter(audit, column, buckets_of(found_ms, self.bucket_ms))

    def _note(self, audit: PartitionAudit, faults: Faults, kind: DiscrepancyKind, column: str, where: Flags) -> None:
        self._enter(audit, column, self.records.times_ms[where])
        self._note_offsets(faults, kind, self.records.offsets[where], self.records.times_ms[where])

    def _note_offsets(self, faults: Faults, kind: DiscrepancyKind, offsets: Longs, found_ms: Longs) -> None:
        order = np.argsort(offsets, kind="stable")
        offsets, buckets = offsets[order], buckets_of(found_ms[order], self.bucket_ms)
        cuts = np.flatnonzero((np.diff(offsets) > 1) | (np.diff(buckets) != 0)) + 1
        for run in np.split(np.arange(len(offsets)), cuts) if len(offsets) else ():
            first, end = int(offsets[run[0]]), int(offsets[run[-1]]) + 1
            faults.note(kind, first, end, len(run), int(buckets[run[0]]))


def name_keys(audit: PartitionAudit, log: LogKeys, table: TableKeys) -> None:
    """Add to each discrepancy the key of its first offset."""
    of_rows = [fault.first_offset for fault in audit.faults if fault.kind in _OF_ROWS]
    keys = table.keys_at(audit.partition, of_rows)
    audit.faults = [
        replace(
            fault,
            key=keys.get(fault.first_offset)
            if fault.kind in _OF_ROWS
            else log.key_at(audit.partition, fault.first_offset),
        )
        for fault in audit.faults
    ]


_OF_ROWS = frozenset({DiscrepancyKind.STALE, DiscrepancyKind.FOREIGN, DiscrepancyKind.DUPLICATED})


def offsets_of(parts: Iterable[Any]) -> Longs:
    """Return the offsets of a quarantine's rows, sorted."""
    offsets: Sequence[Longs] = [part.offsets for part in parts]
    return np.unique(np.concatenate([_NONE, *offsets]))
