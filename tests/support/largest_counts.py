"""Writes requests up to a count, of an array or of a section of tagged fields, and what is to follow it.

The places are found in the messages' own schema, so that a new message has its tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from uuid import UUID

from ottla.broker.requests.registry import APIS
from ottla.core.slices import WorkSlice
from ottla.wire import codec
from ottla.wire.apis import API_INFO, ApiKey
from ottla.wire.compiled_codec import field_codec
from ottla.wire.errors import LongRequest
from ottla.wire.hot import fetch, produce
from ottla.wire.primitives import write_length, write_uvarint
from ottla.wire.schema import Field

_AT_ONCE = 100  # topics and partitions that a handler decodes in one piece
_NOTHING: dict[str, Any] = {"string": "", "bytes": b"", "uuid": UUID(int=0), "int8": 0, "int32": 0, "int64": 0}


class Place(NamedTuple):
    """An array of a request in one version, or the tagged fields of one of its structs."""

    key: ApiKey
    version: int
    names: tuple[str, ...]  # of the fields that lead there
    is_tags: bool = False

    def __str__(self) -> str:
        where = ".".join(self.names) or "-"
        return f"{self.key.name.lower()} v{self.version} {where}{' tags' if self.is_tags else ''}"

    @property
    def is_flexible(self) -> bool:
        """Whether lengths are compact and structs have tagged fields."""
        return self.version >= API_INFO[self.key].flexible_since

    @property
    def element(self) -> bytes:
        """An element of the array, with nothing in it."""
        shape = codec.shape_class(self.key, "Request")
        for name in self.names:
            field = next(each for each in shape.WIRE if each.name == name and each.in_version(self.version))
            shape = field.type
        nothing = _NOTHING[shape] if isinstance(shape, str) else shape()
        out = bytearray()
        field_codec(Field(name, shape), version=self.version, flexible=self.is_flexible).write(out, nothing)
        return bytes(out)


def places(key: ApiKey, *, tags: bool) -> Iterator[Place]:
    """All arrays of an API's requests in all versions that are served, or all sections of tagged fields."""
    api = APIS[key]
    shape = codec.shape_class(key, "Request")
    for version in range(api.min_version, api.max_version + 1):
        if not tags:
            yield from (Place(key, version, names) for names in _arrays(shape, version, ()))
        elif version >= API_INFO[key].flexible_since:
            yield from (Place(key, version, names, is_tags=True) for names in _structs(shape, version, ()))


def _arrays(shape: Any, version: int, at: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for field in shape.WIRE:
        if field.in_version(version):
            here = (*at, field.name)
            if field.array:
                yield here
            if not isinstance(field.type, str):
                yield from _arrays(field.type, version, here)


def _structs(shape: Any, version: int, at: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield at
    for field in shape.WIRE:
        if field.in_version(version) and not isinstance(field.type, str):
            yield from _structs(field.type, version, (*at, field.name))


def body(place: Place, rest: bytes) -> bytes:
    """The request up to the place, with one element in each array around it; there `rest` begins."""
    out = bytearray()
    _write(out, codec.shape_class(place.key, "Request"), place, place.names, rest)
    return bytes(out)


def _write(out: bytearray, shape: Any, place: Place, names: tuple[str, ...], rest: bytes) -> None:
    version, flexible, defaults = place.version, place.is_flexible, shape()
    for field in (each for each in shape.WIRE if each.in_version(version) and each.tag is None):
        if names and field.name == names[0]:
            _enter(out, field, place, names, rest)
            return
        field_codec(field, version=version, flexible=flexible).write(out, getattr(defaults, field.name))
    if not names:
        out += rest
        return
    field = next(each for each in shape.WIRE if each.name == names[0])
    inside = bytearray()
    _enter(inside, field, place, names, rest)
    write_uvarint(out, 1)
    write_uvarint(out, field.tag or 0)
    write_uvarint(out, len(inside))
    out += inside


def _enter(out: bytearray, field: Field, place: Place, names: tuple[str, ...], rest: bytes) -> None:
    if field.array:
        if len(names) == 1 and not place.is_tags:
            out += rest
            return
        write_length(out, 1, place.is_flexible)
    elif place.version >= field.null_since:
        out.append(1)
    _write(out, field.type, place, names[1:], rest)


def count(place: Place, number: int) -> bytes:
    """The count itself."""
    out = bytearray()
    if place.is_tags:
        write_uvarint(out, number)
    else:
        write_length(out, number, place.is_flexible)
    return bytes(out)


def decoders(key: ApiKey) -> list[Callable[[int, bytes], Any]]:
    """What a broker decodes a request by that has few bytes, and one that has many."""
    hot: Any = {ApiKey.FETCH: fetch, ApiKey.PRODUCE: produce}.get(key)

    def hotly(version: int, data: bytes) -> None:
        frame = memoryview(data)
        decode = hot.decode_fetch_request if hot is fetch else hot.decode_produce_request
        try:
            decode(frame, version)
        except LongRequest:
            request = decode(frame, version, is_long=True)
            while not hot.read_topics(frame, version, request, _AT_ONCE):
                pass

    def in_slices(version: int, data: bytes) -> None:
        for _ in codec.decode_request_slices(key, version, data, slices=WorkSlice()):
            pass

    if hot is not None:
        return [hotly]
    return [in_slices, lambda version, data: codec.decode_request(key, version, data)]
