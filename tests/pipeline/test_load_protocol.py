"""The commit protocol under every schedule of crashes, without Spark and without a broker.

A model of the tables (a dict of rows, a position per partition) goes through the real `load`; a crash may come before
and after each of its outside steps. After every step each table must hold exactly the offsets below its position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.pipeline import load as protocol
from ottla.pipeline.lake import LandedFile, Load, NotContiguousError, OffsetRange, check_contiguous
from ottla.pipeline.load import LandedPiece, LoadError, LogSpan, Piece, load, plan


class Crash(Exception):
    """The process died here."""


@dataclass
class Fuse:
    """Counts the steps of the outside world and dies before a given one."""

    steps_left: int

    def burn(self) -> None:
        if self.steps_left == 0:
            raise Crash
        self.steps_left -= 1


@dataclass
class ModelTable:
    """A table as the port promises it: a commit happens whole or not at all."""

    fuse: Fuse
    rows: list[tuple[int, int]] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)

    def positions(self, partitions: Iterable[int]) -> dict[int, int]:
        return {p: self.ends[p] for p in partitions if p in self.ends}

    def commit(self, load: Load) -> None:
        self.fuse.burn()
        check_contiguous(self.ends, load)
        for file in load.files:
            partition = int(file.partition_values["partition"])
            self.rows += [(partition, offset) for offset in range(file.first_offset, file.last_offset + 1)]
        self.ends |= {r.partition: r.end_offset for r in load.ranges}
        self.fuse.burn()  # dead after the commit, before anybody heard of it


@dataclass
class World:
    """Logs, both tables, and the landing: offsets divisible by three do not parse."""

    fuse: Fuse = field(default_factory=lambda: Fuse(-1))
    log: dict[int, int] = field(default_factory=dict)
    table: ModelTable = field(init=False)
    quarantine: ModelTable = field(init=False)

    def __post_init__(self) -> None:
        self.table, self.quarantine = ModelTable(self.fuse), ModelTable(self.fuse)

    def spans(self) -> Mapping[int, LogSpan]:
        return {partition: LogSpan(0, end) for partition, end in self.log.items()}

    def land(self, pieces: Sequence[Piece]) -> list[LandedPiece]:
        landed = []
        for piece in pieces:
            self.fuse.burn()
            at = piece.offsets
            bad = [o for o in offsets_of(at) if o % 3 == 0 and o >= piece.quarantine_from]
            landed.append(LandedPiece(at, files(at, [o for o in offsets_of(at) if o % 3]), files(at, bad)))
        return landed

    def load(self) -> None:
        load(self.spans(), table=self.table, quarantine=self.quarantine, land=self.land)

    def check(self) -> None:
        for table, parses in ((self.table, True), (self.quarantine, False)):
            wanted = [(p, o) for p, end in table.ends.items() for o in range(end) if bool(o % 3) == parses]
            assert sorted(table.rows) == sorted(wanted)
        for partition, end in self.table.ends.items():
            assert end <= self.quarantine.ends[partition], "what did not parse is set aside before it is passed"


def offsets_of(r: OffsetRange) -> range:
    return range(r.first_offset, r.end_offset)


def files(r: OffsetRange, offsets: Iterable[int]) -> list[LandedFile]:
    return [LandedFile(f"{r.partition}-{o}", 1, 1, {"partition": str(r.partition)}, o, o, 0) for o in offsets]


produce = st.tuples(st.integers(0, 2), st.integers(1, 9))
crash_after = st.integers(0, 12)


@given(st.lists(st.one_of(produce, crash_after), max_size=30), st.integers(1, 5))
def test_no_schedule_of_crashes_makes_a_gap_or_a_duplicate(script: list[tuple[int, int] | int], piece: int) -> None:
    world = World()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "PIECE_OFFSETS", piece)
        for act in script:
            if isinstance(act, tuple):
                partition, count = act
                world.log[partition] = world.log.get(partition, 0) + count
            else:
                world.fuse.steps_left = act
                try:
                    world.load()
                except Crash:
                    pass
            world.check()
        world.fuse.steps_left = -1
        world.load()
    world.check()
    assert world.table.ends == world.quarantine.ends == world.log


def test_a_second_load_finds_nothing_to_do() -> None:
    world = World(log={0: 10, 1: 3})
    world.load()
    result = load(world.spans(), table=world.table, quarantine=world.quarantine, land=world.land)
    assert result.did_nothing
    world.check()


def test_a_load_that_lost_the_race_changes_nothing() -> None:
    world = World(log={0: 10})

    def land_while_another_load_commits(pieces: Sequence[Piece]) -> list[LandedPiece]:
        landed = world.land(pieces)
        world.load()
        return landed

    with pytest.raises(NotContiguousError):
        load(world.spans(), table=world.table, quarantine=world.quarantine, land=land_while_another_load_commits)
    world.check()


@pytest.mark.parametrize("lost", [0, 1, -1])
def test_a_task_whose_result_is_missing_stops_the_load(monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    monkeypatch.setattr(protocol, "PIECE_OFFSETS", 3)
    world = World(log={0: 9, 1: 9})

    def lossy(pieces: Sequence[Piece]) -> list[LandedPiece]:
        landed = world.land(pieces)
        del landed[lost]
        return landed

    with pytest.raises(LoadError):
        load(world.spans(), table=world.table, quarantine=world.quarantine, land=lossy)
    assert world.table.rows == world.quarantine.rows == []


def test_offsets_deleted_from_the_log_before_they_were_loaded_are_an_error_and_no_gap() -> None:
    with pytest.raises(LoadError, match="offsets 5 to 8 were deleted"):
        plan({0: LogSpan(8, 20)}, {0: 5})


def test_a_log_shorter_than_the_table_is_an_error() -> None:
    with pytest.raises(LoadError, match="loaded up to 30, and the log ends at 20"):
        plan({0: LogSpan(0, 20)}, {0: 30})


def test_a_first_load_begins_where_the_log_begins() -> None:
    assert plan({0: LogSpan(8, 20)}, {}) == [OffsetRange(0, 8, 20)]


@pytest.mark.parametrize("wrong", [OffsetRange(0, 4, 9), OffsetRange(0, 6, 9), OffsetRange(0, 5, 4)])
def test_a_commit_that_does_not_follow_the_last_one_is_refused(wrong: OffsetRange) -> None:
    with pytest.raises(NotContiguousError):
        check_contiguous({0: 5}, Load([wrong], []))


def test_two_ranges_of_one_partition_in_a_commit_are_refused() -> None:
    with pytest.raises(NotContiguousError):
        check_contiguous({}, Load([OffsetRange(0, 0, 4), OffsetRange(0, 4, 8)], []))
