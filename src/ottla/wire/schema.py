"""Declares how the fields of a shape are encoded. The generated messages carry these declarations.

A shape is the union of all versions of a message; its `WIRE` says for each field which versions have it and how it is
put into bytes. `wire/compiled_codec.py` turns this into a reader and a writer for one version.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from ottla.core.files import FileRegion

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")

RecordBytes = bytes | bytearray | memoryview | FileRegion
"""The records of a response: bytes, or a region of a file that the connection sends without reading it."""

LATEST = 32767
"""An upper bound of versions: the field is in every version from `since` on."""

NEVER = 32768
"""A lower bound of versions that no version reaches."""


class Field(NamedTuple):
    """One field. `type` is Kafka's name of a primitive, or the shape of a struct; `since` and `until` are inclusive."""

    name: str
    type: str | type[Shape]
    array: bool = False
    since: int = 0
    until: int = LATEST
    null_since: int = NEVER
    tag: int | None = None

    def in_version(self, version: int) -> bool:
        """Return whether messages of this version carry the field."""
        return self.since <= version <= self.until


Wire: TypeAlias = tuple[Field, ...]


class Shape(Protocol):
    """The interface of message classes: keyword arguments with defaults, and the fields on the wire."""

    WIRE: ClassVar[Wire]

    def __init__(self, **values: Any) -> None: ...


NEW: Final[Any] = object()
"""The default of a parameter for which each struct makes a value of its own: an empty list, or a struct."""


class Struct:
    """Base of the generated classes. They are plain: to make dataclasses of them took most of their import."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment] # fields may change

    WIRE: ClassVar[Wire] = ()

    def __init__(self, **values: Any) -> None:
        assert not values, f"{type(self).__name__} has no fields"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(
            getattr(self, field.name) == getattr(other, field.name) for field in self.WIRE
        )

    def __repr__(self) -> str:
        values = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in self.WIRE)
        return f"{type(self).__name__}({values})"


class Messages(Generic[RequestT, ResponseT]):
    """The request and the response of one API: by it mypy knows what a handler of the API gets and returns."""

    __slots__ = ("key", "request", "response")

    def __init__(self, key: int, request: type[RequestT], response: type[ResponseT]) -> None:
        self.key = key
        self.request = request
        self.response = response
