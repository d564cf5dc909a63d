"""Parses web access logs in common and combined format: from a column of lines to columns of fields.

Whole columns go through Arrow's compiled functions; Python sees no single line. A line that cannot be read keeps its
place with a reason, so that the caller can put it aside with its offset: nothing is dropped without a trace.

    203.0.113.9 - - [17/May/2015:10:05:03 +0000] "GET /a?b HTTP/1.1" 200 512 "https://from/" "agent"

The last two fields are the combined format's. Servers cut long lines, so the agent's closing quote may be missing. A
request that is no HTTP request (`"-"`, a TLS greeting) is still a line: method and path are null, its status counts.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ottla.pipeline.formats.format import NO_VALUE, Parsed
from ottla.pipeline.lake.schema import Path
from ottla.pipeline.topic_reader import TIME

FIELDS = pa.schema(
    [
        pa.field("event_time", TIME),
        pa.field("client", pa.string()),
        pa.field("user", pa.string()),
        pa.field("method", pa.string()),
        pa.field("path", pa.string()),
        pa.field("query", pa.string()),
        pa.field("protocol", pa.string()),
        pa.field("status", pa.int32()),
        pa.field("bytes", pa.int64()),
        pa.field("referrer", pa.string()),
        pa.field("agent", pa.string()),
    ]
)
REASON = pa.field("reason", pa.string())

EMPTY = "the line is empty"
NO_ACCESS_LOG_LINE = "not a line of a common or combined access log"
NO_SUCH_TIME = "there is no such time"

_TIME_FORMAT = "%d/%b/%Y:%H:%M:%S"
_QUOTED = r'(?:[^"\\]|\\.|"[^ "\\])*'
"""Inside quotes: a quote is escaped, as Apache and nginx do it, or at least not followed by a space. That reads the
lines of servers which escape nothing, and still lets no client forge a status by what it asks for."""
_LINE = (
    r"^(?P<client>\S+) \S+ (?P<user>\S+(?: [^\[\s]\S*)*) "
    r"\[(?P<time>\d{2}/[A-Z][a-z]{2}/\d{4}:\d{2}:\d{2}:\d{2}) "
    r"(?P<sign>[+-])(?P<zone_hours>\d{2})(?P<zone_minutes>\d{2})\] "
    rf'"(?P<request>{_QUOTED})" (?P<status>[1-5]\d{{2}}) (?P<bytes>\d{{1,18}}|-)'
    rf'(?: "(?P<referrer>{_QUOTED})" "(?P<agent>.*?)"?)?\s*$'
)
_REQUEST = r"^(?P<method>[A-Z][A-Z_-]{0,30}) (?P<target>.+?)(?: (?P<protocol>HTTP/\S+))?$"
_TARGET = r"^(?:[a-z]+://[^/?#]*)?(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?"


@dataclass(frozen=True, slots=True)
class AccessLog:
    """A `Format`. Its `event_time` is the table's, unless the load takes the time from elsewhere."""

    def columns(self) -> pa.Schema:
        """Return the fields of a combined log."""
        return FIELDS

    def parse(self, records: pa.RecordBatch, known: pa.Schema, fixed: Collection[Path] = ()) -> Parsed:  # noqa: ARG002
        """Parse the fields of each line."""
        rows = parse(records.column("value"))
        return Parsed(rows.drop_columns(REASON.name), rows[REASON.name].combine_chunks())


def parse(lines: pa.Array) -> pa.Table:
    """Return the fields of each line, in the order of the lines (binary, may hold nulls), and last the column `reason`.

    A row has either a `reason` (and no fields) or its fields (and a null reason). Times are in UTC.
    """
    found = pc.extract_regex(lines, _LINE)  # as bytes: one line that is not UTF-8 refuses no column
    times = _event_time(found)
    request = pc.extract_regex(pc.struct_field(found, "request"), _REQUEST)
    target = pc.extract_regex(pc.struct_field(request, "target"), _TARGET)
    columns: dict[str, Any] = {
        "event_time": times,
        "client": _text(pc.struct_field(found, "client")),
        "user": _given(found, "user"),
        "method": _text(pc.struct_field(request, "method")),
        "path": _text(pc.struct_field(target, "path")),
        "query": _given(target, "query"),
        "protocol": _given(request, "protocol"),
        "status": _text(pc.struct_field(found, "status")).cast(pa.int32()),
        "bytes": pc.fill_null(_given(found, "bytes").cast(pa.int64()), 0),  # "-" stands for an empty answer
        "referrer": _given(found, "referrer"),
        "agent": _given(found, "agent"),
    }
    reasons = _reasons(lines, pc.is_valid(found), pc.is_valid(times))
    good = pc.is_null(reasons)
    fields = [pc.if_else(good, columns[f.name], pa.scalar(None, f.type)).cast(f.type) for f in FIELDS]
    return pa.table([*fields, reasons], schema=FIELDS.append(REASON))


def _event_time(found: Any) -> Any:
    """Return the time in UTC, or null where the calendar has no such day or the clock no such hour."""
    text = _text(pc.struct_field(found, "time"))
    local = pc.strptime(text, format=_TIME_FORMAT, unit="s", error_is_null=True)
    real = pc.equal(pc.strftime(local, format=_TIME_FORMAT), text)  # 31/Feb would come back as a day in March
    hours = _text(pc.struct_field(found, "zone_hours")).cast(pa.int64())
    minutes = _text(pc.struct_field(found, "zone_minutes")).cast(pa.int64())
    ahead_s = pc.add(pc.multiply(hours, 3600), pc.multiply(minutes, 60))
    ahead_s = pc.if_else(pc.equal(_text(pc.struct_field(found, "sign")), "-"), pc.negate(ahead_s), ahead_s)
    utc = pc.subtract(local.cast(pa.int64()), ahead_s).cast(pa.timestamp("s", tz="UTC"))
    return pc.if_else(pc.fill_null(real, fill_value=False), utc, pa.scalar(None, utc.type)).cast(
        FIELDS.field("event_time").type
    )


def _reasons(lines: pa.Array, is_line: Any, has_time: Any) -> Any:
    """Return the reason of each line that could not be parsed; null for the others."""
    blank = pc.match_substring_regex(lines, r"^\s*$")
    return pc.case_when(
        pc.make_struct(
            pc.is_null(lines), pc.fill_null(blank, fill_value=False), pc.invert(is_line), pc.invert(has_time)
        ),
        *(pa.scalar(reason) for reason in (NO_VALUE, EMPTY, NO_ACCESS_LOG_LINE, NO_SUCH_TIME)),
        pa.scalar(None, pa.string()),
    )


def _given(struct: Any, name: str) -> Any:
    """Return a field's text; null where the log says "-" or nothing."""
    text = _text(pc.struct_field(struct, name))
    return pc.if_else(pc.is_in(text, value_set=pa.array(["-", ""])), pa.scalar(None, pa.string()), text)


def _text(values: Any) -> Any:
    """Decode bytes as text. What is not UTF-8 keeps its readable part."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        readable = [None if v is None else v.decode("utf-8", "replace") for v in values.to_pylist()]
        return pa.array(readable, pa.string())
