"""Casts fields to the types of a load's `columns`: whole columns at once, with a reason for each row that fails.

    string | int | long | float | double | boolean | date | timestamp | decimal(p,s) | binary
    timestamp_s | timestamp_ms | timestamp_us     numbers (or their digits) since 1970

A text is a timestamp in ISO 8601 (UTC unless it names its offset), or in a form that the load gives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ottla.pipeline.lake.schema import conform
from ottla.pipeline.topic_reader import TIME

NAMES = ("string", "int", "long", "float", "double", "boolean", "date", "timestamp", "decimal(p,s)", "binary")
EPOCHS = {"timestamp_s": 1_000_000, "timestamp_ms": 1_000, "timestamp_us": 1}
"""Microseconds per unit."""
_SIMPLE = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": TIME,
    "binary": pa.binary(),
} | dict.fromkeys(EPOCHS, TIME)
_DECIMAL = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")
_ISO = (
    r"^\s*(?P<day>\d{4}-\d{2}-\d{2})"
    r"(?:[T ](?P<hour>\d{2})(?::?(?P<minute>\d{2})(?::?(?P<second>\d{2})(?:[.,](?P<fraction>\d{1,9}))?)?)?)?"
    r"\s*(?:(?P<sign>[+-])(?P<hours>\d{2}):?(?P<minutes>\d{2})?|[Zz])?\s*$"
)
_ZONE = r"^(?P<local>.*?)\s*(?:(?P<sign>[+-])(?P<hours>\d{2}):?(?P<minutes>\d{2})|[Zz]|UTC|GMT)?$"
_DAY_FORMAT = "%Y-%m-%dT%H:%M:%S"
_TRIED_ALONE = 32


def column_type(text: str) -> pa.DataType | None:
    """Return the type of a name, or None if there is none of that name.

    >>> column_type("decimal(10,2)"), column_type("number")
    (Decimal128Type(decimal128(10, 2)), None)
    """
    if match := _DECIMAL.fullmatch(text):
        digits, scale = int(match[1]), int(match[2])
        return pa.decimal128(digits, scale) if 0 < digits <= 38 and scale <= digits else None
    return _SIMPLE.get(text)


def no_value_of(name: str, kind: str) -> str:
    """Return the reason to refuse a value that is none of its declared type."""
    return f"field {name} is no {kind}"


def typed_fields(rows: pa.Table, kinds: Mapping[str, str]) -> tuple[pa.Table, pa.Array]:
    """Convert some fields to their declared types; return the rows, and the reasons to refuse rows."""
    reasons = pa.nulls(len(rows), pa.string())
    for at, name in enumerate(rows.column_names):
        if (kind := kinds.get(name)) is None:
            continue
        values, lost = typed(rows.column(at), kind)
        rows = rows.set_column(at, name, values)
        if lost is not None:
            why = pc.if_else(lost, pa.scalar(no_value_of(name, kind)), pa.scalar(None, pa.string()))
            reasons = pc.coalesce(reasons, why)
    return rows, reasons


def typed(values: Any, name: str) -> tuple[Any, Any]:
    """Convert values to a declared type; return them and a mask of those that are none (null then), or None for none.

    `name` is one that `column_type` knows.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    kind = column_type(name)
    assert kind is not None
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), kind), None
    if values.type == kind:
        return values, None
    if name in EPOCHS:
        return _since_1970(values, EPOCHS[name])
    if pa.types.is_string(values.type) and pa.types.is_timestamp(kind):
        return _misfits(values, iso_time(values))
    if pa.types.is_nested(values.type) or (pa.types.is_timestamp(kind) and not pa.types.is_temporal(values.type)):
        return pa.nulls(len(values), kind), pc.is_valid(values)
    return cast_each(values, kind)


def _misfits(values: Any, found: Any) -> tuple[Any, Any]:
    lost = pc.and_(pc.is_valid(values), pc.is_null(found))
    return found, lost if pc.any(lost).as_py() else None


def _since_1970(values: Any, us_per_unit: int) -> tuple[Any, Any]:
    if pa.types.is_floating(values.type):
        us = pc.round(pc.multiply(values.cast(pa.float64()), us_per_unit))
        inside = pc.less(pc.abs(us), float(1 << 62))
        us = pc.if_else(inside, us, pa.scalar(None, pa.float64())).cast(pa.int64())
        return _misfits(values, us.cast(pa.timestamp("us")).cast(TIME))
    numbers, lost = cast_each(values, pa.int64())
    bound = (1 << 62) // us_per_unit
    inside = pc.and_(pc.less(numbers, bound), pc.greater(numbers, -bound))
    us = pc.multiply(pc.if_else(inside, numbers, pa.scalar(None, pa.int64())), us_per_unit)
    found, outside = _misfits(numbers, us.cast(pa.timestamp("us")).cast(TIME))
    if lost is None or outside is None:
        return found, lost if outside is None else outside
    return found, pc.or_(lost, outside)


def cast_each(values: Any, kind: pa.DataType) -> tuple[Any, Any]:
    """Cast the whole column; where that is refused, halves and their halves, down to the values that cannot be cast."""
    try:
        if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
            return _trimmed(values, kind).cast(kind), None
        return conform(values, kind) if values.type != pa.bool_() else (values.cast(kind), None)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if len(values) <= _TRIED_ALONE:
            return _one_by_one(values, kind)
    half = len(values) // 2
    parts = [cast_each(values.slice(0, half), kind), cast_each(values.slice(half), kind)]
    masks = [pa.nulls(len(v), pa.bool_()).fill_null(False) if lost is None else lost for v, lost in parts]
    return pa.concat_arrays([v for v, _ in parts]), pa.concat_arrays(masks)


def _one_by_one(values: Any, kind: pa.DataType) -> tuple[Any, Any]:
    found = []
    for n in range(len(values)):
        one = values.slice(n, 1)
        try:
            found.append(_trimmed(one, kind).cast(kind))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            found.append(pa.nulls(1, kind))
    cast = pa.concat_arrays(found) if found else pa.nulls(0, kind)
    return cast, pc.and_(pc.is_valid(values), pc.is_null(cast))


def _trimmed(values: Any, kind: pa.DataType) -> Any:
    """Strip the spaces around numbers in texts."""
    if pa.types.is_string(values.type) and not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        return pc.utf8_trim_whitespace(values)
    return values


def iso_time(texts: Any) -> Any:
    """Parse ISO 8601 texts as times in UTC; null where a text is none, or names a day or hour that does not exist."""
    try:
        return texts.cast(TIME)  # every text names its offset: the quickest way
    except pa.ArrowInvalid:
        pass
    found = pc.extract_regex(texts, _ISO)
    clock = [
        pc.if_else(pc.equal(_part(found, name), ""), "00", _part(found, name)) for name in ("hour", "minute", "second")
    ]
    time_of_day = pc.binary_join_element_wise(*clock, ":")
    local = _local_time(pc.binary_join_element_wise(_part(found, "day"), time_of_day, "T"), _DAY_FORMAT)
    digits = pc.utf8_slice_codeunits(pc.utf8_rpad(_part(found, "fraction"), 9, "0"), 0, 6)
    return pc.add(_in_utc(local, found), pc.cast(digits.cast(pa.int64()), pa.duration("us")))


def formed_time(texts: Any, form: str) -> Any:
    """Parse times of a strptime form, UTC unless it ends in %z; null where a text is none."""
    if not form.endswith("%z"):
        return _local_time(texts, form).cast(TIME)
    found = pc.extract_regex(texts, _ZONE)
    return _in_utc(_local_time(_part(found, "local"), form.removesuffix("%z").rstrip()), found)


def _local_time(texts: Any, form: str) -> Any:
    local = pc.strptime(texts, format=form, unit="s", error_is_null=True)
    real = pc.equal(pc.strftime(local, format=form), texts)  # 31/Feb would come back as a day in March
    return pc.if_else(pc.fill_null(real, fill_value=False), local, pa.scalar(None, local.type)).cast(pa.timestamp("us"))


def _in_utc(local: Any, found: Any) -> Any:
    hours, minutes = (_part(found, name) for name in ("hours", "minutes"))
    ahead_min = pc.add(pc.multiply(_number(hours), 60), _number(minutes))
    ahead_min = pc.if_else(pc.equal(_part(found, "sign"), "-"), pc.negate(ahead_min), ahead_min)
    ahead = pc.cast(pc.multiply(ahead_min, 60_000_000), pa.duration("us"))
    return pc.subtract(local, ahead).cast(TIME)


def _number(texts: Any) -> Any:
    return pc.if_else(pc.equal(texts, ""), "0", texts).cast(pa.int64())


def _part(found: Any, name: str) -> Any:
    return pc.struct_field(found, name).cast(pa.string())
