"""Holds a range of offsets of one partition, and its text forms."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets of one partition from `first_offset` up to, not including, `end_offset`."""

    partition: int
    first_offset: int
    end_offset: int

    @property
    def count(self) -> int:
        """Return the number of offsets; with gaps in the log there are fewer records."""
        return self.end_offset - self.first_offset

    @property
    def text(self) -> str:
        """The offsets in words, as every message and the audit name them: first and last.

        >>> OffsetRange(0, 5, 8).text, OffsetRange(0, 5, 6).text
        ('offsets 5 to 7', 'offset 5')
        """
        return offsets_text(self.first_offset, self.end_offset)


def deleted_text(first_offset: int, end_offset: int) -> str:
    """Describe offsets that were deleted before they were loaded.

    >>> deleted_text(5, 6)
    'offset 5 was deleted from the log before it was loaded'
    """
    was, it_was = ("were", "they were") if end_offset - first_offset > 1 else ("was", "it was")
    return f"{offsets_text(first_offset, end_offset)} {was} deleted from the log before {it_was} loaded"


def parse_offsets(text: str) -> tuple[int, int]:
    """Parse `5` or `5-7`: the first offset, and the offset after the last. Raises ValueError.

    >>> parse_offsets("5-7"), parse_offsets("5")
    ((5, 8), (5, 6))
    """
    first, dash, last = text.strip().partition("-")
    found = int(first), int(last if dash else first) + 1
    if not 0 <= found[0] < found[1]:
        raise ValueError(f"{text!r} is not a range of offsets")
    return found


def offsets_text(first_offset: int, end_offset: int) -> str:
    """Name the offsets from `first_offset` up to, not including, `end_offset`."""
    if end_offset - first_offset <= 1:
        return f"offset {first_offset}"
    return f"offsets {first_offset} to {end_offset - 1}"
