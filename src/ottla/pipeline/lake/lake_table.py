"""Declares the port of a table format: a table whose commits contain the rows and the position of the load.

The rule of this file: a commit for offsets `first` to `end` of a partition is possible only where the table's last
commit of that partition ended at `first`, and that check belongs to the same compare-and-swap as the commit itself: it
is made on the version that the swap replaces. `delta.py` and `iceberg.py` keep it, and one suite of tests holds both.

Files that no commit names are invisible to every reader: what a killed load leaves only takes disk space.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from ottla.pipeline.lake.lake_store import LakeStore, StoredObject
from ottla.pipeline.lake.table_format import TableFormat, formats_at
from ottla.pipeline.offset_range import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COMMIT_ATTEMPTS = 30
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 1.0
_TOPIC_ID = "ottla.topic.id."


class TableMismatch(Exception):
    """The table and what is asked of it do not fit together; nothing was changed."""


class NotContiguous(TableMismatch):
    """A commit would leave a gap or load something twice: the range does not begin where the last one ended."""


class InconsistentTopicId(TableMismatch):
    """The table was loaded from another topic of the same name, which was deleted since."""


RACES_MAX = 3
"""The number of times that a commit is planned again if other writers commit first."""


class CommitConflict(TableMismatch):
    """Another writer committed first. Plan again from the table's current version."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """One Parquet file of a table."""

    path: str
    """Relative to the table."""
    size_bytes: int
    rows: int
    partition_values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StagedFile(TableFile):
    """One Parquet file that a task wrote below the table's directory and that no reader sees yet."""

    modified_ms: int
    lows: Mapping[str, Any] = field(default_factory=dict)
    """The least value by column, for readers that skip files unopened; times in microseconds."""
    highs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AppTransaction:
    """Moves a version number that the table keeps by name, as Delta's application transactions do.

    The commit fails unless the version is `expected`.
    """

    name: str
    expected: int
    new: int


@dataclass(frozen=True, slots=True)
class Change:
    """Describes one commit, which happens as a whole or not at all."""

    what: str
    """In a word, for the people who read the table's history."""
    topic: str = ""
    ranges: Sequence[OffsetRange] = ()
    """Offsets that this change brings, each from where its partition's last one ended."""
    supersedes: Mapping[int, int] = field(default_factory=dict)
    """By partition, the position that this change replaces by its range's: the quarantined rows of an unfinished load
    are removed and written again."""
    replaced: Sequence[OffsetRange] = ()
    """Offsets loaded before, whose rows this change replaces. It may begin before them all, but leave no gap."""
    add: Sequence[StagedFile] = ()
    remove: Sequence[TableFile] = ()
    """Files that must be in the table still."""
    transactions: Sequence[AppTransaction] = ()
    same_rows: bool = False
    """The files added hold the rows of those removed."""
    schema: pa.Schema | None = None
    """The table's columns from now on. Then `remove` is every file the table has."""
    basis: frozenset[str] | None = None
    """The paths of all files that the table must have before: the change was made of their rows."""

    @property
    def depends_on_files(self) -> bool:
        """Return whether the change is possible only on some or on all files of the table."""
        return bool(self.remove) or self.schema is not None or self.basis is not None


@dataclass(frozen=True, slots=True)
class TableSpec:
    """Describes a table: all its columns, and those that its files are partitioned by."""

    schema: pa.Schema
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """Describes the layout of a format's files below the table."""

    data: str
    """The directory of the data files, relative to the table: "" or "data/"."""
    partition_columns_in_files: bool
    """Whether a file repeats the columns it is partitioned by."""


class TableReader(Protocol):
    """Reads a table as of its newest commit."""

    store: LakeStore

    @property
    def name(self) -> str:
        """The table's name: the name of its directory."""
        ...

    def exists(self) -> bool:
        """Return whether the table was created."""
        ...

    def spec(self) -> TableSpec:
        """Return the columns and the partitioning.

        Raises TableMismatch if there is no table, as all methods below do.
        """
        ...

    def properties(self) -> dict[str, str]:
        """Return the table's properties."""
        ...

    def files(self) -> list[TableFile]:
        """List the data files."""
        ...

    def paths(self) -> list[str]:
        """Return the absolute locations of the data files, as any reader opens them."""
        ...

    def dataframe(self, spark: SparkSession, files: Sequence[str] | None = None) -> DataFrame:
        """Return the table (or these of its files) as Spark reads it, without a jar.

        Columns are in the table's order.
        """
        ...


class LoadPositions(Protocol):
    """Reads how far a table is loaded, from the metadata of its newest commit."""

    def positions(self, topic: str, partitions: Iterable[int]) -> dict[int, OffsetRange]:
        """Return by partition the first offset in the table and the next offset to load; without those never loaded."""
        ...

    def transaction_version(self, name: str) -> int:
        """Return the version of an application transaction; 0 until a change sets it."""
        ...

    def version(self) -> str:
        """Return the identifier of the newest commit."""
        ...

    def committed_ms(self) -> int | None:
        """Return the time of the newest commit in milliseconds since 1970."""
        ...


class TableCommitter(Protocol):
    """Changes a table, one atomic commit per call."""

    layout: Layout

    def create(self, spec: TableSpec) -> None:
        """Create the table; do nothing if it exists."""
        ...

    def add_columns(self, schema: pa.Schema) -> None:
        """Append the columns (and fields of structs) of `schema` that the table does not have. Idempotent."""
        ...

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set some properties and keep the others."""
        ...

    def commit(self, change: Change) -> None:
        """Apply the whole change or nothing. Raises NotContiguous or CommitConflict if nothing was applied."""
        ...


class TableMaintenance(Protocol):
    """Removes old versions of a table and finds the files that are still referenced."""

    store: LakeStore

    def own_files(self) -> list[StoredObject]:
        """List data and metadata files, referenced or not, that only this table's writers can have written."""
        ...

    def expire(self, before_ms: int) -> int:
        """Expire the versions before a time and delete the files that only they reference; return how many."""
        ...

    def referenced_keys(self) -> set[str]:
        """Return the key of every file that the current version or an unexpired one references."""
        ...


class LakeTable(TableReader, LoadPositions, TableCommitter, TableMaintenance, Protocol):
    """One table of a lake, of any format: all four ports. Code that needs only one of them takes that one."""


def check_change(
    change: Change, held: Mapping[int, OffsetRange], versions: Mapping[str, int], files: Collection[str]
) -> None:
    """Raise unless the change fits the table's positions, transaction versions and files.

    A partition's first load may begin anywhere: its log may have been cut by retention before.
    """
    for transaction in change.transactions:
        if versions.get(transaction.name, 0) != transaction.expected:
            raise CommitConflict(f"another writer moved {transaction.name} first")
    _check_ranges(change, held)
    _check_replaced(change.replaced, held)
    have = set(files) if change.depends_on_files else set()
    if change.basis is not None and change.basis != have:
        raise CommitConflict("files were added or replaced since this change was planned")
    if any(file.path not in have for file in change.remove):
        raise CommitConflict("files that this change replaces were replaced by another one")
    if change.schema is not None and len(have) != len(change.remove):
        raise CommitConflict("files were added while the table was being rewritten")


def _check_ranges(change: Change, held: Mapping[int, OffsetRange]) -> None:
    _check_once(change.ranges)
    for r in change.ranges:
        position = held[r.partition].end_offset if r.partition in held else r.first_offset
        expected = change.supersedes.get(r.partition, r.first_offset)
        if position != expected or r.first_offset > r.end_offset:
            raise NotContiguous(
                f"{change.topic}-{r.partition}: offsets {r.first_offset} to {r.end_offset} do not follow {position}, "
                "where the table's last commit ended"
            )


def _check_replaced(ranges: Sequence[OffsetRange], held: Mapping[int, OffsetRange]) -> None:
    _check_once(ranges)
    for r in ranges:
        have = held.get(r.partition)
        if have is None or not (
            r.first_offset <= have.end_offset and have.first_offset <= r.end_offset <= have.end_offset
        ):
            what = "nothing" if have is None else f"offsets {have.first_offset} to {have.end_offset}"
            raise NotContiguous(
                f"partition {r.partition}: replacing offsets {r.first_offset} to {r.end_offset} would leave a gap, for "
                f"the table holds {what}"
            )


def _check_once(ranges: Sequence[OffsetRange]) -> None:
    if len({r.partition for r in ranges}) != len(ranges):
        raise NotContiguous("two ranges of one partition in one commit")


def held_after(change: Change, held: Mapping[int, OffsetRange]) -> dict[int, OffsetRange]:
    """Return the offsets that the table has of the partitions of the change once it happened."""
    after = {}
    for r in change.ranges:
        first = min(held[r.partition].first_offset, r.first_offset) if r.partition in held else r.first_offset
        after[r.partition] = OffsetRange(r.partition, first, r.end_offset)
    for r in change.replaced:
        have = after.get(r.partition) or held[r.partition]
        after[r.partition] = OffsetRange(r.partition, min(have.first_offset, r.first_offset), have.end_offset)
    return after


def commit_attempts(location: str) -> Iterator[int]:
    """Yield the attempts at a commit that others may conflict with; each repeats all checks. Then raise CommitConflict.

    The pauses between them are random and grow: a writer that lost to many would otherwise lose again.
    """
    for attempt in range(_COMMIT_ATTEMPTS):
        if attempt:
            time.sleep(random.uniform(0, min(_FIRST_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)))
        yield attempt
    raise CommitConflict(f"others commit to {location} all the time")


def check_format(store: LakeStore, table_format: TableFormat) -> None:
    """Raise TableMismatch if a store holds a table of another format."""
    for other in formats_at(store) - {table_format}:
        raise TableMismatch(
            f"{store.url} holds a table in the format {other.value}, and this lake's format is {table_format.value}. "
            f"Set the lake's format to {other.value}, or load into another lake"
        )


def register_topic(table: LakeTable, topic: str, topic_id: str) -> None:
    """Write down which topic, by its id, a table is loaded from. Raises InconsistentTopicId if it was another.

    A topic that was deleted and made again has the old name and another id, and its offsets mean other records. Brokers
    older than topic ids give an empty one, which says nothing.
    """
    kept = table.properties().get(_TOPIC_ID + topic)
    if kept is None:
        table.set_properties({_TOPIC_ID + topic: topic_id})
    elif kept and topic_id and kept != topic_id:
        raise InconsistentTopicId(
            f"{table.store.url} was loaded from a topic {topic!r} with id {kept}, and the one there now has id "
            f"{topic_id}: it was recreated, and its offsets mean other records; load it into another table"
        )


def loaded_topic_id(table: TableReader, topic: str) -> str:
    """Return the id of the topic that a table was loaded from; empty if there is none or it is not known."""
    return table.properties().get(_TOPIC_ID + topic, "")


def topics_of(table: TableReader) -> list[str]:
    """Return the topics a table was loaded from."""
    return sorted(name.removeprefix(_TOPIC_ID) for name in table.properties() if name.startswith(_TOPIC_ID))
