"""Counts the offsets of a range by outcome, each once.

Offsets of a partition are assigned without gaps, and a reader must have a reason for each offset without a record.
Nothing is inferred from a count that is too small: control batches and aborted transactions are
seen; a hole between or inside batches can only come of compaction (a log is never otherwise cut in the middle); and
only offsets below the log's start are lost.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class OffsetCounts:
    """Holds the counts of offsets by outcome."""

    records: int = 0
    control: int = 0
    """Markers of transactions, which are no client's records."""
    aborted: int = 0
    """Records of aborted transactions, which read_committed passes over."""
    compacted: int = 0
    """Removed by compaction, with their place left empty."""
    lost: int = 0
    """Below the log's start before they were read (retention, deletion), or of a topic that is gone."""

    @property
    def offsets(self) -> int:
        """All of them: the length of the range that was read."""
        return self.records + self.control + self.aborted + self.compacted + self.lost

    def add(self, other: OffsetCounts) -> None:
        """Add another range's counts."""
        self.records += other.records
        self.control += other.control
        self.aborted += other.aborted
        self.compacted += other.compacted
        self.lost += other.lost

    def gaps(self) -> str:
        """Describe the offsets that have no record, in words; empty if all have one.

        >>> OffsetCounts(records=5, control=1, compacted=2).gaps()
        '1 control, 2 compacted'
        """
        counts = {"control": self.control, "aborted": self.aborted, "compacted": self.compacted, "lost": self.lost}
        return ", ".join(f"{count} {name}" for name, count in counts.items() if count)
