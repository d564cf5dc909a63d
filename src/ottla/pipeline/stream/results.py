"""Stores results: replaces whole windows of a table, in one commit with the position in the source.

One commit removes the rows of the windows that were recomputed, adds the new ones, and moves the versions
`<topic>/<partition>` (the next offset of the source to take into account) from where they were read to where they are
now. So a stream that dies at any moment has either done a step or not, and of two at once one loses the race.

Rows are partitioned by `window_date`. A replaced window rewrites its day's files, which for results is little.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ottla.pipeline.lake.file_writer import TableWriter
from ottla.pipeline.lake.lake_table import AppTransaction, Change, LakeTable, TableFile, TableSpec
from ottla.pipeline.lake.rewrite import read, target_of
from ottla.pipeline.lake.schema import canonical_schema
from ottla.pipeline.stream.aggregate import START
from ottla.pipeline.topic_reader import TIME

DATE = "window_date"
KEY = "ottla.stream.key"
"""A property: the columns that made the records' keys, for the day the job says others."""
UNPUBLISHED = "unpublished"
"""A transaction: its version is 0 when all results are published, otherwise the first window that may not be."""


class Message(NamedTuple):
    """A row as a record of the compacted topic; a value of None removes the row."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Step:
    """Holds the changes of one commit."""

    rows: pa.Table
    """The recomputed windows, without `window_date`."""
    windows: Collection[datetime]
    """All that were computed: one without a row in `rows` has none any more."""
    transactions: Sequence[AppTransaction]
    from_nothing: bool = False
    """The table gets these rows and no others, and their columns."""


class Results:
    """A result table of windows, in any lake format."""

    def __init__(self, table: LakeTable, key: Sequence[str], *, stem: str) -> None:
        self.table = table
        self._key = (START, *key)
        self._stem = stem
        self._steps = 0

    def gone(self, step: Step) -> list[Message]:
        """Return for the topic, before the commit, the rows that the table has and will not have any more."""
        if not self.table.exists():
            return []
        kept = {key_of(row, self._key) for row in step.rows.select(self._key).to_pylist()}
        key = json.loads(self.table.properties().get(KEY, "null")) or self._key
        had: set[bytes] = set()
        for rows in self._rows(self._files(step)):
            if set(key) <= set(rows.column_names):
                inside = rows if step.from_nothing else rows.filter(_is_in(rows, step.windows))
                had |= {key_of(row, key) for row in inside.select(key).to_pylist()}
        return [Message(found, None) for found in sorted(had - kept)]

    def commit(self, step: Step) -> None:
        """Do the step. Raises CommitConflict, and then nothing happened."""
        rows = lake_rows(step.rows)
        if not self.table.exists():
            self.table.create(TableSpec(rows.schema, (DATE,)))
        have = self.table.spec()
        spec = TableSpec(rows.schema, (DATE,)) if step.from_nothing else have
        remove = self._files(step)
        self._steps += 1
        writer = TableWriter(target_of(self.table, spec), f"{self._stem}-{self._steps}")
        try:
            if not step.from_nothing:
                for old in self._rows(remove):
                    writer.add(_in_order(old.filter(pc.invert(_is_in(old, step.windows))), spec.schema))
            writer.add(_in_order(rows, spec.schema))
            add = writer.finish()
        except BaseException:
            writer.abandon()
            raise
        changed = spec.schema if spec.schema != have.schema else None
        # From here on the files may be the table's, whatever is raised: orphaned files are removed by compaction.
        self.table.commit(Change("aggregate", add=add, remove=remove, transactions=step.transactions, schema=changed))

    def note_key(self) -> None:
        """Remember which columns make the keys."""
        self.table.set_properties({KEY: json.dumps(self._key)})

    def messages(self, since: datetime | None) -> Iterator[Message]:
        """Yield the rows of the windows from a time on, as records."""
        for rows in self._rows(self.table.files()):
            wanted = rows if since is None else rows.filter(pc.greater_equal(rows[START], pa.scalar(since, TIME)))
            yield from messages(wanted, self._key)

    def rows(self) -> pa.Table:
        """Return all of them, oldest window first."""
        spec = self.table.spec()
        found = [rows.select(spec.schema.names) for rows in self._rows(self.table.files())]
        whole = pa.concat_tables([spec.schema.empty_table(), *found], promote_options="permissive")
        return whole.sort_by(
            [(name, "ascending") for name in self._key if not pa.types.is_nested(spec.schema.field(name).type)]
        )

    def _files(self, step: Step) -> list[TableFile]:
        dates = {str(window.date()) for window in step.windows}
        files = self.table.files()
        return files if step.from_nothing else [file for file in files if file.partition_values.get(DATE) in dates]

    def _rows(self, files: Iterable[TableFile]) -> Iterator[pa.Table]:
        spec = self.table.spec()
        for file in files:
            yield from read(self.table, file, spec)


def lake_rows(rows: pa.Table) -> pa.Table:
    """Add `window_date`, and convert every column to the lake's own types."""
    rows = rows.append_column(DATE, rows[START].cast(pa.date32()))
    schema = canonical_schema(rows.schema)
    return rows.select(schema.names).cast(schema)


def _in_order(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    return rows.select(schema.names).cast(schema)


def _is_in(rows: pa.Table, windows: Collection[datetime]) -> Any:
    return pc.is_in(rows[START], value_set=pa.array(sorted(windows), TIME))


def messages(rows: pa.Table, key: Sequence[str]) -> Iterator[Message]:
    """Yield each row as a record: the key says what is counted, the value is the whole row as JSON."""
    for row in rows.drop_columns([DATE]).to_pylist() if DATE in rows.column_names else rows.to_pylist():
        yield Message(key_of(row, key), json.dumps(_plain(row), separators=(",", ":"), ensure_ascii=False).encode())


def key_of(row: Mapping[str, Any], key: Sequence[str]) -> bytes:
    r"""Encode the key of a row: the values joined by `|`; one inside a value gets a backslash.

    >>> key_of({"window_start": datetime(2015, 5, 17, 10, 5), "path": "/a|b", "n": None}, ["window_start", "path", "n"])
    b'2015-05-17T10:05:00Z|/a\\|b|\\N'
    """
    return "|".join(_key_text(row[name]) for name in key).encode()


def _key_text(value: object) -> str:
    if value is None:
        return r"\N"
    return str(_plain(value)).replace("\\", "\\\\").replace("|", "\\|")


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; times in UTC."""
    match value:
        case datetime():
            return value.strftime("%Y-%m-%dT%H:%M:%SZ" if not value.microsecond else "%Y-%m-%dT%H:%M:%S.%fZ")
        case date():
            return value.isoformat()
        case dict():
            return {name: _plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)
