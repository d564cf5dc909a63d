"""Reads the fields of the keys and values in the internal topics.

Every key and value begins with an int16 version; values are flexible (compact lengths, tagged fields) from a version of
each record type on.
"""

from __future__ import annotations

import struct
from typing import Final
from uuid import UUID

from ottla.wire.errors import MalformedRequest
from ottla.wire.primitives import bytes_reader, read_length, read_tagged_fields, read_uuid, string_reader

ELEMENTS_MAX: Final = 1_000_000
"""Bound on the elements of an array; a shorter record bounds it further."""


class RecordFieldReader:
    """Reads the fields of a record one by one."""

    __slots__ = ("_at", "_data", "_flexible")

    def __init__(self, data: bytes) -> None:
        self._data, self._at, self._flexible = data, 0, False

    def version(self, newest: int, *, flexible: int) -> int:
        """Read the version of a value; from `flexible` on its fields are flexible. Raises MalformedRequest."""
        version = self.int16()
        if not 0 <= version <= newest:
            raise MalformedRequest(f"a value of version {version}")
        self._flexible = version >= flexible
        return version

    def _number(self, code: str, size: int) -> int:
        (number,) = struct.unpack_from(code, self._data, self._at)
        self._at += size
        return int(number)

    def int8(self) -> int:
        """Read an int8."""
        return self._number(">b", 1)

    def int16(self) -> int:
        """Read an int16."""
        return self._number(">h", 2)

    def int32(self) -> int:
        """Read an int32."""
        return self._number(">i", 4)

    def int64(self) -> int:
        """Read an int64."""
        return self._number(">q", 8)

    def uuid(self) -> UUID:
        """Read a UUID."""
        found, self._at = read_uuid(self._data, self._at)
        return found

    def maybe_text(self) -> str | None:
        """Read a nullable string."""
        found, self._at = string_reader(self._flexible, nullable=True)(self._data, self._at)
        return None if found is None else str(found)

    def text(self) -> str:
        """Read a string."""
        found, self._at = string_reader(self._flexible, nullable=False)(self._data, self._at)
        return str(found)

    def blob(self) -> bytes:
        """Read bytes."""
        found, self._at = bytes_reader(self._flexible, nullable=False)(self._data, self._at)
        return bytes(found)

    def count(self, *, nullable: bool = False) -> int:
        """Read the length of an array, 0 of a null one that is allowed. Raises MalformedRequest if it cannot fit."""
        found, self._at = read_length(self._data, self._at, self._flexible)
        if nullable and found == -1:
            return 0
        if not 0 <= found <= min(ELEMENTS_MAX, len(self._data)):
            raise MalformedRequest(f"{found} elements in {len(self._data)} bytes")
        return found

    def tags(self) -> dict[int, bytes]:
        """Read the tagged fields by number; none before the flexible versions."""
        if not self._flexible:
            return {}
        found, self._at = read_tagged_fields(self._data, self._at)
        return found
