"""Loads a topic into its table and its quarantine, each offset exactly once, through any crash.

The protocol, in this order:

1. *plan*: from each partition's position in the table to its end in the log;
2. *write*: tasks read their parts of the ranges and write Parquet files that no reader sees;
3. *commit the quarantine*, then 4. *commit the table*: files and positions in one atomic step each.

A crash in 1 or 2 leaves orphaned files. Between 3 and 4 it leaves the quarantine ahead of the table. Those rows are not
trusted, for the next load may parse other records than the crashed one (its settings or the table's columns may have
changed): the next load sets a *fence* in the table, which no earlier load's commit passes, and then replaces that part
of the quarantine by its own in the same commit that adds the rest. So at all times every offset
below the table's position is in the table or in the quarantine, exactly once; `tests/pipeline/test_load_protocol.py`
holds the protocol to that with any schedule of crashes and of loads that overtake each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from ottla.client.offsets import OffsetBounds
from ottla.pipeline.changes.apply import ChangeApplier
from ottla.pipeline.changes.rule import keep_rule
from ottla.pipeline.lake.lake_table import (
    RACES_MAX,
    AppTransaction,
    Change,
    CommitConflict,
    LakeTable,
    NotContiguous,
    StagedFile,
    TableMismatch,
    TableSpec,
)
from ottla.pipeline.lake.recorded_content import ContentSums, transactions_of_load
from ottla.pipeline.lake.rewrite import FileSwap, promote_types, without_ranges
from ottla.pipeline.lake.rowless_offsets import keep_skipped
from ottla.pipeline.lake.schema import Path, storable_schema
from ottla.pipeline.loading.on_loss import OnLoss
from ottla.pipeline.loading.plan import CannotLoad, check_complete, plan
from ottla.pipeline.loading.row_mapping import QUARANTINE, RowMapping
from ottla.pipeline.loading.write_task import StagedFiles, WriteSpec, unify_columns
from ottla.pipeline.offset_range import OffsetRange

UNIFY_ROUNDS_MAX = 10
"""Bound of the repetitions of tasks for a column's type, besides one of each task: each promotes a type, which ends."""

SplitRanges = Callable[[Sequence[OffsetRange]], list[list[OffsetRange]]]
"""Splits ranges into the parts of tasks."""
RemoveRows = Callable[[LakeTable, str, Iterable[OffsetRange], str], FileSwap]
"""Removes the rows of offsets from a table: `rewrite.without_ranges`, or a model's."""
TaskRunner = Callable[[WriteSpec, Sequence[Sequence[OffsetRange]]], list[StagedFiles]]
"""Writes parts, each in a task of its own; returns the results in the order of the parts."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Holds the table and the quarantine of a topic."""

    table: LakeTable
    quarantine: LakeTable


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """The limits of a load; by default it loads everything that is new."""

    first: Mapping[int, int] = field(default_factory=dict)
    """The beginning of partitions that were never loaded from; otherwise the log's start."""
    end: Mapping[int, int] = field(default_factory=dict)
    most: int | None = None
    """Offsets of each partition in one commit at most."""
    on_loss: OnLoss = OnLoss.FAIL


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Holds the result of a load."""

    ranges: Sequence[OffsetRange] = ()
    lost: Sequence[OffsetRange] = ()
    records: int = 0
    rows: int = 0
    late: int = 0
    quarantined: int = 0
    files: int = 0
    size_bytes: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def did_nothing(self) -> bool:
        """There was nothing new in the log."""
        return not self.ranges


class TopicLoader:
    """Loads one topic: created once, used for every commit."""

    def __init__(
        self,
        tables: Tables,
        job: WriteSpec,
        task_runner: TaskRunner,
        split_ranges: SplitRanges,
        remove_rows: RemoveRows = without_ranges,
        applier: ChangeApplier | None = None,
    ) -> None:
        """`applier` applies changes, where the mapping says that records are such."""
        self.tables, self.job, self.task_runner, self.split_ranges = tables, job, task_runner, split_ranges
        self._remove_rows, self._applier = remove_rows, applier

    def run(self, bounds: Mapping[int, OffsetBounds], wanted: LoadLimits = LoadLimits()) -> LoadResult:
        """Load the next part of the log, up to the ends in `bounds`, in one commit.

        Raises CannotLoad if offsets are missing, TableMismatch, and what the tasks raise. After any of them, and after
        a kill at any point, calling it again is safe. If another load commits first, it plans again (RACES_MAX times).
        """
        for attempt in range(1, RACES_MAX + 1):
            try:
                return self._run_once(bounds, wanted)
            except (NotContiguous, CommitConflict):
                if attempt == RACES_MAX:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _run_once(self, bounds: Mapping[int, OffsetBounds], wanted: LoadLimits) -> LoadResult:
        topic, table, quarantine = self.job.topic, self.tables.table, self.tables.quarantine
        fence = self._acquire_fence(bounds)
        held, in_quarantine = table.positions(topic, bounds), quarantine.positions(topic, bounds)
        planned = plan(
            topic, bounds, held, first=wanted.first, end=wanted.end, most=wanted.most, on_loss=wanted.on_loss
        )
        ranges = planned.ranges
        if not ranges:
            return LoadResult(lost=planned.lost)
        staged = self.write_ranges(planned.readable)
        check_complete(planned.readable, [r for task in staged for r in task.ranges])
        rows, quarantined_files = _files(staged)
        gone = _unfinished_ranges(ranges, held, in_quarantine)
        back = {r.partition: r.end_offset for r in gone}
        out = self._remove_rows(quarantine, topic, gone, f"{self.job.stem}-back")
        quarantine.commit(
            Change(
                "load",
                topic,
                ranges,
                back,
                add=[*out.add, *quarantined_files],
                remove=out.remove,
                transactions=[fence.of_quarantine],
            )
        )
        keep_skipped(table, topic, planned.lost)
        if self._applier is not None:  # rows that change have no offset each, of which sums could be compared
            added = self._applier.commit(table, topic, ranges, rows, [fence.of_table])
            return with_files(result_of(ranges, planned.lost, staged), [*added, *quarantined_files])
        content = ContentSums()
        for task in staged:
            content.add_all(task.content)
        recorded = transactions_of_load(table, topic, content)
        table.commit(Change("load", topic, ranges, add=rows, transactions=[fence.of_table, *recorded]))
        return result_of(ranges, planned.lost, staged)

    def write_ranges(self, ranges: Sequence[OffsetRange]) -> list[StagedFiles]:
        """Write ranges in the table's columns, which are evolved first where the rows need it."""
        job, parts = self.job, self.split_ranges(ranges)
        own = job.mapping.own_columns.names
        fields = pa.schema([f for f in self.tables.table.spec().schema if f.name not in own])
        job = replace(job, fields=fields)
        staged = self.task_runner(job, parts)
        for _ in range(UNIFY_ROUNDS_MAX + len(parts)):
            job, again = unify_columns(staged, job)
            if again:
                for n, task in zip(again, self.task_runner(job, [parts[n] for n in again]), strict=True):
                    staged[n] = task
                continue
            losers = self._evolve_table(storable_schema(job.fields))
            if not losers:
                return staged
            job = replace(job, fields=fields, fixed=self.job.fixed | set(losers))
            staged = self.task_runner(job, parts)
        raise CannotLoad(f"{job.topic}: its fields' types do not converge")

    def _evolve_table(self, fields: pa.Schema) -> list[Path]:
        """Evolve the table to these columns. Returns leaves that cannot be promoted, for their values would change."""
        table = self.tables.table
        losers = promote_types(table, fields, self.job.stem)
        if not losers:
            table.add_columns(fields)
        return losers

    def _acquire_fence(self, bounds: Mapping[int, OffsetBounds]) -> _Fence:
        """Return the fence of this load's commits: a new one if an earlier load crashed between its two commits."""
        topic, table, quarantine = self.job.topic, self.tables.table, self.tables.quarantine
        name = f"load/{topic}"
        number, before = table.transaction_version(name), quarantine.transaction_version(name)
        held, in_quarantine = table.positions(topic, bounds), quarantine.positions(topic, bounds)
        if any(p not in held or held[p].end_offset < r.end_offset for p, r in in_quarantine.items()):
            table.commit(Change("fence", topic, transactions=[AppTransaction(name, number, number + 1)]))
            number += 1
        return _Fence(AppTransaction(name, number, number), AppTransaction(name, before, number))


@dataclass(frozen=True, slots=True)
class _Fence:
    """The application transactions of a load's two commits: both fail once another load has set a new fence."""

    of_table: AppTransaction
    of_quarantine: AppTransaction


def _unfinished_ranges(
    ranges: Sequence[OffsetRange], held: Mapping[int, OffsetRange], in_quarantine: Mapping[int, OffsetRange]
) -> list[OffsetRange]:
    """Return the quarantined ranges of an unfinished load: all beyond the table's position."""
    gone = []
    for r in ranges:
        quarantined = in_quarantine.get(r.partition)
        if quarantined is not None and (r.partition not in held or quarantined.end_offset > r.first_offset):
            first = r.first_offset if r.partition in held else quarantined.first_offset
            gone.append(OffsetRange(r.partition, first, quarantined.end_offset))
    return gone


def _files(staged: Sequence[StagedFiles]) -> tuple[list[StagedFile], list[StagedFile]]:
    return [f for task in staged for f in task.rows], [f for task in staged for f in task.quarantined]


def result_of(ranges: Sequence[OffsetRange], lost: Sequence[OffsetRange], staged: Sequence[StagedFiles]) -> LoadResult:
    """Add up the results of the tasks."""
    rows, quarantined_files = _files(staged)
    reasons: Counter[str] = Counter()
    for task in staged:
        reasons.update(task.tally)
    return LoadResult(
        ranges,
        lost,
        records=sum(task.records for task in staged),
        rows=sum(f.rows for f in rows),
        late=sum(task.late for task in staged),
        quarantined=sum(f.rows for f in quarantined_files),
        files=len(rows) + len(quarantined_files),
        size_bytes=sum(f.size_bytes for f in (*rows, *quarantined_files)),
        reasons=dict(reasons),
    )


def with_files(result: LoadResult, files: Sequence[StagedFile]) -> LoadResult:
    """Return the result with the files that were committed in place of those that the tasks wrote."""
    return replace(result, files=len(files), size_bytes=sum(f.size_bytes for f in files))


def create_tables(tables: Tables, mapping: RowMapping) -> None:
    """Create both tables unless they exist. Raises TableMismatch if one exists and is partitioned in another way."""
    spec = mapping.spec()
    tables.table.create(spec)
    tables.quarantine.create(TableSpec(QUARANTINE))
    have = tables.table.spec()
    if have.partition_by != spec.partition_by:
        raise TableMismatch(
            f"{tables.table.store.url} is partitioned by {', '.join(have.partition_by)}, "
            f"not by {', '.join(spec.partition_by)}: a table stays as it was made; load into another one"
        )
    if mapping.changes is not None:
        keep_rule(tables.table, mapping.changes)
    for own in mapping.own_columns:
        at = have.schema.get_field_index(own.name)
        if at < 0:
            tables.table.add_columns(pa.schema([own]))
        elif have.schema.field(at).type != own.type:
            raise TableMismatch(
                f"{tables.table.store.url}: column {own.name} is {have.schema.field(at).type}, not {own.type}"
            )
