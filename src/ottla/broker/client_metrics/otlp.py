"""Reads the numbers in a client's push: OTLP's MetricsData v1, of which gauges and sums are of use.

protobuf's own classes would be 3 MB more to load for what clients chose to send. This reader makes no object for what
it passes over, yields after each field of a message that repeats, and bounds the fields of a push and of a data point.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

FIELDS_MAX: Final = 200_000
"""Fields in one push: more than 1 MiB of metrics of any client has."""
_POINT_FIELDS_MAX: Final = 64
_NAME_BYTES_MAX, _ATTRIBUTE_BYTES_MAX, _ATTRIBUTES_MAX = 200, 250, 16
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DELTA: Final = 1
_DOUBLE, _SFIXED64 = struct.Struct("<d"), struct.Struct("<q")

Field: TypeAlias = tuple[int, int, int, int]
"""A field's number and type, and its value as a number, or where it begins and ends."""


class MalformedMetrics(ValueError):
    """Reports bytes that are no MetricsData."""


class Point(NamedTuple):
    """One number."""

    metric: str
    attributes: str  # name=value, by name
    value: float
    is_counter: bool
    is_delta: bool  # it is added to what came before


class LeftOut(NamedTuple):
    """A data point that is not kept: of another kind than a number, or with names that are too long."""


def points(data: bytes) -> Iterator[Point | LeftOut | None]:
    """Yield the data points of a push, and None after each other field. Raises MalformedMetrics."""
    reader = _Reader(data)
    for resource in reader.messages(0, len(data), 1):
        yield None
        for scope in reader.of(resource, 2):
            yield None
            for metric in reader.of(scope, 2):
                yield from _points_of(reader, metric)


def _points_of(reader: _Reader, metric: Field) -> Iterator[Point | LeftOut | None]:
    name: str | None = None
    gauges: list[Field] = []
    sums: list[Field] = []
    others = 0
    for field in reader.fields(metric[2], metric[3]):
        yield None
        match field[0], field[1]:
            case 1, 2:
                name = reader.text(field, _NAME_BYTES_MAX)
            case 5, 2:
                gauges.append(field)
            case 7, 2:
                sums.append(field)
            case ((9 | 10 | 11), 2):
                others += 1
    if others:
        yield LeftOut()
    for gauge in gauges:
        for point in reader.of(gauge, 1):
            yield _point(reader, point, name, is_counter=False, is_delta=False)
    for total in sums:
        is_delta = is_monotonic = False
        for number, kind, value, _ in reader.fields(total[2], total[3]):
            yield None
            if kind == _VARINT and number == 2:
                is_delta = value == _DELTA
            elif kind == _VARINT and number == 3:
                is_monotonic = value != 0
        for point in reader.of(total, 1):
            yield _point(reader, point, name, is_counter=is_monotonic, is_delta=is_delta)


def _point(reader: _Reader, point: Field, name: str | None, *, is_counter: bool, is_delta: bool) -> Point | LeftOut:
    value: float | None = None
    attributes: list[str | None] = []
    for field in reader.few_fields(point):
        match field[0], field[1]:
            case 4, 1:
                value = _DOUBLE.unpack_from(reader.data, field[2])[0]
            case 6, 1:
                value = _SFIXED64.unpack_from(reader.data, field[2])[0]
            case 7, 2:
                attributes.append(_attribute(reader, field))
    known = sorted(attribute for attribute in attributes if attribute is not None)
    if not name or value is None or len(known) < len(attributes) or len(known) > _ATTRIBUTES_MAX:
        return LeftOut()
    return Point(name, ",".join(known), value, is_counter, is_delta)


def _attribute(reader: _Reader, attribute: Field) -> str | None:
    """Return name=value; None if it is too long, or the value is none of text, number and truth."""
    key: str | None = None
    text: str | None = None
    for field in reader.few_fields(attribute):
        if field[:2] == (1, _BYTES):
            key = reader.text(field, _ATTRIBUTE_BYTES_MAX)
        elif field[:2] == (2, _BYTES):
            for number, kind, value, end in reader.few_fields(field):
                match number, kind:
                    case 1, 2:
                        text = reader.text((number, kind, value, end), _ATTRIBUTE_BYTES_MAX)
                    case 2, 0:
                        text = "true" if value else "false"
                    case 3, 0:
                        text = str(value - (1 << 64) if value >> 63 else value)
                    case 4, 1:
                        text = repr(_DOUBLE.unpack_from(reader.data, value)[0])
    return None if not key or text is None else f"{key}={text}"


class _Reader:
    """Reads the fields of messages, of which there are only so many."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._left = FIELDS_MAX

    def messages(self, at: int, end: int, number: int) -> Iterator[Field]:
        """Yield the messages in a field that repeats; what else is there is counted too."""
        for field in self.fields(at, end):
            if field[0] == number and field[1] == _BYTES:
                yield field

    def of(self, message: Field, number: int) -> Iterator[Field]:
        """Yield the messages in a field of a message."""
        return self.messages(message[2], message[3], number)

    def few_fields(self, message: Field) -> list[Field]:
        """Return the fields of a message that has few: no turn of the loop is between them."""
        found: list[Field] = []
        for field in self.fields(message[2], message[3]):
            if len(found) == _POINT_FIELDS_MAX:
                raise MalformedMetrics(f"a data point with more than {_POINT_FIELDS_MAX} fields")
            found.append(field)
        return found

    def text(self, field: Field, bytes_max: int) -> str | None:
        """Return a text; None if it is longer. Raises MalformedMetrics."""
        if field[3] - field[2] > bytes_max:
            return None
        try:
            return self.data[field[2] : field[3]].decode()
        except UnicodeDecodeError as error:
            raise MalformedMetrics("a text that is not UTF-8") from error

    def fields(self, at: int, end: int) -> Iterator[Field]:
        """Yield the fields of a message."""
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise MalformedMetrics(f"more than {FIELDS_MAX} fields")
            tag, at = self._varint(at, end)
            kind = tag & 7
            value = start = at
            if kind == _VARINT:
                value, at = self._varint(at, end)
            elif kind == _FIXED64:
                at += 8
            elif kind == _FIXED32:
                at += 4
            elif kind == _BYTES:
                length, start = self._varint(at, end)
                value, at = start, start + length
            else:
                raise MalformedMetrics(f"a field of type {kind}")
            if at > end or not tag >> 3:
                raise MalformedMetrics("a field that ends after its message, or has no number")
            yield tag >> 3, kind, value, at

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end and shift < 70:
            byte = self.data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF, at
            shift += 7
        raise MalformedMetrics("a number that does not end")
