"""Load: from a topic to its table and its quarantine, each offset exactly once, whatever dies when.

The protocol, in this order:

1. *plan*: from each partition's position in the table to its end in the log;
2. *land*: tasks read their shares and write Parquet files that no reader sees;
3. *commit the quarantine*, then 4. *commit the table*: files and positions in one atomic step each.

A death in 1 or 2 leaves stray files. Between 3 and 4 it leaves the quarantine ahead of the table. What it is ahead by
is not trusted, for the next load may understand other records than the dead one (its settings or the table's columns
may have changed): the next load puts up a *fence* in the table, which whoever was so far can no longer pass, and then
replaces that part of the quarantine by its own in the same commit that brings the rest. So at all times every offset
below the table's position is in the table or in the quarantine, exactly once; `tests/pipeline/test_load_protocol.py`
holds the protocol to that with any schedule of crashes and of loads that overtake each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from ottla.pipeline.lake.port import (
    Change,
    LakeError,
    LakeTable,
    LandedFile,
    LostRaceError,
    Mark,
    NotContiguousError,
    TableSpec,
)
from ottla.pipeline.lake.rewrite import Swap, widen, without_ranges
from ottla.pipeline.loading.plan import OnLoss, check_complete, plan
from ottla.pipeline.loading.row_mapping import QUARANTINE, Shape
from ottla.pipeline.loading.write_task import Landed, LandingJob, agree
from ottla.pipeline.log import LoadError, LogSpan, OffsetRange

AGREE_ROUNDS = 10
"""How often tasks may land anew for the sake of a column's type: each time a type widens, and they cannot for ever."""
RACES_MAX = 3

Share = Callable[[Sequence[OffsetRange]], list[list[OffsetRange]]]
"""Cuts ranges into the shares of tasks."""
TakeOut = Callable[[LakeTable, str, Iterable[OffsetRange], str], Swap]
"""Takes the rows of offsets out of a table: `rewrite.without_ranges`, or a model's."""
Lander = Callable[[LandingJob, Sequence[Sequence[OffsetRange]]], list[Landed]]
"""Lands shares, each in a task of its own; returns the results in the order of the shares."""


@dataclass(frozen=True, slots=True)
class Tables:
    """Where a topic goes."""

    table: LakeTable
    quarantine: LakeTable


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a load is to bring: by default everything that is new."""

    first: Mapping[int, int] = field(default_factory=dict)
    """Where partitions begin that were never loaded from; otherwise the log's start."""
    end: Mapping[int, int] = field(default_factory=dict)
    most: int | None = None
    """Offsets of each partition in one commit at most."""
    on_loss: OnLoss = OnLoss.FAIL


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load did."""

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


class Loading:
    """What a load of one topic works with: made once, used for every commit."""

    def __init__(
        self, tables: Tables, job: LandingJob, lander: Lander, share: Share, take_out: TakeOut = without_ranges
    ) -> None:
        self.tables, self.job, self.lander, self.share = tables, job, lander, share
        self._take_out = take_out

    def run(self, spans: Mapping[int, LogSpan], wanted: Wanted = Wanted()) -> LoadResult:
        """Bring the table and its quarantine towards the ends in `spans`: one commit.

        Raises LoadError if that is impossible, LakeError, and what the tasks raise; after any of them, and after a kill
        at any moment, calling it again is right. Where another load commits meanwhile it plans again, a few times.
        """
        for attempt in range(1, RACES_MAX + 1):
            try:
                return self._run_once(spans, wanted)
            except (NotContiguousError, LostRaceError):
                if attempt == RACES_MAX:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _run_once(self, spans: Mapping[int, LogSpan], wanted: Wanted) -> LoadResult:
        topic, table, quarantine = self.job.topic, self.tables.table, self.tables.quarantine
        fence = self._fence_off(spans)
        held, set_aside = table.positions(topic, spans), quarantine.positions(topic, spans)
        planned = plan(topic, spans, held, first=wanted.first, end=wanted.end, most=wanted.most, on_loss=wanted.on_loss)
        ranges = planned.ranges
        if not ranges:
            return LoadResult(lost=planned.lost)
        landed = self.land(planned.readable)
        check_complete(planned.readable, [r for task in landed for r in task.ranges])
        rows, aside = _files(landed)
        gone = _left_behind(ranges, held, set_aside)
        back = {r.partition: r.end_offset for r in gone}
        out = self._take_out(quarantine, topic, gone, f"{self.job.stem}-back")
        quarantine.commit(
            Change("load", topic, ranges, back, add=[*out.add, *aside], remove=out.remove, marks=[fence.of_quarantine])
        )
        table.commit(Change("load", topic, ranges, add=rows, marks=[fence.of_table]))
        return result_of(ranges, planned.lost, landed)

    def land(self, ranges: Sequence[OffsetRange]) -> list[Landed]:
        """Land ranges in the table's columns, which grow and widen first where the rows need it."""
        job, shares = self.job, self.share(ranges)
        own = job.shape.own_columns.names
        fields = pa.schema([f for f in self.tables.table.spec().schema if f.name not in own])
        job = replace(job, fields=fields)
        landed = self.lander(job, shares)
        for _ in range(AGREE_ROUNDS):
            agreed, again = agree(landed, job)
            job = replace(job, fields=agreed)
            if again:
                for n, task in zip(again, self.lander(job, [shares[n] for n in again]), strict=True):
                    landed[n] = task
                continue
            losers = self._make_room(agreed)
            if not losers:
                return landed
            job = replace(job, fields=fields, fixed=job.fixed | set(losers))
            landed = self.lander(job, shares)
        raise LoadError(f"{job.topic}: its fields' types do not come to rest")

    def _make_room(self, fields: pa.Schema) -> list[str]:
        """Give the table these columns. Returns those that cannot be widened, for it holds values that would change."""
        table = self.tables.table
        losers = widen(table, fields, self.job.stem)
        if not losers:
            table.add_columns(fields)
        return losers

    def _fence_off(self, spans: Mapping[int, LogSpan]) -> _Fence:
        """The number under which this load commits; a new one if a load before it stopped between its two commits."""
        topic, table, quarantine = self.job.topic, self.tables.table, self.tables.quarantine
        name = f"load/{topic}"
        number, before = table.mark(name), quarantine.mark(name)
        held, set_aside = table.positions(topic, spans), quarantine.positions(topic, spans)
        if any(p not in held or held[p].end_offset < r.end_offset for p, r in set_aside.items()):
            table.commit(Change("fence", topic, marks=[Mark(name, number, number + 1)]))
            number += 1
        return _Fence(Mark(name, number, number), Mark(name, before, number))


@dataclass(frozen=True, slots=True)
class _Fence:
    """The marks of a load's two commits: neither happens once another load has put up a new fence."""

    of_table: Mark
    of_quarantine: Mark


def _left_behind(
    ranges: Sequence[OffsetRange], held: Mapping[int, OffsetRange], set_aside: Mapping[int, OffsetRange]
) -> list[OffsetRange]:
    """What an unfinished load put into the quarantine: all that lies beyond the table."""
    gone = []
    for r in ranges:
        aside = set_aside.get(r.partition)
        if aside is not None and (r.partition not in held or aside.end_offset > r.first_offset):
            first = r.first_offset if r.partition in held else aside.first_offset
            gone.append(OffsetRange(r.partition, first, aside.end_offset))
    return gone


def _files(landed: Sequence[Landed]) -> tuple[list[LandedFile], list[LandedFile]]:
    return [f for task in landed for f in task.rows], [f for task in landed for f in task.quarantined]


def result_of(ranges: Sequence[OffsetRange], lost: Sequence[OffsetRange], landed: Sequence[Landed]) -> LoadResult:
    """What the tasks did, added up."""
    rows, aside = _files(landed)
    reasons: Counter[str] = Counter()
    for task in landed:
        reasons.update(task.tally)
    return LoadResult(
        ranges,
        lost,
        records=sum(task.records for task in landed),
        rows=sum(f.rows for f in rows),
        late=sum(task.late for task in landed),
        quarantined=sum(f.rows for f in aside),
        files=len(rows) + len(aside),
        size_bytes=sum(f.size_bytes for f in (*rows, *aside)),
        reasons=dict(reasons),
    )


def create(tables: Tables, shape: Shape) -> None:
    """Make both tables if they are not there. Raises LakeError if the one that is there is filed in another way."""
    spec = shape.spec()
    tables.table.create(spec)
    tables.quarantine.create(TableSpec(QUARANTINE))
    have = tables.table.spec()
    if have.partition_by != spec.partition_by:
        raise LakeError(
            f"{tables.table.path} is filed by {', '.join(have.partition_by)}, not by {', '.join(spec.partition_by)}: "
            "a table stays as it was made; load into another one"
        )
    for own in shape.own_columns:
        at = have.schema.get_field_index(own.name)
        if at < 0:
            tables.table.add_columns(pa.schema([own]))
        elif have.schema.field(at).type != own.type:
            raise LakeError(f"{tables.table.path}: column {own.name} is {have.schema.field(at).type}, not {own.type}")
