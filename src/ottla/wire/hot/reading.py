"""Reads what Produce and Fetch requests share: strings, counts and tags, without a copy of what follows.

All raise one of `BAD_BYTES` on bad bytes. Counts are not used to allocate: items are read one by one, and a wrong count
runs into the end of the view.
"""

from __future__ import annotations

import struct
from typing import Final
from uuid import UUID

from ottla.core.ids import NO_TOPIC_ID
from ottla.wire.compiled_codec import ELEMENTS_MAX, skip_tags
from ottla.wire.errors import LongRequest, MalformedRequest
from ottla.wire.primitives import STRING_BYTES_MAX, read_uvarint

BAD_BYTES: Final = (struct.error, IndexError, UnicodeDecodeError)

SHORT_ELEMENTS_MAX: Final = 200
"""Topics and partitions of a request that is decoded, handled and answered in one turn of the event loop."""

AT_ONCE: Final = SHORT_ELEMENTS_MAX
"""Topics and partitions of a longer request that are decoded, or answered, between two looks at the slice of work."""

TAGS_MAX: Final = 32
"""Tagged fields that one struct may have; the protocol defines two."""

_INT16: Final = struct.Struct(">h").unpack_from
_INT32: Final = struct.Struct(">i").unpack_from


def _string_length(view: memoryview, at: int, flexible: bool) -> tuple[int, int]:
    """Read the length of a string, -1 for null; return it with the position of the string's bytes."""
    length: int
    if flexible:
        length = view[at] - 1
        if length < 0x7F:
            at += 1
        else:
            length, at = read_uvarint(view, at)
            length -= 1
    else:
        (length,) = _INT16(view, at)
        at += 2
    if length < -1:
        raise MalformedRequest(f"a string of {length} bytes")
    if at + length > len(view) or length > STRING_BYTES_MAX:
        raise MalformedRequest(f"a string of {length} bytes with {len(view) - at} left")
    return length, at


def string_at(view: memoryview, at: int, flexible: bool) -> tuple[str | None, int]:
    """Read a string, or None for a null."""
    length, at = _string_length(view, at, flexible)
    if length < 0:
        return None, at
    return str(view[at : at + length], "utf-8"), at + length


def name_bounds(view: memoryview, at: int, flexible: bool) -> tuple[int, int]:
    """Return the start and the end of the bytes of a string that cannot be null."""
    length, at = _string_length(view, at, flexible)
    if length < 0:
        raise MalformedRequest("null in a string that cannot be null")
    return at, at + length


def name_at(view: memoryview, at: int, flexible: bool) -> tuple[str, int]:
    """Read a string that cannot be null."""
    begins, end = name_bounds(view, at, flexible)
    return str(view[begins:end], "utf-8"), end


def count_at(view: memoryview, at: int, flexible: bool) -> tuple[int, int]:
    """Read the length of an array that cannot be null."""
    if flexible:
        count = view[at] - 1
        if count < 0x7F:  # one byte, as almost always
            at += 1
        else:
            count, at = read_uvarint(view, at)
            count -= 1
    else:
        (count,) = _INT32(view, at)
        at += 4
    if count < 0:
        raise MalformedRequest(f"an array of {count} items")
    return count, at


def refuse_elements(view: memoryview, elements: int) -> None:
    """Raise LongRequest, or MalformedRequest if no request may have so many, or there are more elements than bytes."""
    if elements > len(view):
        raise MalformedRequest(f"{elements} elements in {len(view)} bytes")
    if elements > ELEMENTS_MAX:
        raise MalformedRequest(f"more than {ELEMENTS_MAX} elements in the arrays of a request")
    raise LongRequest


def uuid_at(view: memoryview, at: int) -> tuple[UUID, int]:
    """Read a 128-bit id; the zero id is the one shared value."""
    end = at + 16
    raw = bytes(view[at:end])
    if len(raw) != 16:
        raise MalformedRequest("an id that ends after the message")
    return (UUID(bytes=raw) if any(raw) else NO_TOPIC_ID), end


def after_tags(view: memoryview, at: int, flexible: bool) -> int:
    """Return the position after a section of unknown tags."""
    if not flexible:
        return at
    return at + 1 if view[at] == 0 else skip_tags(view, at, TAGS_MAX)
