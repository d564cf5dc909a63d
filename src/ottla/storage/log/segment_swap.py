"""Renames the files of a new segment, in two steps; after a crash `loading/swap_files.py` completes them."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.storage.file_names import SEGMENT_SUFFIXES, SWAP_SUFFIX, TXN_INDEX_SUFFIX
from ottla.storage.log.segment import Segment


class SegmentSwap:
    """The files of a segment that replaces some neighbours or is added, from `.cleaned` by `.swap` to their names."""

    __slots__ = ("_cleaned_suffix", "_suffixes", "new", "old")

    def __init__(self, old: Sequence[Segment], new: Segment, *, cleaned_suffix: str, has_transactions: bool) -> None:
        self.old, self.new = old, new
        self._cleaned_suffix = cleaned_suffix
        self._suffixes = [suffix for suffix in SEGMENT_SUFFIXES if has_transactions or suffix != TXN_INDEX_SUFFIX]

    def begin(self) -> None:
        """Rename the files to `.swap`, the `.log` last: from then on they count. Raises OSError."""
        for suffix in reversed(self._suffixes):
            self.new.files.rename(self.new.path(suffix + self._cleaned_suffix), self.new.path(suffix + SWAP_SUFFIX))

    def finish(self) -> None:
        """Rename the files to those of a segment, once the old ones are away. Raises OSError."""
        for suffix in self._suffixes:
            self.new.files.rename(self.new.path(suffix + SWAP_SUFFIX), self.new.path(suffix))
