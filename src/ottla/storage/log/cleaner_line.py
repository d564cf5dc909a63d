"""Holds how far compaction came in a log: the line that the cleaner's checkpoint has of it, or is to get.

The line stays for the log's whole life, whatever the topic's policy becomes: batches may be missing between others.
"""

from __future__ import annotations


class CleanerLine:
    """The line of one log."""

    __slots__ = ("cleaned_offset", "is_written")

    def __init__(self, cleaned_offset: int | None) -> None:
        self.cleaned_offset = cleaned_offset  # None: there is no line
        self.is_written = cleaned_offset is not None  # durably: batches may be missing inside the log

    def begin(self, cleaned_offset: int) -> None:
        """Have the next checkpoint record that batches may be missing; recovery must know before they are."""
        if self.cleaned_offset is None:
            self.cleaned_offset = cleaned_offset

    def written(self) -> None:
        """Note that the line is durable: from now on batches may be missing between others."""
        self.is_written = self.cleaned_offset is not None

    def cleaned_to(self, offset: int) -> None:
        """Note how far compaction came, for the next checkpoint."""
        self.cleaned_offset = offset

    def limit(self, offset: int | None) -> None:
        """Limit how far compaction came: what was cut off is not clean when it is written again. None: no limit."""
        if self.cleaned_offset is not None and offset is not None:
            self.cleaned_offset = min(self.cleaned_offset, offset)
