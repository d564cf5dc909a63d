"""Writes gigabytes without a consumer, then reads all of it: counts equal, the broker's memory flat."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from pathlib import Path

from benchmarks import clients
from benchmarks.brokers import ottla
from benchmarks.progress import Progress
from benchmarks.report import BACKLOG_TITLE, machine, today, write_part
from tests.support.processes import usage

SIZE = 2_100
GIB, MIB = 1 << 30, 1 << 20
LIMIT_BYTES = 250 * MIB
EVERY_S = 0.25


class Sampler(threading.Thread):
    """Looks at a process's memory four times a second."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.over = pid, threading.Event()
        self.seen: list[int] = []

    def run(self) -> None:
        """Sample until `over` is set."""
        while not self.over.wait(EVERY_S):
            self.seen.append(usage(self.pid).rss_bytes)


def run(gib: float, page: Path, progress: Progress) -> bool:
    """Write, read, compare; whether counts were equal and memory stayed below the limit."""
    records = int(gib * GIB / SIZE)
    directory = Path(tempfile.mkdtemp(prefix="ottla-backlog-"))
    free = shutil.disk_usage(directory).free
    if free < gib * GIB * 1.1:
        shutil.rmtree(directory)
        raise SystemExit(
            f"{gib:g} GiB do not fit on the disk of {directory.parent} ({free / GIB:.1f} GiB free): use --gib"
        )
    broker, _ = ottla(directory / "broker")
    sampler = Sampler(broker.pid)
    sampler.start()
    try:
        clients.make_topic(broker.port, "backlog")
        wrote_s = clients.bulk_frames(
            broker.port, "backlog", records=records, size=SIZE, progress=progress.counter("written", records)
        )
        held = clients.end_offset(broker.port, "backlog")
        while_writing = max(sampler.seen)
        began = time.perf_counter()
        read = Counted(progress.counter("read", held))
        clients.read_frames(broker.port, "backlog", records=held, progress=read)
        read_s = time.perf_counter() - began
    finally:
        sampler.over.set()
        sampler.join()
        broker.stop()
        shutil.rmtree(directory, ignore_errors=True)
    good = read.count == held >= records and max(sampler.seen) < LIMIT_BYTES
    memory = ", ".join(f"{each / MIB:.0f} MiB" for each in (sampler.seen[0], while_writing, max(sampler.seen)))
    lines = [
        f"Measured {today()} on {machine()}, default durability (fsync), one partition, records of {SIZE:,} B.",
        "",
        "| figure | value |",
        "| --- | --- |",
        f"| written, no consumer | {held * SIZE / GIB:.1f} GiB, {held:,} records, {held / wrote_s:,.0f} records/s |",
        f"| read | {read.count:,} records, {read.count / read_s:,.0f} records/s |",
        f"| counts | {'equal' if read.count == held else '**differ**'} |",
        f"| broker's memory: at first, most while writing, most of all | {memory} (limit {LIMIT_BYTES // MIB}) |",
    ]
    write_part(page, BACKLOG_TITLE, lines)
    progress.line("\n".join(lines))
    return good


class Counted:
    """Passes progress on and remembers how far it came."""

    def __init__(self, further: clients.OnCount) -> None:
        self.further, self.count = further, 0

    def __call__(self, count: int) -> None:
        """Note and pass on."""
        self.count = count
        self.further(count)
