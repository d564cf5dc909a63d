"""Generates corruption cases, each from a seed and a number: a directory, a file and a change."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePath

from ottla.core.ids import TopicPartition
from ottla.testing.sim_disk import SimDisk
from tests.corruption_tests.directories import NAMES, copy_of, scenario
from tests.corruption_tests.outcomes import Contents, Outcome, Verdict, classify, contents_of_undamaged, files_of

KINDS = ("flip", "cut", "zeros", "noise", "emptied")
_BAD = {Outcome.SILENT, Outcome.WRONG, Outcome.CRASHED}


@dataclass(frozen=True)
class Case:
    """One corruption. Only the content changes: a faulty disk does not change the modification time."""

    scenario: str
    path: PurePath
    kind: str
    at: int  # the bit, or the byte
    size: int
    seed: int

    def corrupt(self, disk: SimDisk) -> None:
        if self.kind == "flip":
            disk.flip_bit(self.path, self.at)
            return
        file, written_ns = disk.open(self.path), disk.modified_ns(self.path)
        match self.kind:
            case "cut":
                file.truncate(self.at)
            case "emptied":
                file.truncate(0)
            case "zeros":
                file.write_at(self.at, bytes(self.size))
            case _:
                file.write_at(self.at, random.Random(self.seed).randbytes(self.size))
        disk._inode(self.path).modified = written_ns


@dataclass
class Tally:
    """How it went."""

    counts: Counter[Outcome] = field(default_factory=Counter)
    bad: list[tuple[int, Case, Verdict]] = field(default_factory=list)


@cache
def expected(name: str) -> dict[TopicPartition, Contents]:
    return contents_of_undamaged(scenario(name))


def case_of(seed: int, number: int, kind: str | None = None) -> Case:
    """The same for the same seed and number, whatever ran before."""
    rng = random.Random(f"{seed}/{number}")
    name = rng.choice(NAMES)
    disk = scenario(name)
    path = rng.choice(files_of(disk))
    chosen = kind or rng.choices(KINDS, (16, 1, 1, 1, 1))[0]
    bytes_there = disk.size_of(path)
    if chosen == "flip":
        return Case(name, path, chosen, rng.randrange(bytes_there * 8), 1, 0)
    at = rng.randrange(bytes_there)
    size = min(rng.choice((1, 4, 16, 64, 512)), bytes_there - at)
    return Case(name, path, chosen, at, size, rng.getrandbits(32))


def run_case(case: Case) -> Verdict:
    """Corrupt a copy, open and read it, and compare."""
    disk = copy_of(scenario(case.scenario))
    before = disk.image()
    case.corrupt(disk)
    if disk.image() == before:
        return Verdict(Outcome.UNCHANGED, "nothing was changed")
    return classify(disk, expected(case.scenario))


def campaign(
    count: int,
    *,
    seed: int,
    kind: str | None = None,
    progress: Callable[[int, Tally], None] = lambda number, tally: None,
) -> Tally:
    """Run `count` cases; `progress` is called after each."""
    tally = Tally()
    for number in range(count):
        case = case_of(seed, number, kind)
        verdict = run_case(case)
        tally.counts[verdict.outcome] += 1
        if verdict.outcome in _BAD:
            tally.bad.append((number, case, verdict))
        progress(number + 1, tally)
    return tally
