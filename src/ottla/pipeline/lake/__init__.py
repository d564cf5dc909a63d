"""A table of the lake that remembers, in the same atomic commit as the rows, how far each partition is loaded.

The rule of this file: a commit for offsets `first` to `end` of a partition is possible only where the table's last
commit of that partition ended at `first`. In Delta's log the position is an application transaction per partition
(`ottla/<topic>/<partition>`, version = the next offset to load): it is in the commit that adds the files, it survives
checkpoints of the log, and of two writers at once Delta refuses the second.

Files that no commit names are invisible to every reader: what a killed load leaves behind is only disk space.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

import pyarrow as pa

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

_TOPIC = "ottla.topic"
_TOPIC_ID = "ottla.topic.id"


class LakeError(Exception):
    """The table and the load do not fit together; nothing was changed."""


class NotContiguousError(LakeError):
    """A commit would leave a gap or load something twice: the range does not begin where the last one ended."""


class LostRaceError(LakeError):
    """Another load committed first. Plan again from the table's new position."""


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Offsets of one partition from `first_offset` up to, not including, `end_offset`."""

    partition: int
    first_offset: int
    end_offset: int

    @property
    def count(self) -> int:
        """How many offsets; with gaps in the log there are fewer records."""
        return self.end_offset - self.first_offset


@dataclass(frozen=True, slots=True)
class LandedFile:
    """One Parquet file that a task wrote below the table's directory and that no reader sees yet."""

    path: str
    """Relative to the table."""
    size_bytes: int
    rows: int
    partition_values: Mapping[str, str]
    first_offset: int
    last_offset: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Load:
    """What one commit adds: files, and for each partition the offsets they come from."""

    ranges: Sequence[OffsetRange]
    files: Sequence[LandedFile]


class Table(Protocol):
    """What the load asks of a table format."""

    def positions(self, partitions: Iterable[int]) -> dict[int, int]:
        """The next offset to load of those partitions that have been loaded from; as of now."""
        ...

    def commit(self, load: Load) -> None:
        """All of it or nothing. Raises NotContiguousError or LostRaceError, and then nothing happened."""
        ...


def check_contiguous(positions: Mapping[int, int], load: Load) -> None:
    """Raise NotContiguousError unless every range begins where its partition ended, one range per partition.

    A partition's first load may begin anywhere: its log may have been cut by retention before.
    """
    partitions = [r.partition for r in load.ranges]
    if len(set(partitions)) != len(partitions):
        raise NotContiguousError("two ranges of one partition in one commit")
    for r in load.ranges:
        position = positions.get(r.partition, r.first_offset)
        if r.first_offset != position or r.end_offset < r.first_offset:
            raise NotContiguousError(
                f"partition {r.partition}: offsets {r.first_offset} to {r.end_offset} do not follow {position}, "
                "where the table's last commit ended"
            )


@dataclass(frozen=True, slots=True)
class TableSpec:
    """What a table holds and whence."""

    topic: str
    topic_id: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()


class DeltaLake:
    """A Delta table on a file system, written through `deltalake`: no catalogue and no jar."""

    def __init__(self, path: Path, spec: TableSpec) -> None:
        self.path = path
        self.spec = spec

    def create(self) -> None:
        """Make the table if it is not there yet. Raises LakeError if it holds something else."""
        from deltalake import DeltaTable, Schema

        if not DeltaTable.is_deltatable(str(self.path)):
            DeltaTable.create(
                str(self.path),
                schema=Schema.from_arrow(self.spec.schema),
                mode="ignore",  # another load may make it in this moment
                partition_by=list(self.spec.partition_by),
                configuration={_TOPIC: self.spec.topic, _TOPIC_ID: self.spec.topic_id},
                raise_if_key_not_exists=False,
            )
        kept = self._open().metadata().configuration
        if kept.get(_TOPIC) != self.spec.topic:
            raise LakeError(f"{self.path} holds topic {kept.get(_TOPIC)!r}, not {self.spec.topic!r}")
        if kept.get(_TOPIC_ID) != self.spec.topic_id:
            raise LakeError(
                f"{self.path} was loaded from a topic {self.spec.topic!r} with id {kept.get(_TOPIC_ID)}, and the one "
                f"there now has id {self.spec.topic_id}: it was made anew, and its offsets mean other records"
            )

    def positions(self, partitions: Iterable[int]) -> dict[int, int]:
        """From the newest commit."""
        return self._positions(self._open(), partitions)

    def commit(self, load: Load) -> None:
        """One entry in Delta's log: the files and the new positions."""
        from deltalake import CommitProperties, Schema, Transaction
        from deltalake.exceptions import CommitFailedError

        table = self._open()
        check_contiguous(self._positions(table, (r.partition for r in load.ranges)), load)
        ranges = {r.partition: [r.first_offset, r.end_offset] for r in load.ranges}
        metadata = {"ottla.offsets": json.dumps(ranges)}  # for people: the transactions are what is checked
        transactions = [Transaction(self._application(r.partition), r.end_offset) for r in load.ranges]
        try:
            table.create_write_transaction(
                [_add_action(file) for file in load.files],
                mode="append",
                schema=Schema.from_arrow(self.spec.schema),
                partition_by=list(self.spec.partition_by),
                commit_properties=CommitProperties(custom_metadata=metadata, app_transactions=transactions),
            )
        except CommitFailedError as failure:
            raise LostRaceError(f"another load of {self.spec.topic} into {self.path} was first: {failure}") from failure

    def files(self) -> list[str]:
        """The Parquet files of the newest commit, as paths: what any reader of Delta sees."""
        return [unquote(uri.removeprefix("file://")) for uri in self._open().file_uris()]

    def dataframe(self, spark: SparkSession, files: Sequence[str]) -> DataFrame:
        """These files of the table (`files`) as Spark reads them, without Delta's jar and without looking for a schema.

        The columns a table is partitioned by come from the directories' names.
        """
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = from_arrow_schema(self.spec.schema)
        if not files:
            return spark.createDataFrame([], schema)
        return spark.read.schema(schema).option("basePath", str(self.path)).parquet(*files)

    def version(self) -> int:
        """The number of the newest commit."""
        return int(self._open().version())

    def _open(self) -> DeltaTable:
        from deltalake import DeltaTable

        return DeltaTable(str(self.path))

    def _application(self, partition: int) -> str:
        return f"ottla/{self.spec.topic}/{partition}"

    def _positions(self, table: DeltaTable, partitions: Iterable[int]) -> dict[int, int]:
        versions = {p: table.transaction_version(self._application(p)) for p in partitions}
        return {p: version for p, version in versions.items() if version is not None}


def _add_action(file: LandedFile) -> Any:
    """Delta's words for a new file. Row counts and offset limits let readers skip files unopened."""
    from deltalake.transaction import AddAction

    limits = {"minValues": {"offset": file.first_offset}, "maxValues": {"offset": file.last_offset}}
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values=dict(file.partition_values),
        modification_time=file.modified_ms,
        data_change=True,
        stats=json.dumps({"numRecords": file.rows, **limits, "nullCount": {}}),
    )


def replace_table(path: Path, rows: pa.Table, *, made_from: int) -> None:
    """Write a table made from another one's version `made_from`; readers see the old rows or the new, never both."""
    from deltalake import CommitProperties, write_deltalake

    properties = CommitProperties(custom_metadata={"ottla.made.from.version": str(made_from)})
    write_deltalake(str(path), rows, mode="overwrite", commit_properties=properties)
