"""Declares the plan of one pass over one log, and its result: values that go to the worker process and back.

Both ways as JSON: a plan has no open files and no object of the broker's, only numbers and names.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import PurePath
from typing import Any, NamedTuple

from ottla.storage.file_names import CLEANED_SUFFIX


class SourceSegment(NamedTuple):
    """A sealed segment as it was when the pass began."""

    base_offset: int
    end_offset: int  # where the next segment begins
    size_bytes: int


class ActiveProducer(NamedTuple):
    """A producer whose state must come out of the cleaned log as it went in."""

    last_data_offset: int  # of its last batch, whose header holds its sequence; -1 if a marker was the last
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningPlan:
    """One pass: from the log's first segment up to the first that may not be cleaned."""

    topic_partition: str  # for messages
    directory: PurePath
    token: str  # in the names of the files written: unique to the plan, so that a stale worker overwrites nothing
    sources: tuple[SourceSegment, ...]  # oldest first, without a gap
    later_bases: tuple[
        int, ...
    ]  # of the segments after `sources`: their indexes hold transactions that began in `sources`
    first_dirty_offset: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    producers: dict[int, ActiveProducer]
    map_bytes: int
    load_factor: float
    io_buffer_bytes: int  # for reading and writing together
    io_bytes_per_second: float

    @property
    def first_uncleanable_offset(self) -> int:
        """Return the offset at which the pass must end."""
        return self.sources[-1].end_offset

    @property
    def suffix(self) -> str:
        """Of the files that are written; Kafka too removes what it finds of that name."""
        return f".{self.token}{CLEANED_SUFFIX}"

    def to_json(self) -> dict[str, Any]:
        """Convert to what `json.dumps` takes."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        producers = [(producer_id, *active) for producer_id, active in self.producers.items()]
        return plain | {"directory": str(self.directory), "producers": producers}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> CleaningPlan:
        """Build a plan from the result of `to_json`."""
        return cls(
            **plain
            | {
                "directory": PurePath(plain["directory"]),
                "sources": tuple(SourceSegment(*source) for source in plain["sources"]),
                "later_bases": tuple(plain["later_bases"]),
                "producers": {row[0]: ActiveProducer(*row[1:]) for row in plain["producers"]},
            }
        )


@dataclass(slots=True)
class Counts:
    """Counts what a pass has done so far."""

    keys: int = 0
    records_read: int = 0
    records_kept: int = 0
    records_without_key: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    map_bytes: int = 0
    seconds: float = 0.0

    def add(self, other: Counts) -> None:
        """Sum up several passes."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedGroup:
    """Some neighbouring segments, cleaned into one: its files are written and synced and wait to be swapped in."""

    first_source: int  # the first and the number of `CleaningPlan.sources` it replaces
    sources: int
    size_bytes: int
    has_transactions: bool  # whether it has an index of aborted ones

    def to_json(self) -> dict[str, Any]:
        """Convert to what `json.dumps` takes."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassDone:
    """The end of a pass."""

    end_offset: int  # below it the log is clean now
    counts: Counts = field(default_factory=Counts)

    def to_json(self) -> dict[str, Any]:
        """Convert to what `json.dumps` takes."""
        return asdict(self)
