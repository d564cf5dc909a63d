"""Turns a shape's declaration into a reader and a writer for one version, once; both then run many times.

A struct becomes a list of steps. Neighbouring fields of fixed size become one step (one `struct` call). A tagged field
equal to its default is left out (KIP-482); an unknown tag is skipped by its length. Every count is held against the
bytes that are left before a list is made, so a peer cannot make us allocate more than a small multiple of what it sent.

A shape with arrays is also read and written in slices: by a generator that yields whenever a slice of work is spent
(core/slices.py), so that other requests are served meanwhile. Large requests are read in this form only, and it bounds
the number of their elements: see docs/design/requests.md.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ottla.core.slices import WorkSlice
from ottla.wire.errors import AnswerTooLarge, MalformedRequest
from ottla.wire.primitives import FIXED, Read, Write, primitive, read_length, read_uvarint, write_length, write_uvarint
from ottla.wire.schema import Field, Shape

T = TypeVar("T")

ReadInto: TypeAlias = Callable[[bytes, int, dict[str, Any]], int]
"""Reads some fields at an offset into a dictionary; returns where the next field begins."""

WriteFrom: TypeAlias = Callable[[bytearray, Any], None]
"""Writes some fields of a shape."""


ELEMENTS_MAX = 100_000
"""Elements that all arrays of a request may have together. Kafka bounds them by the bytes of the request alone."""

TAGS_MAX = 1024
"""Tagged fields that one struct may have; the protocol defines fewer than ten anywhere."""

ANSWER_BYTES_MAX = 100_000_000
"""A larger answer is not sent: librdkafka's clients do not read it (`receive.message.max.bytes`)."""

_BYTES_PER_WORK = 32
"""Besides its elements a message is work by its bytes: strings to copy, tagged fields to skip."""


class Slicing:
    """Bounds the reading or writing of one message: its elements, and its work in a turn of the event loop."""

    __slots__ = ("_slices", "elements")

    def __init__(self, slices: WorkSlice) -> None:
        self._slices = slices
        self.elements = 0

    def begin_array(self, count: int) -> None:
        """Count the elements of an array before any of them is read."""
        self.elements += count
        if self.elements > ELEMENTS_MAX:
            raise MalformedRequest(f"more than {ELEMENTS_MAX} elements in the arrays of a request")

    def spend(self, size: int) -> bool:
        """Count an element of `size` bytes; returns whether the slice is spent."""
        return self._slices.spend(1 + size // _BYTES_PER_WORK)

    def spend_on(self, elements: int) -> bool:
        """Count so many elements; returns whether the slice is spent."""
        return self._slices.spend(elements)


Slices: TypeAlias = Generator[None, None, T]
"""Yields when the slice of work is spent; returns the result."""

ReadSlices: TypeAlias = Callable[[bytes, int, Slicing], Slices[tuple[Any, int]]]
WriteSlices: TypeAlias = Callable[[bytearray, Any, Slicing], Slices[None]]
_ReadIntoSlices: TypeAlias = Callable[[bytes, int, dict[str, Any], Slicing], Slices[int]]


class TypeCodec(NamedTuple):
    """The functions that read and write a type in one version. `bytes_min`: the fewest bytes a value of it takes.

    A type without arrays has no slices: it is short.
    """

    read: Read
    write: Write
    bytes_min: int
    read_slices: ReadSlices | None = None
    write_slices: WriteSlices | None = None


class _Step(NamedTuple):
    read: ReadInto
    write: WriteFrom
    bytes_min: int
    read_slices: _ReadIntoSlices | None = None
    write_slices: WriteSlices | None = None


def struct_codec(shape: type[Shape], *, version: int, flexible: bool) -> TypeCodec:
    """Build the codec of a shape in a version."""
    fields = [field for field in shape.WIRE if field.in_version(version)]
    steps = list(_steps([field for field in fields if field.tag is None], version, flexible))
    if flexible:
        steps.append(_tagged_step(shape, [field for field in fields if field.tag is not None], version))
    readers = tuple(step.read for step in steps)
    writers = tuple(step.write for step in steps)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        values: dict[str, Any] = {}
        for read_fields in readers:
            at = read_fields(data, at, values)
        return shape(**values), at

    def write(out: bytearray, value: Any) -> None:
        for write_fields in writers:
            write_fields(out, value)

    bytes_min = sum(step.bytes_min for step in steps)
    if all(step.read_slices is None for step in steps):
        return TypeCodec(read, write, bytes_min)

    def read_slices(data: bytes, at: int, slicing: Slicing) -> Slices[tuple[Any, int]]:
        values: dict[str, Any] = {}
        for step in steps:
            if step.read_slices is None:
                at = step.read(data, at, values)
            else:
                at = yield from step.read_slices(data, at, values, slicing)
        return shape(**values), at

    def write_slices(out: bytearray, value: Any, slicing: Slicing) -> Slices[None]:
        for step in steps:
            if step.write_slices is None:
                step.write(out, value)
            else:
                yield from step.write_slices(out, value, slicing)

    return TypeCodec(read, write, bytes_min, read_slices, write_slices)


def _is_fixed(field: Field) -> bool:
    return not field.array and field.type in FIXED


def _steps(fields: list[Field], version: int, flexible: bool) -> Iterator[_Step]:
    for fixed, group in groupby(fields, key=_is_fixed):
        if fixed:
            yield _run_step(list(group))
        else:
            yield from (_single_step(field, version, flexible) for field in group)


def _run_step(fields: list[Field]) -> _Step:
    """Build the step for neighbouring fields of fixed size: one `struct` call for all."""
    names = tuple(field.name for field in fields)
    layout = struct.Struct(">" + "".join(FIXED[str(field.type)] for field in fields))
    unpack_from, pack, size = layout.unpack_from, layout.pack, layout.size
    values_of = attrgetter(*names)

    def read(data: bytes, at: int, values: dict[str, Any]) -> int:
        values.update(zip(names, unpack_from(data, at), strict=True))
        return at + size

    def write_one(out: bytearray, value: Any) -> None:
        out += pack(values_of(value))

    def write_many(out: bytearray, value: Any) -> None:
        out += pack(*values_of(value))

    return _Step(read, write_one if len(names) == 1 else write_many, size)


def _single_step(field: Field, version: int, flexible: bool) -> _Step:
    name = field.name
    value_codec = field_codec(field, version=version, flexible=flexible)
    read_value, write_value, bytes_min, read_value_slices, write_value_slices = value_codec
    value_of = attrgetter(name)

    def read(data: bytes, at: int, values: dict[str, Any]) -> int:
        values[name], at = read_value(data, at)
        return at

    def write(out: bytearray, value: Any) -> None:
        write_value(out, value_of(value))

    if read_value_slices is None or write_value_slices is None:
        return _Step(read, write, bytes_min)

    def read_slices(data: bytes, at: int, values: dict[str, Any], slicing: Slicing) -> Slices[int]:
        values[name], at = yield from read_value_slices(data, at, slicing)
        return at

    def write_slices(out: bytearray, value: Any, slicing: Slicing) -> Slices[None]:
        yield from write_value_slices(out, value_of(value), slicing)

    return _Step(read, write, bytes_min, read_slices, write_slices)


def field_codec(field: Field, *, version: int, flexible: bool) -> TypeCodec:
    """Build the codec of one field's value, whatever its type."""
    nullable = version >= field.null_since
    if isinstance(field.type, str):
        inner = TypeCodec(*primitive(field.type, flexible=flexible, nullable=nullable and not field.array))
    else:
        inner = struct_codec(field.type, version=version, flexible=flexible)
        if nullable and not field.array:
            return _nullable_struct(inner)
    return _array_codec(inner, nullable=nullable, flexible=flexible) if field.array else inner


def _nullable_struct(inner: TypeCodec) -> TypeCodec:
    """Build the codec of a struct that may be null: it has a byte before it, -1 for null, 1 for present (KIP-893)."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        if data[at] >= 0x80:
            return None, at + 1
        return inner.read(data, at + 1)

    def write(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            inner.write(out, value)

    if inner.read_slices is None or inner.write_slices is None:
        return TypeCodec(read, write, 1)
    read_inner, write_inner = inner.read_slices, inner.write_slices

    def read_slices(data: bytes, at: int, slicing: Slicing) -> Slices[tuple[Any, int]]:
        if data[at] >= 0x80:
            return None, at + 1
        return (yield from read_inner(data, at + 1, slicing))

    def write_slices(out: bytearray, value: Any, slicing: Slicing) -> Slices[None]:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            yield from write_inner(out, value, slicing)

    return TypeCodec(read, write, 1, read_slices, write_slices)


def _array_codec(inner: TypeCodec, *, nullable: bool, flexible: bool) -> TypeCodec:
    read_item, write_item, item_bytes_min = inner.read, inner.write, inner.bytes_min
    item_bytes_min = max(item_bytes_min, 1)

    def read_count(data: bytes, at: int) -> tuple[int, int]:
        """Read the number of items, -1 for null; return it with the position after it."""
        count, at = read_length(data, at, flexible)
        if count == -1 and nullable:
            return -1, at
        if not 0 <= count <= (len(data) - at) // item_bytes_min:
            raise MalformedRequest(f"an array of {count} items in {len(data) - at} bytes")
        return count, at

    def write_count(out: bytearray, value: list[Any] | None) -> list[Any]:
        """Write how many items follow; returns them."""
        if value is None:
            if not nullable:
                raise TypeError("null in an array that cannot be null")
            write_length(out, -1, flexible)
            return []
        write_length(out, len(value), flexible)
        return value

    def read(data: bytes, at: int) -> tuple[list[Any] | None, int]:
        count, at = read_count(data, at)
        if count == -1:
            return None, at
        items = []
        for _ in range(count):
            item, at = read_item(data, at)
            items.append(item)
        return items, at

    def write(out: bytearray, value: list[Any] | None) -> None:
        for item in write_count(out, value):
            write_item(out, item)

    return TypeCodec(
        read,
        write,
        1 if flexible else 4,
        _array_read_slices(read_count, inner),
        _array_write_slices(write_count, inner),
    )


def _array_read_slices(read_count: Callable[[bytes, int], tuple[int, int]], inner: TypeCodec) -> ReadSlices:
    read_item, read_item_slices = inner.read, inner.read_slices

    def read_slices(data: bytes, at: int, slicing: Slicing) -> Slices[tuple[list[Any] | None, int]]:
        count, at = read_count(data, at)
        if count == -1:
            return None, at
        slicing.begin_array(count)
        items = []
        for _ in range(count):
            if read_item_slices is None:
                item, end = read_item(data, at)
            else:
                item, end = yield from read_item_slices(data, at, slicing)
            items.append(item)
            if slicing.spend(end - at):
                yield
            at = end
        return items, at

    return read_slices


def _array_write_slices(
    write_count: Callable[[bytearray, list[Any] | None], list[Any]], inner: TypeCodec
) -> WriteSlices:
    write_item, write_item_slices = inner.write, inner.write_slices

    def write_slices(out: bytearray, value: list[Any] | None, slicing: Slicing) -> Slices[None]:
        for item in write_count(out, value):
            began = len(out)
            if write_item_slices is None:
                write_item(out, item)
            else:
                yield from write_item_slices(out, item, slicing)
            if slicing.spend(len(out) - began):
                if len(out) > ANSWER_BYTES_MAX:
                    raise AnswerTooLarge(f"an answer of more than {ANSWER_BYTES_MAX} bytes is not sent")
                yield

    return write_slices


def _tagged_step(shape: type[Shape], fields: list[Field], version: int) -> _Step:
    """Build the step for the tagged fields, the section at the end of every flexible struct."""
    known = {field.tag: (field.name, field_codec(field, version=version, flexible=True)) for field in fields}
    if not known:
        return _Step(_skip_tags, _write_no_tags, 1)
    defaults = shape()
    in_order = [(tag, name, codec.write, getattr(defaults, name)) for tag, (name, codec) in sorted(known.items())]

    def read(data: bytes, at: int, values: dict[str, Any]) -> int:
        count, at = tag_count(data, at)
        for _ in range(count):
            tag, at = read_uvarint(data, at)
            size, at = read_uvarint(data, at)
            end = at + size
            if end > len(data):
                raise MalformedRequest(f"a tagged field of {size} bytes with {len(data) - at} left")
            if tag in known:
                name, codec = known[tag]
                values[name], at = codec.read(data, at)
                if at != end:
                    raise MalformedRequest(f"tagged field {name} does not fill its {size} bytes")
            at = end
        return at

    def write(out: bytearray, value: Any) -> None:
        present = 0
        section = bytearray()
        for tag, name, write_value, default in in_order:
            field_value = getattr(value, name)
            if field_value == default:
                continue
            encoded = bytearray()
            write_value(encoded, field_value)
            write_uvarint(section, tag or 0)
            write_uvarint(section, len(encoded))
            section += encoded
            present += 1
        write_uvarint(out, present)
        out += section

    return _Step(read, write, 1)


def _skip_tags(data: bytes, at: int, _values: dict[str, Any]) -> int:
    """Skip the tags of a struct that knows none: unknown ones by their length."""
    if data[at] == 0:
        return at + 1
    return skip_tags(data, at)


def _write_no_tags(out: bytearray, _value: Any) -> None:
    out.append(0)


def skip_tags(data: bytes | memoryview, at: int, tags_max: int = TAGS_MAX) -> int:
    """Return the position after a section of unknown tagged fields."""
    count, at = tag_count(data, at, tags_max)
    for _ in range(count):
        _, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        at += size
        if at > len(data):
            raise MalformedRequest(f"a tagged field of {size} bytes ends after the message")
    return at


def tag_count(data: bytes | memoryview, at: int, tags_max: int = TAGS_MAX) -> tuple[int, int]:
    """Read the number of tagged fields; return it with the position after it."""
    count, at = read_uvarint(data, at)
    if count > tags_max:
        raise MalformedRequest(f"a struct of {count} tagged fields")
    return count, at
