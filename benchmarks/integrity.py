"""`python -m benchmarks.integrity`: measures the cost of verification, at the storage package's own interface.

Reading a log through, a megabyte at a time, as a consumer does: of records this process has written, of a log that was
there when it started (each range is checked before it is first given), the same once more, and with the check taken
out, all of it alternating. Then the longest single read, and how fast the scrubber could go. By the processor's time,
not the clock's: the files are in the system's memory, and a busy machine does not change what the work is.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.progress import Progress
from benchmarks.storage import BATCHES, CLOCK, MIB, TP, of_records
from ottla.core.files import SystemFiles
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.log.segment import Segment
from ottla.storage.scrubbing.scrubber import Scrubber

LOG_BYTES = 256 * MIB
ROUNDS = 5


def open_directory(path: Path) -> LogDirectory:
    """The same directory again and again."""
    config = LogConfig(segment_bytes=64 * MIB)
    return LogDirectory.open(SystemFiles(), path, CLOCK, config, node_id=1, cluster_id="bench")


def _nothing_to_check(segment: Segment, position: int) -> None:
    del segment, position


def _free(size_bytes: int) -> None:
    del size_bytes


@contextmanager
def unchecked(*, wanted: bool) -> Iterator[None]:
    """The check before the first send taken out."""
    kept = Segment.verified_ranges_at
    if wanted:
        Segment.verified_ranges_at = _nothing_to_check  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Segment.verified_ranges_at = kept  # type: ignore[method-assign]


def read_through(log: PartitionLog, each: int, records: int) -> tuple[float, float]:
    """MB/s, and the longest single read in milliseconds. The bytes themselves stay in the kernel, as with sendfile."""
    began, longest, offset = time.process_time(), 0.0, 0
    while True:
        before = time.process_time()
        region = log.read(offset, max_bytes=MIB, end_offset=log.end_offset)
        longest = max(longest, time.process_time() - before)
        if region is None:
            return log.size_bytes / MIB / (time.process_time() - began), longest * 1000
        offset += region.size // each * records


def main() -> None:
    """Write a table to standard error."""
    columns = (
        "written here: MB/s",
        "first read: MB/s",
        "again: MB/s",
        "no check: MB/s",
        "longest read: ms",
        "scrub: MB/s",
    )
    show = Progress().line
    show(f"| batches | {' | '.join(columns)} |")
    show(f"| --- |{' ---: |' * len(columns)}")
    for name, records in BATCHES.items():
        with tempfile.TemporaryDirectory() as path:
            directory = open_directory(Path(path))
            log = directory.create_log(TP)
            batch = of_records(records)
            while log.size_bytes < LOG_BYTES:
                log.append(memoryview(bytearray(batch)), leader_epoch=0, now_ms=CLOCK.wall_ms())
            log.flush()
            found: dict[str, list[float]] = {key: [] for key in ("hot", "first", "again", "none", "longest")}
            for _ in range(ROUNDS):
                found["hot"].append(read_through(log, len(batch), records)[0])
            directory.close()
            for _ in range(ROUNDS):
                for is_unchecked in (False, True):
                    directory = open_directory(Path(path))
                    log = directory.logs[TP]
                    with unchecked(wanted=is_unchecked):
                        rate, longest = read_through(log, len(batch), records)
                        found["none" if is_unchecked else "first"].append(rate)
                        if not is_unchecked:
                            found["longest"].append(longest)
                            found["again"].append(read_through(log, len(batch), records)[0])
                    directory.close()
            directory = open_directory(Path(path))
            scrubber = Scrubber(directory, SystemFiles())
            began = time.process_time()
            for work in scrubber.plan():
                scrubber.conclude(work, scrubber.verify(work, _free))
            scrub = directory.logs[TP].size_bytes / MIB / (time.process_time() - began)
            directory.close()
        cells = [f"{statistics.median(found[key]):,.0f}" for key in ("hot", "first", "again", "none")]
        show(f"| {name} | {' | '.join(cells)} | {statistics.median(found['longest']):.1f} | {scrub:,.0f} |")


if __name__ == "__main__":
    main()
