"""`python -m benchmarks.record_validation`: measures the cost of record validation, and of a change of codec.

One log on a real disk without fsync, one thread. Every way is tried in turn, round after round, so that all see the
same machine, and medians are shown. The table of processor time per record, with and without validation, is written
into docs/benchmarks.md; the tables of microseconds for one append, with changes of codec, go to the standard output.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.progress import Progress
from benchmarks.report import VALIDATION_TITLE, machine, today, write_part
from ottla.core.clock import SystemClock
from ottla.core.files import SystemFiles
from ottla.core.ids import TopicPartition
from ottla.records.batch import BatchHeader
from ottla.records.builder import NewRecord, build_batch
from ottla.records.codecs import Codec
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.validation.record_validator import COMPILED, required_validation, validate_records

ROUNDS = 15
SIZES = {"16 KiB": 16 << 10, "32 KiB": 32 << 10, "1 MiB": 1 << 20}
PLAIN = LogConfig(max_message_bytes=8 << 20, compression_type="producer")
HEADER_ONLY = replace(PLAIN, record_validation="header")
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
RECORD_BYTES = (200, 2100)
BATCHES = {"1 record": 1, "16 KiB": 16 << 10, "500 KB": 500_000}
CODECS = (Codec.NONE, Codec.LZ4, Codec.ZSTD)
MEASURED_SECONDS = 0.02  # of appends of one kind in a round
WAYS = {
    "header only": HEADER_ONLY,
    "as it is": PLAIN,
    "keys looked for": replace(PLAIN, cleanup_policy=("compact",)),
    "to uncompressed": replace(PLAIN, compression_type="uncompressed"),
    "to snappy": replace(PLAIN, compression_type="snappy"),
    "to lz4": replace(PLAIN, compression_type="lz4"),
    "to zstd": replace(PLAIN, compression_type="zstd"),
    "to gzip": replace(PLAIN, compression_type="gzip"),
    "to gzip, level 9": replace(PLAIN, compression_type="gzip", gzip_level=9),
}


def batch_of(size_bytes: int, codec: int, now_ms: int) -> bytes:
    """Rows of JSON, about 100 bytes each, that make about so many bytes before compression."""
    rows = [
        json.dumps({"id": at, "user": f"u{at * 7919 % 1000}", "url": f"/page/{at * 31 % 997}", "ms": at * 17 % 4000})
        for at in range(size_bytes // 75)
    ]
    records = [NewRecord(b"key%d" % at, row.encode(), now_ms) for at, row in enumerate(rows)]
    while len(build_batch(records)) > size_bytes:
        records.pop()
    return bytes(build_batch(records, codec=codec))


def batch_for_cost(record_bytes: int, batch_bytes: int, codec: int, now_ms: int) -> tuple[bytes, int]:
    """Rows of text that compress about three to one, of a size each, and how many there are."""
    source = random.Random(1)
    words = [f"{source.getrandbits(32):08x}" for _ in range(500)]
    rows = []
    for number in range(max(1, batch_bytes // (record_bytes + 20))):
        row = " ".join(source.choices(words, k=record_bytes // 9 + 2))
        rows.append(NewRecord(b"key%d" % number, row[:record_bytes].encode(), now_ms))
    return bytes(build_batch(rows, codec=codec)), len(rows)


def cost(directory: LogDirectory, clock: SystemClock) -> list[str]:
    """Measure appends with and without validation of the records; returns the part of the page."""
    log = directory.create_log(TopicPartition("cost", 0), uuid.uuid4(), PLAIN)
    lines = [
        f"Measured {today()} on {machine()}, {'compiled' if COMPILED else 'plain Python'}. Processor time of an",
        f"append, divided by its records: one log without fsync, medians of {ROUNDS} alternating rounds. `header` is",
        "`ottla.record.validation=header`, `full` the default.",
        "",
        "| record | batch | codec | bytes of the batch | header, ns | full, ns | more, ns a record | more |",
        "| ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for record_bytes in RECORD_BYTES:
        for name, batch_bytes in BATCHES.items():
            for codec in CODECS:
                data, count = batch_for_cost(record_bytes, batch_bytes, codec, clock.wall_ms())
                took: dict[str, list[float]] = {}
                for _ in range(ROUNDS):
                    for config in (HEADER_ONLY, PLAIN):
                        log.reconfigure(config)
                        took.setdefault(config.record_validation, []).append(_seconds(log, data, clock) / count * 1e9)
                header, full = statistics.median(took["header"]), statistics.median(took["full"])
                kind = f"| {record_bytes:,} B | {name} | {codec.name.lower()} | {len(data):,} "
                more = f"| {full - header:,.0f} | {full / header - 1:.0%} |"
                lines.append(f"{kind}| {header:,.0f} | {full:,.0f} {more}")
    return lines


def _seconds(log: PartitionLog, data: bytes, clock: SystemClock) -> float:
    """Return the processor time of one append."""
    now_ms, appends, total = clock.wall_ms(), 0, 0.0
    buffers = [bytearray(data) for _ in range(max(1, min(200, (4 << 20) // len(data))))]
    while total < MEASURED_SECONDS:
        for buffer in buffers:
            buffer[:] = data
        began = time.process_time()
        for buffer in buffers:
            log.append(memoryview(buffer), leader_epoch=0, now_ms=now_ms)
        total += time.process_time() - began
        appends += len(buffers)
    return total / appends


def main() -> None:
    """Write the table of the page and print the others."""
    clock, say = SystemClock(), Progress().line
    with tempfile.TemporaryDirectory() as path:
        directory = LogDirectory.open(SystemFiles(), Path(path), clock, PLAIN, node_id=1, cluster_id="bench")
        lines = cost(directory, clock)
        directory.close()
    write_part(PAGE, VALIDATION_TITLE, lines)
    say("\n".join(lines))
    with tempfile.TemporaryDirectory() as path:
        directory = LogDirectory.open(SystemFiles(), Path(path), clock, PLAIN, node_id=1, cluster_id="bench")
        say(f"walk over records: {'compiled' if COMPILED else 'plain Python'}\n")
        for number, (size, size_bytes) in enumerate(SIZES.items()):
            batches = {codec: batch_of(size_bytes, codec, clock.wall_ms()) for codec in Codec}
            say(f"| {size} | " + " | ".join(f"from {codec.name.lower()}" for codec in Codec) + " |")
            say("| --- |" + " ---: |" * len(Codec))
            took: dict[tuple[str, int], list[float]] = {}
            log = directory.create_log(TopicPartition("bench", number), uuid.uuid4(), PLAIN)
            for _ in range(ROUNDS):
                for way, config in WAYS.items():
                    log.reconfigure(config)
                    for codec, data in batches.items():
                        records = memoryview(bytearray(data))
                        began = time.perf_counter()
                        log.append(records, leader_epoch=0, now_ms=clock.wall_ms())
                        took.setdefault((way, codec), []).append((time.perf_counter() - began) * 1e6)
            for way in WAYS:
                cells = (f"{statistics.median(took[way, codec]):,.0f}" for codec in Codec)
                say(f"| {way} | " + " | ".join(cells) + " |")
            say("")
        directory.close()
    slowest(clock.wall_ms(), say)


def slowest(now_ms: int, say: Callable[[str], None]) -> None:
    """The longest that the loop is held by one batch: as much as may be decompressed there, at the slowest levels."""
    for way, config in {
        "gzip, level 9": WAYS["to gzip, level 9"],
        "lz4, level 9": replace(PLAIN, compression_type="lz4", lz4_level=9),
        "zstd, level 9": replace(PLAIN, compression_type="zstd", zstd_level=9),
    }.items():
        source = batch_of(32 << 10, Codec.SNAPPY, now_ms)
        took = []
        for _ in range(ROUNDS):
            records = memoryview(bytearray(source))
            task = required_validation(BatchHeader(records, 0), config, now_ms=now_ms)
            assert task is not None
            began = time.perf_counter()
            validate_records(records, task, limit=task.loop_bytes_max(1))
            took.append((time.perf_counter() - began) * 1e3)
        say(f"32 KiB to {way}: {statistics.median(took):.2f} ms")


if __name__ == "__main__":
    main()
