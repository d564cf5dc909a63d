"""`python -m benchmarks.storage [--quick]` (`make bench-storage`): measures the storage package and its starts.

No socket and no loop, but for the starts beside Kafka: one log on a real disk, one thread. What has two ways (compiled
and plain, Ottla and Kafka) alternates, round after round, and the table shows medians. Disk calls are counted at the
file port (`tests/support/counting_files.py`), where each call is one of the system's.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from benchmarks import report, starts
from benchmarks.progress import Progress
from ottla.core.clock import SystemClock
from ottla.core.files import SystemFiles
from ottla.core.ids import TopicPartition
from ottla.pipeline.jars import JarsNotFound
from ottla.records import _batch_scan, _record_reader, batch_scan, record_columns, record_reader
from ottla.records.batch import split, stamp, write_crc
from ottla.records.builder import NewRecord, build_batch
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.log.partition_log import PartitionLog
from tests.support.counting_files import counting
from tests.support.kafka_jars import kafka_jars

MIB = 1 << 20
TP = TopicPartition("bench", 0)
CLOCK = SystemClock()
RECORD_BYTES = 200
PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
Rows = list[str]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    log_bytes: int = 1 << 30
    append_bytes: int = 256 * MIB
    fsynced: int = 400
    look_ups: int = 5_000
    scanned_records: int = 400_000
    partitions: int = 2_000
    rounds: int = 3


QUICK = Sizes(32 * MIB, 8 * MIB, 50, 500, 20_000, 50, 1)


def of_records(count: int, *, producer: bool = False) -> bytearray:
    """One batch of records of 200 B whose bytes do not compress."""
    now_ms = CLOCK.wall_ms()
    records = [NewRecord(None, os.urandom(RECORD_BYTES), now_ms) for _ in range(count)]
    ids = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0} if producer else {}
    return build_batch(records, **ids)  # type: ignore[arg-type]


BATCHES = {"1 record, 270 B": 1, "80 records, 16 KiB": 80, "4,900 records, 1 MiB": 4_900}


@contextmanager
def opened(path: Path, config: LogConfig) -> Iterator[tuple[LogDirectory, PartitionLog, Counter[str]]]:
    """A log, and the table of its disk calls."""
    files, calls = counting(SystemFiles())
    directory = LogDirectory.open(files, path, CLOCK, config, node_id=1, cluster_id="bench")
    try:
        yield directory, directory.create_log(TP, uuid.UUID(int=7), config), calls
    finally:
        directory.close()


def append(log: PartitionLog, batch: bytearray) -> None:
    """One batch, as it arrives from a client."""
    stamp(batch, 0, base_offset=0, leader_epoch=-1)
    log.append(memoryview(batch), leader_epoch=0, now_ms=CLOCK.wall_ms())


def per(calls: Counter[str], count: int) -> str:
    """Calls for each of `count` things, by kind."""
    parts = [f"{calls[kind] / count:.2f} {kind}" for kind in sorted(calls) if calls[kind] / count >= 0.005]
    return ", ".join(parts) or "none"


# ---- Append and read


def appends(scratch: Path, sizes: Sizes) -> Rows:
    """MB/s and disk calls per batch, in the page cache and with an fsync after each batch."""
    heads = ("MB/s", "batches/s", "disk calls per batch")
    titles = [f"{mode}: {head}" for mode in ("page cache", "fsync each") for head in heads]
    rows = [f"| append, batches of | {' | '.join(titles)} |", "| --- | ---: | ---: | --- | ---: | ---: | --- |"]
    for name, records in BATCHES.items():
        batch, cells = of_records(records), []
        for flushes in (False, True):
            count = sizes.fsynced if flushes else sizes.append_bytes // len(batch)
            took = []
            for _ in range(sizes.rounds):
                with opened(scratch / uuid.uuid4().hex, LogConfig()) as (_, log, calls):
                    append(log, batch)
                    log.flush()
                    calls.clear()
                    began = time.perf_counter()
                    for _ in range(count):
                        append(log, batch)
                        if flushes:
                            log.flush()
                    took.append(time.perf_counter() - began)
                    cost = per(calls, count)
                shutil.rmtree(scratch, ignore_errors=True)
            rate = count / statistics.median(took)
            cells += [f"{rate * len(batch) / MIB:,.0f}", f"{rate:,.0f}", cost]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


def reads(scratch: Path, sizes: Sizes) -> Rows:
    """Reading a log through, as a consumer would: regions found, and their bytes copied into Python."""
    rows = [
        "| read through, 1 MiB at a time | regions found: MB/s | bytes read too: MB/s | disk calls per MiB |",
        "| --- | ---: | ---: | --- |",
    ]
    for name, records in BATCHES.items():
        with opened(scratch / "log", LogConfig(segment_bytes=256 * MIB)) as (_, log, calls):
            batch = of_records(records)
            while log.size_bytes < sizes.append_bytes:
                append(log, batch)
            log.flush()
            each, size = len(batch), log.size_bytes / MIB
            took: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(sizes.rounds):
                for copies, times in took.items():
                    calls.clear()
                    began, offset = time.perf_counter(), 0
                    while (region := log.read(offset, max_bytes=MIB, end_offset=log.end_offset)) is not None:
                        if copies:
                            region.read()
                        offset += region.size // each * records
                    times.append(time.perf_counter() - began)
                    assert offset == log.end_offset
            cost = per(calls, int(size))
        shutil.rmtree(scratch, ignore_errors=True)
        found, copied = (size / statistics.median(took[copies]) for copies in (False, True))
        rows.append(f"| {name} | {found:,.0f} | {copied:,.0f} | {cost} |")
    return rows


def look_ups(scratch: Path, sizes: Sizes) -> Rows:
    """From an offset, and from a time, to a place in the file, anywhere in the log."""
    rows = ["| look-up | by offset, µs | by time, µs |", "| --- | ---: | ---: |"]
    source = random.Random(1)
    with opened(scratch / "log", LogConfig(segment_bytes=128 * MIB)) as (_, log, _):
        batch, now_ms = of_records(80), 1_700_000_000_000
        while log.size_bytes < sizes.log_bytes:
            now_ms += 5
            batch[27:43] = now_ms.to_bytes(8, "big") * 2  # the time of its records, and the greatest one
            write_crc(batch, 0, len(batch))
            append(log, batch)
        log.flush()
        span = (1_700_000_000_000, now_ms)
        for name, few in (("anywhere in the log", False), ("in the segment that is written", True)):
            first = log.active.base_offset if few else 0
            offsets = [source.randrange(first, log.end_offset) for _ in range(sizes.look_ups)]
            if few:
                span = (now_ms - 5 * (log.end_offset - first) // 80, now_ms)
            times = [source.randint(*span) for _ in range(sizes.look_ups)]
            by_offset, by_time = [], []
            for offset in offsets:
                began = time.perf_counter()
                log.read(offset, max_bytes=1, end_offset=log.end_offset)
                by_offset.append(time.perf_counter() - began)
            for at in times:
                began = time.perf_counter()
                log.offset_for_timestamp(at, end_offset=log.end_offset)
                by_time.append(time.perf_counter() - began)
            cells = (f"{statistics.median(took) * 1e6:,.1f}" for took in (by_offset, by_time))
            rows.append(f"| {name}, {len(log.segments)} segments, {log.size_bytes // MIB} MiB | {' | '.join(cells)} |")
    shutil.rmtree(scratch, ignore_errors=True)
    return rows


# ---- Recovery and records


@contextmanager
def plain(module: ModuleType, twin: ModuleType, *, wanted: bool) -> Iterator[None]:
    """The plain twin of a compiled loop, for as long as this lasts."""
    before = module.LOOP
    if wanted:
        module.LOOP = twin  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.LOOP = before  # type: ignore[attr-defined]


WAYS = {"compiled": False, "plain": True}


def recoveries(scratch: Path, sizes: Sizes) -> Rows:
    """Measure recovery of a log that was never flushed: every byte verified, indexes and producers rebuilt."""
    rows = [
        "| recovery, batches of | compiled: s per GiB | MB/s | plain: s per GiB | MB/s |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    cases = [(name, records, False) for name, records in BATCHES.items()]
    cases.append((f"{next(iter(BATCHES))}, idempotent producer", 1, True))
    for name, records, producer in cases:
        size = sizes.log_bytes if records > 1 else sizes.log_bytes // 4
        path = scratch / "log"
        write_unflushed(path, of_records(records, producer=producer), size, records=records, producer=producer)
        took: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(sizes.rounds):
            for way, is_plain in WAYS.items():
                copy = scratch / "copy"
                copied(path, copy)
                with plain(batch_scan, _batch_scan, wanted=is_plain):
                    began = time.perf_counter()
                    directory = LogDirectory.open(
                        SystemFiles(), copy, CLOCK, LogConfig(), node_id=1, cluster_id="bench"
                    )
                    took[way].append(time.perf_counter() - began)
                assert directory.logs[TP].size_bytes >= size
                directory.close()
                shutil.rmtree(copy)
        shutil.rmtree(scratch)
        seconds = [statistics.median(took[way]) for way in WAYS]
        cells = [f"{each * (1 << 30) / size:.2f} | {size / MIB / each:,.0f}" for each in seconds]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return rows


def copied(path: Path, to: Path) -> None:
    """A copy whose bytes are on the disk, and in the page cache: what is measured is the check, not the disk."""
    shutil.copytree(path, to)
    for name in to.rglob("*.log"):
        with name.open("rb") as file:
            os.fsync(file.fileno())


def write_unflushed(path: Path, batch: bytearray, size: int, *, records: int, producer: bool) -> None:
    """A directory as a kill leaves it: the log is there, and nothing says that it was synced."""
    with opened(path, LogConfig()) as (_, log, _):
        append(log, batch)
        log.flush()
    (path / ".kafka_cleanshutdown").unlink()
    for name in ("recovery-point-offset-checkpoint", "ottla-copies"):
        (path / name).unlink(missing_ok=True)
    with (path / str(TP) / f"{0:020}.log").open("wb") as file:
        for at in range(size // len(batch) + 1):
            stamp(batch, 0, base_offset=at * records, leader_epoch=0)
            if producer:
                batch[53:57] = (at & 0x7FFFFFFF).to_bytes(4, "big")
                write_crc(batch, 0, len(batch))
            file.write(batch)


def decoded_as_objects(data: bytes) -> int:
    """What consumers and the command line get."""
    return len(record_reader.read_columns(data).offsets)


def decoded_as_places(data: bytes) -> int:
    """What becomes Arrow's arrays for Spark: an object of no record is made."""
    parts = record_columns.KEYS | record_columns.VALUES | record_columns.HEADERS
    batches = ((memoryview(data)[at : at + header.size_bytes], header) for at, header in split(data))
    return sum(
        each.count for each in record_columns.locate_records(batches, from_offset=0, end_offset=1 << 62, parts=parts)
    )


DECODERS = {"objects": (decoded_as_objects, record_reader), "places, for Arrow": (decoded_as_places, record_columns)}


def scans(sizes: Sizes) -> Rows:
    """Records decoded: keys, values and headers as columns."""
    rows = ["| scanner | compiled: records/s | plain: records/s |", "| --- | ---: | ---: |"]
    now_ms = CLOCK.wall_ms()
    for name, headers in (("key and value, 200 B", 0), ("key, value and 3 headers, 200 B", 3)):
        some = [(f"name-{at}", b"value") for at in range(headers)]
        batch = build_batch([NewRecord(b"key-%d" % at, os.urandom(RECORD_BYTES), now_ms, some) for at in range(80)])
        data = bytes(batch) * (sizes.scanned_records // 80)
        for kind, (decode, module) in DECODERS.items():
            rates: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(sizes.rounds):
                for way, is_plain in WAYS.items():
                    with plain(module, _record_reader, wanted=is_plain):
                        began = time.perf_counter()
                        count = decode(data)
                        rates[way].append(count / (time.perf_counter() - began))
            cells = " | ".join(f"{statistics.median(rates[way]):,.0f}" for way in WAYS)
            rows.append(f"| {name}, as {kind} | {cells} |")
    return rows


# ---- The report page


def run(sizes: Sizes, page: Path | None, progress: Progress) -> None:
    """Everything, and the page."""
    scratch = Path(tempfile.mkdtemp(prefix="ottla-bench-")) / "scratch"
    loops = "compiled" if record_reader.COMPILED and batch_scan.COMPILED else "**plain Python only**"
    head = (
        f"Measured {report.today()} on {report.machine()}; medians of {sizes.rounds} rounds. One log, one thread, "
        f"records of {RECORD_BYTES} B. Loops over records: {loops}."
    )
    lines = [head, ""]
    parts: list[tuple[str, Callable[[], Rows]]] = [
        ("appending", lambda: appends(scratch, sizes)),
        ("reading", lambda: reads(scratch, sizes)),
        ("looking up", lambda: look_ups(scratch, sizes)),
        ("recovering", lambda: recoveries(scratch, sizes)),
        ("decoding", lambda: scans(sizes)),
        ("starting, beside Kafka", lambda: beside_kafka(scratch, sizes, progress)),
    ]
    try:
        for name, part in parts:
            progress.status(name)
            rows = part()
            progress.line("\n".join([*rows, ""]))
            lines += [*rows, ""]
    finally:
        shutil.rmtree(scratch.parent, ignore_errors=True)
    if page is not None:
        report.write_part(page, report.STORAGE_TITLE, lines[:-1])
        progress.line(f"written to {page}")


def beside_kafka(scratch: Path, sizes: Sizes, progress: Progress) -> Rows:
    """The starts of whole brokers, where the jars can be had."""
    try:
        jars = kafka_jars()
    except JarsNotFound as error:
        return [f"No Apache Kafka to compare with: {error}"]
    say = progress.status
    return starts.table(jars, scratch, say, partitions=sizes.partitions, log_bytes=sizes.log_bytes, rounds=sizes.rounds)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.storage", description="The storage package by itself.")
    parser.add_argument("--quick", action="store_true", help="small and short, to see that it works; writes no page")
    parser.add_argument("--rounds", type=int, default=0, help="rounds (default 3, quick 1)")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the figures are written")
    asked = parser.parse_args()
    sizes = QUICK if asked.quick else Sizes()
    if asked.rounds:
        sizes = replace(sizes, rounds=asked.rounds)
    run(sizes, None if asked.quick else asked.page, Progress())


if __name__ == "__main__":
    main()
