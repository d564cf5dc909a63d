"""A process that commits to a table again and again: the other half of the race in test_lake_tables.py.

Arguments: the table's directory, its format, the partition to commit for, and how often.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ottla.pipeline.lake.lake_table import Change, LakeTable
from ottla.pipeline.offset_range import OffsetRange
from tests.support.lakes import delta_in, iceberg_in


def main(path: Path, kind: str, partition: int, times: int) -> None:
    table: LakeTable = delta_in(path) if kind == "DeltaLakeTable" else iceberg_in(path)
    for n in range(times):
        table.commit(Change("load", "t", ranges=[OffsetRange(partition, n, n + 1)]))
        table.set_properties({f"p{partition}": str(n)})


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
