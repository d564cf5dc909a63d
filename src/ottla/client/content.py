"""Computes checksums of records' content, which an audit compares: of key, value, headers and timestamp.

The checksum of a record is the sum of those of its parts, so it depends neither on the batch that the record is in nor
on compression, and rows of a table that keep the parts have the same (`pipeline/lake/content_hash.py` computes it for
whole columns). A part's is its CRC-32C and length, mixed with the part's name: a change of up to 32 neighbouring bits
is always found, any other with a chance of 2^32 to 1. It finds faults, not forgeries.

A range of offsets has two sums, of the checksums and of each times its offset. Both can be added up over ranges. The
first shows that a record changed, the second which one, if it is one alone, and also that two changed places.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ottla.core.checksums import crc32c

WORD_MASK = (1 << 64) - 1
SUM_MASK = (1 << 63) - 1
"""Sums have 63 bits: table formats keep them as signed numbers."""
LENGTH_MASK = (1 << 31) - 1
MIX_SHIFTS, MIX_FACTORS = (30, 27, 31), (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""The finalizer of SplitMix64: each bit of the result depends on every bit of the number."""
PLACE_FACTOR = 0x9E3779B97F4A7C15
"""Of an element's place in a list."""
KEY, VALUE, HEADERS, TIME = ("key",), ("value",), ("headers",), ("record_time",)
LIST, STRUCT, ELEMENT = "#list", "#struct", "[]"
FIRST_MS, END_MS = -62_135_596_800_000, 253_402_300_800_000
"""The years 1 to 9999: a table has no other times, so they are no part of a checksum."""


class ContentSum(NamedTuple):
    """The sums of some records of one partition."""

    records: int = 0
    total: int = 0
    weighted: int = 0

    def plus(self, other: ContentSum) -> ContentSum:
        """Return the sums of both.

        >>> ContentSum(1, 5, 0).plus(ContentSum(2, 7, 9))
        ContentSum(records=3, total=12, weighted=9)
        """
        total, weighted = self.total + other.total, self.weighted + other.weighted
        return ContentSum(self.records + other.records, total & SUM_MASK, weighted & SUM_MASK)

    def changed_offset(self, other: ContentSum, first_offset: int, end_offset: int) -> int | None:
        """Return the offset whose content differs, if it is one alone; None if the sums do not say which.

        >>> one, other = content_sum(7, [11, 22, 33]), content_sum(7, [11, 23, 33])
        >>> one.changed_offset(other, 7, 10)
        8
        """
        change, weighted = (self.total - other.total) & SUM_MASK, (self.weighted - other.weighted) & SUM_MASK
        if not change:
            return None
        zeros = (change & -change).bit_length() - 1
        modulus = 1 << (63 - zeros)
        if end_offset - first_offset > modulus or weighted & ((1 << zeros) - 1):
            return None
        residue = (weighted >> zeros) * pow(change >> zeros, -1, modulus) % modulus
        offset = first_offset + (residue - first_offset) % modulus
        return offset if offset < end_offset else None


def content_sum(first_offset: int, checksums: Sequence[int]) -> ContentSum:
    """Add up the checksums of records with consecutive offsets."""
    weighted = sum(offset * checksum for offset, checksum in enumerate(checksums, first_offset))
    return ContentSum(len(checksums), sum(checksums) & SUM_MASK, weighted & SUM_MASK)


def record_checksum(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]], timestamp_ms: int
) -> int:
    """Return the checksum of a record. `timestamp_ms` is the one in the log, -1 if there is none.

    >>> record_checksum(None, None, (), -1)
    0
    >>> record_checksum(b"a", None, (), -1) == record_checksum(None, b"a", (), -1)
    False
    """
    checksum = 0
    if key is not None:
        checksum += mix(bytes_word(key) ^ salt(KEY))
    if value is not None:
        checksum += mix(bytes_word(value) ^ salt(VALUE))
    if timestamp_ms != -1 and FIRST_MS <= timestamp_ms < END_MS:
        checksum += mix((timestamp_ms * 1000 & WORD_MASK) ^ salt(TIME))
    if headers:
        checksum += _headers_checksum(headers)
    return checksum & WORD_MASK


def _headers_checksum(headers: Sequence[tuple[str, bytes | None]]) -> int:
    element = (*HEADERS, ELEMENT)
    checksum = mix(len(headers) ^ salt((*HEADERS, LIST)))
    for place, (name, value) in enumerate(headers, 1):
        one = mix(1 ^ salt((*element, STRUCT))) + mix(bytes_word(name.encode()) ^ salt((*element, "key")))
        if value is not None:
            one += mix(bytes_word(value) ^ salt((*element, "value")))
        checksum += mix(one + place * PLACE_FACTOR & WORD_MASK)
    return checksum


def bytes_word(data: bytes) -> int:
    """Return what stands for a text or bytes: the CRC-32C and the length."""
    return crc32c(data) | (len(data) & LENGTH_MASK) << 32


@lru_cache(maxsize=1 << 14)
def salt(path: tuple[str, ...]) -> int:
    """Return what distinguishes equal values in different columns: of a column's path, in any spelling of its case."""
    return mix(bytes_word("\0".join(path).lower().encode()))


def mix(word: int) -> int:
    """Mix the bits of a number of 64 bits."""
    first, second, last = MIX_SHIFTS
    word = ((word ^ word >> first) * MIX_FACTORS[0]) & WORD_MASK
    word = ((word ^ word >> second) * MIX_FACTORS[1]) & WORD_MASK
    return word ^ word >> last
