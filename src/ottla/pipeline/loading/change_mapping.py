"""Maps records to changes: the rows that `RowMapper` makes, each with its bucket, and the keys that are deleted.

A deletion is a row of a change file, too: its coordinates, its time and its key, with `DELETED` set.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.pipeline.changes.debezium import ChangeKind, unwrap
from ottla.pipeline.changes.rule import BUCKET, DELETED, IS_CURRENT, NO_KEY, ChangeRule, Envelope
from ottla.pipeline.event_time import EVENT_TIME
from ottla.pipeline.loading.row_mapping import QUARANTINE, MappedRows, RowMapper, part
from ottla.pipeline.topic_reader import TIME

NO_FIELDS = "a record without a value deletes a key, and the load's key is made of fields: it does not say which"


class ChangeMapper:
    """Makes the rows of change files as if every record came alone, as `RowMapper` does those of tables."""

    def __init__(self, mapper: RowMapper, rule: ChangeRule) -> None:
        self._mapper, self._rule = mapper, rule

    def map(self, records: pa.RecordBatch) -> MappedRows:
        """Map records to rows of change files, and of the quarantine."""
        kinds, values, reasons = self._classify(records)
        refused = kinds == ChangeKind.REFUSED
        bare = (kinds == ChangeKind.DELETION) & (not self._rule.key_fields)
        rest = pa.array(~refused & ~bare & (kinds != ChangeKind.NOTHING))
        rows, quarantined, late = [], [], 0
        if pc.any(rest).as_py():
            mapped = self._mapper.map(_with_values(records, values).filter(rest))
            rows.append(self._flagged(mapped.rows, records.filter(pa.array(kinds == ChangeKind.DELETION))))
            quarantined.append(_with_whole_values(mapped.quarantined, records))
            late = mapped.late
        if bare.any():
            rows.append(self._deletions(records.filter(pa.array(bare))))
        if refused.any():
            where = pa.array(refused)
            quarantined.append(self._mapper.quarantine_rows(records.filter(where), reasons.filter(where)))
        nonempty = [part for part in rows if len(part)]
        changes = self._in_buckets(pa.concat_tables(nonempty, promote_options="default")) if nonempty else pa.table({})
        return MappedRows(changes, pa.concat_tables([QUARANTINE.empty_table(), *quarantined]), late)

    def _classify(self, records: pa.RecordBatch) -> tuple[Any, Any, Any]:
        """Return by record the kind of change, the row's value, and why it is refused."""
        count, values = len(records), records.column("value")
        if self._rule.envelope is Envelope.DEBEZIUM:
            unwrapped = [unwrap(value, self._rule.key_fields) for value in values.to_pylist()]
            kinds = np.fromiter((value.kind for value in unwrapped), np.int8, count)
            reasons = pa.array([value.reason for value in unwrapped], pa.string())
            values = pa.array([value.row for value in unwrapped], pa.binary())
        else:
            null = pc.is_null(values).to_numpy(zero_copy_only=False)
            without = ChangeKind.REFUSED if self._rule.key_fields else ChangeKind.DELETION
            kinds = np.where(null, np.int8(without), np.int8(ChangeKind.ROW))
            reasons = pa.repeat(NO_FIELDS, count)
        if not self._rule.key_fields:
            keyless = pc.is_null(part(records, "key")).to_numpy(zero_copy_only=False) & (kinds == ChangeKind.DELETION)
            if keyless.any():
                kinds = np.where(keyless, np.int8(ChangeKind.REFUSED), kinds)
                reasons = pc.if_else(pa.array(keyless), NO_KEY, reasons)
        return kinds, values, reasons

    def _flagged(self, rows: pa.Table, deletions: pa.RecordBatch) -> pa.Table:
        """Add to rows whether each is a deletion: it then has the fields of the key alone."""
        deleted: Any = pa.repeat(pa.scalar(value=False), len(rows))
        if len(deletions):
            deleted = pc.is_in(rows["offset"], value_set=deletions.column("offset"))
        return rows.append_column(DELETED, deleted)

    def _deletions(self, records: pa.RecordBatch) -> pa.Table:
        """Make the rows of deletions that have no value."""
        own = self._mapper.own_columns(records, pa.nulls(len(records), TIME))
        own[EVENT_TIME] = own["record_time"]
        return pa.table({**own, DELETED: pa.repeat(pa.scalar(value=True), len(records))})

    def _in_buckets(self, rows: pa.Table) -> pa.Table:
        """Add the columns that change files are partitioned by, in the order of a table's columns."""
        rows = rows.append_column(BUCKET, self._rule.bucket_numbers(self._rule.identities(rows)))
        if self._rule.history:
            rows = rows.append_column(IS_CURRENT, pa.repeat(pa.scalar(value=False), len(rows)))
        fields = self._mapper.fields.names
        first = [name for name in rows.column_names if name not in fields]
        return rows.select([*first, *(name for name in fields if name in rows.column_names)])


def _with_values(records: pa.RecordBatch, values: pa.Array) -> pa.RecordBatch:
    return records.set_column(records.schema.get_field_index("value"), "value", values)


def _with_whole_values(quarantined: pa.Table, records: pa.RecordBatch) -> pa.Table:
    """Put the values as the records have them, not what was unwrapped, into rows of the quarantine."""
    at = pc.index_in(quarantined["offset"], value_set=records.column("offset"))
    whole = records.column("value").take(at.combine_chunks())
    return quarantined.set_column(quarantined.schema.get_field_index("raw"), "raw", whole)
