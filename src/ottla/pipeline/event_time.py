"""Determines a record's event time and the partition of its row, as a pure function of the record.

The time comes from a field, from a pattern in the value, from the format itself (access logs) or from the record's own
timestamp. A row is late if its event happened more than the allowed lateness before the record's timestamp: both are in
the record, so a row is as late in every load and every repetition of one, whatever came before it. A watermark over the
rows seen so far would make that depend on how a load was cut into pieces (docs/design/lake-tables.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ottla.pipeline.formats.format import reasons_where
from ottla.pipeline.formats.typed import EPOCHS, formed_time, iso_time, typed
from ottla.pipeline.lake.schema import conform, outside_of_years, without
from ottla.pipeline.topic_reader import TIME

EVENT_TIME, LATE, DATE, HOUR = "event_time", "late", "event_date", "event_hour"
NO_TIME = "there is no event time"
FORMS = ("iso", *EPOCHS)


class TimeFrom(StrEnum):
    """Names the sources an event's time may come from."""

    RECORD = "record"
    FIELD = "field"
    PATTERN = "pattern"
    FORMAT = "format"


class Granularity(StrEnum):
    """The unit of time by which rows are partitioned."""

    NONE = "none"
    DAY = "day"
    HOUR = "hour"


@dataclass(frozen=True, slots=True)
class TimeRule:
    """The rule by which a load finds the event time of a record and partitions by it."""

    source: TimeFrom = TimeFrom.RECORD
    field: str = ""
    """The name of the field, `a.b` for one inside a struct."""
    pattern: str = ""
    """A regular expression (RE2) with a group `time`, for the value as text."""
    form: str = "iso"
    """Of texts: "iso" or strptime's letters; of numbers (and digits): timestamp_s, timestamp_ms, timestamp_us."""
    granularity: Granularity = Granularity.DAY
    lateness_ms: int | None = None
    """The time after the event in which a record may be made; None: nothing is late."""

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns a table is partitioned by."""
        match self.granularity:
            case Granularity.NONE:
                return (LATE,)
            case Granularity.DAY:
                return (LATE, DATE)
            case Granularity.HOUR:
                return (LATE, DATE, HOUR)

    @property
    def columns(self) -> pa.Schema:
        """Return the columns that partitioning by event time adds to a table."""
        types = {LATE: pa.bool_(), DATE: pa.date32(), HOUR: pa.int32()}
        return pa.schema([(EVENT_TIME, TIME), *((name, types[name]) for name in self.partition_by)])

    def find(self, records: pa.RecordBatch, rows: pa.Table) -> tuple[Any, Any]:
        """Return the event time of each record, and a reason for those without one."""
        found = records.column("record_time") if self.source is TimeFrom.RECORD else self._extract_time(records, rows)
        if isinstance(found, pa.ChunkedArray):
            found = found.combine_chunks()
        missing, outside = pc.is_null(found), outside_of_years(found)
        found = without(found, outside)
        if self.source is TimeFrom.RECORD and self.granularity is Granularity.NONE:
            return found, pa.nulls(len(found), pa.string())
        reasons = reasons_where(missing, self._why_none)
        if outside is not None:
            what = "the record's timestamp" if self.source is TimeFrom.RECORD else "the event time"
            reasons = pc.coalesce(reasons, reasons_where(outside, f"{what} is outside of the years 1 to 9999"))
        return found, reasons

    def partition_columns(self, records: pa.RecordBatch, times: Any) -> dict[str, Any]:
        """Return the columns a row is partitioned by."""
        late: Any = pa.repeat(pa.scalar(value=False), len(times))
        if self.lateness_ms is not None:
            record_time = records.column("record_time")
            known = without(record_time, outside_of_years(record_time))
            by = pc.subtract(known.cast(pa.int64()), times.cast(pa.int64()))
            late = pc.fill_null(pc.greater(by, self.lateness_ms * 1000), fill_value=False)
        columns = {LATE: late}
        if DATE in self.partition_by:
            columns[DATE] = times.cast(pa.date32(), safe=False)
        if HOUR in self.partition_by:
            columns[HOUR] = pc.hour(times).cast(pa.int32())
        return columns

    def _extract_time(self, records: pa.RecordBatch, rows: pa.Table) -> Any:
        if self.source is TimeFrom.FORMAT:
            return rows[EVENT_TIME]
        if self.source is TimeFrom.PATTERN:
            values = pc.extract_regex(records.column("value"), self.pattern)
            return self._as_time(_readable(pc.struct_field(values, "time")))
        name, *inside = self.field.split(".")
        if name not in rows.column_names:
            return pa.nulls(len(records), TIME)
        values = rows[name].combine_chunks()
        for part in inside:
            if not pa.types.is_struct(values.type) or values.type.get_field_index(part) < 0:
                return pa.nulls(len(records), TIME)
            values = pc.struct_field(values, part)
        return self._as_time(values)

    def _as_time(self, values: Any) -> Any:
        kind = values.type
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            return conform(values, TIME)[0]
        if self.form in EPOCHS:
            return typed(values, self.form)[0]
        if not pa.types.is_string(kind):
            return pa.nulls(len(values), TIME)
        return iso_time(values) if self.form == "iso" else formed_time(values, self.form)

    @property
    def _why_none(self) -> str:
        match self.source:
            case TimeFrom.FIELD:
                return f"{NO_TIME} in field {self.field}"
            case TimeFrom.PATTERN:
                return f"{NO_TIME} where the pattern looks"
            case TimeFrom.RECORD:
                return "the record has no timestamp"
            case TimeFrom.FORMAT:
                return NO_TIME


def pattern_fault(pattern: str) -> str | None:
    """Return the fault of a pattern in words; None if it is valid."""
    try:
        groups = re.compile(pattern).groupindex
    except re.error as error:
        return f"{pattern!r} is no regular expression: {error}"
    if "time" not in groups:
        return "the pattern needs a group named time: (?P<time>...)"
    if len(groups) != re.compile(pattern).groups:
        return "every group of the pattern needs a name, or write (?:...)"
    try:
        pc.extract_regex(pa.array([""]), pattern)
    except pa.ArrowInvalid as error:
        return f"{pattern!r} is no regular expression of RE2: {error}"
    return None


def _readable(values: Any) -> Any:
    """Return the time's text; what is not UTF-8 is no time."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([v.decode("utf-8", "replace") if v is not None else None for v in values.to_pylist()])
