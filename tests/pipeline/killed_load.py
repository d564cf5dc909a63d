"""A load in a process of its own that kills itself with -9 at a given step: the other half of test_killed_load.py.

Arguments: the lake's directory, the number of records per partition, and the step ("none" for a whole load).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.pipeline.memory_log import MemoryTopic

from ottla.pipeline.lake import DeltaLake, Load, Table, TableSpec
from ottla.pipeline.landing import PARTITION_BY, QUARANTINE, REQUESTS, LandingJob, land_piece
from ottla.pipeline.load import load

LINE = b'203.0.113.9 - - [17/May/2015:%02d:05:03 +0000] "GET /%d HTTP/1.1" 200 5'
PARTITIONS = 3


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Deadly:
    """A table whose commit may be the last thing the process does."""

    def __init__(self, table: DeltaLake, *, before: bool, after: bool) -> None:
        self.table, self.before, self.after = table, before, after

    def positions(self, partitions: Iterable[int]) -> dict[int, int]:
        return self.table.positions(partitions)

    def commit(self, load: Load) -> None:
        if self.before:
            die()
        self.table.commit(load)
        if self.after:
            die()


def main(root: Path, records: int, step: str) -> None:
    values: list[bytes | None] = [b"bad" if n % 5 == 0 else LINE % (n % 24, n) for n in range(records)]
    topic = MemoryTopic({partition: list(values) for partition in range(PARTITIONS)})
    table = DeltaLake(root / "requests", TableSpec("web", "id", REQUESTS, PARTITION_BY))
    quarantine = DeltaLake(root / "quarantine", TableSpec("web", "id", QUARANTINE))
    table.create()
    quarantine.create()
    job = LandingJob("web", topic, table.path, quarantine.path)
    deadly_quarantine: Table = Deadly(quarantine, before=step == "files written", after=step == "quarantine committed")
    deadly_table: Table = Deadly(table, before=step == "before the table's commit", after=step == "table committed")
    load(
        topic.spans(),
        table=deadly_table,
        quarantine=deadly_quarantine,
        land=lambda pieces: [land_piece(job, piece) for piece in pieces],
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
