"""Converts a DataFrame's rows to records: checks the columns of a sink, and converts each Arrow batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ottla.pipeline.connector.options import InvalidOption
from ottla.records.builder import NewRecord

_TYPES = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int", "bigint", "smallint", "tinyint"),
    "timestamp": ("timestamp", "timestamp_ntz"),
    "headers": ("array<struct<key:string,value:binary>>",),
}


class Row(NamedTuple):
    """A record and what its row says of where it goes."""

    topic: str
    partition: int | None
    record: NewRecord


class InvalidRow(Exception):
    """A row that cannot be a record."""


@dataclass(frozen=True, slots=True)
class RowReader:
    """Reads records from the rows of a DataFrame with these columns. Serialized to the tasks."""

    columns: tuple[str, ...]
    topic: str | None
    """The option topic, which goes before a column of that name."""

    @property
    def timed(self) -> bool:
        """Whether rows bring their time."""
        return "timestamp" in self.columns

    def rows(self, batch: pa.RecordBatch) -> Iterator[Row]:
        """Yield the rows of a batch. A null time is the time of writing (None). Raises InvalidRow."""
        count = batch.num_rows
        topics = [self.topic] * count if self.topic is not None else self._texts(batch, "topic")
        columns: Iterable[tuple[str | None, int | None, bytes | None, bytes | None, int | None, Any]] = zip(
            topics,
            self._list(batch, "partition"),
            self._bytes(batch, "key"),
            self._bytes(batch, "value"),
            self._times(batch),
            self._list(batch, "headers"),
            strict=True,
        )
        for at, (topic, partition, key, value, time_ms, headers) in enumerate(columns):
            if topic is None:
                raise InvalidRow(f"row {at} has a null topic; the option topic would name one for all rows")
            if partition is not None and partition < 0:
                raise InvalidRow(f"row {at} is for partition {partition}")
            pairs = [_pair(at, item) for item in headers] if headers else ()
            yield Row(topic, partition, NewRecord(key, value, -1 if time_ms is None else time_ms, pairs))

    def _list(self, batch: pa.RecordBatch, name: str) -> list[Any]:
        return batch.column(name).to_pylist() if name in self.columns else [None] * batch.num_rows

    def _texts(self, batch: pa.RecordBatch, name: str) -> list[str | None]:
        found: list[str | None] = batch.column(name).to_pylist()
        return found

    def _bytes(self, batch: pa.RecordBatch, name: str) -> list[bytes | None]:
        if name not in self.columns:
            return [None] * batch.num_rows
        found: list[bytes | None] = batch.column(name).cast(pa.binary()).to_pylist()
        return found

    def _times(self, batch: pa.RecordBatch) -> list[int | None]:
        if not self.timed:
            return [None] * batch.num_rows
        found: list[int | None] = pc.divide(batch.column("timestamp").cast(pa.int64()), 1000).to_pylist()
        return found


def row_reader(schema: Any, topic: str | None) -> RowReader:
    """Check a DataFrame's columns (a Spark StructType). Others than a record's are passed over, as by Spark's own sink.

    Raises InvalidOption naming the column or option that is missing or wrong.
    """
    found = {}
    for field in schema.fields:
        wanted = _TYPES.get(field.name)
        given = field.dataType.simpleString()
        if wanted is None:
            continue
        if given not in wanted:
            raise InvalidOption(f"{field.name}: the column is {given}; a sink takes {' or '.join(wanted)}")
        found[field.name] = given
    if "value" not in found:
        raise InvalidOption("value: the sink needs a column of that name, binary or string")
    if topic is None and "topic" not in found:
        raise InvalidOption("topic: give the option topic, or a column of that name")
    return RowReader(tuple(found), topic)


def _pair(at: int, item: Any) -> tuple[str, bytes | None]:
    if item is None or item["key"] is None:
        raise InvalidRow(f"row {at} has a header without a name")
    return item["key"], item["value"]
