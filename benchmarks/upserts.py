"""Upserts into a lake table: our load beside the merges of deltalake and pyiceberg, on the same rows and changes.

    python -m benchmarks.upserts [--rows 10000000] [--changes 1000000] [--peer-rows N] [--only ours|peers]

Ours is the whole command, `ottla pipeline load`, from a topic on a broker into a table that has the rows: Python,
Spark, reading, decoding, merging and the durable commit. The peers get the changes as an Arrow table in memory,
decoded and deduplicated, and a table of theirs with the same columns; their time is that of the one call. Each case is
a process of its own, and its memory is the greatest sum of its processes' resident pages: one that several share counts
in each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.progress import Progress
from benchmarks.report import machine, number, today, write_part
from ottla.client.offsets import OffsetBounds
from ottla.pipeline.changes.apply import ChangeApplier, merge_in_turn
from ottla.pipeline.changes.rule import KEY, ChangeRule
from ottla.pipeline.event_time import Granularity, TimeRule
from ottla.pipeline.formats.json_objects import JsonObjects
from ottla.pipeline.lake.file_writer import FILE_BYTES
from ottla.pipeline.lake.lake import Lake
from ottla.pipeline.lake.local_store import LocalStore
from ottla.pipeline.lake.rewrite import target_of
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.loading.commit_protocol import Tables, TopicLoader, create_tables
from ottla.pipeline.loading.row_mapping import RowMapping
from ottla.pipeline.loading.write_task import StagedFiles, WriteSpec, write_ranges
from ottla.pipeline.offset_range import OffsetRange
from ottla.pipeline.topic_reader import RECORDS, TIME
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import descendants
from tests.support.topics import create_topic

TITLE = "## Upserts"
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
TOPIC, PARTITIONS, CORES = "customers", 2, 2
ROWS, CHANGES = 10_000_000, 1_000_000
REQUIRED_S, REQUIRED_GIB = 60.0, 4.0
ROW = b'{"id": %d, "name": "Customer %d", "city": "%s", "total": %.2f, "visits": %d, "at": "2026-01-%02dT10:00:00Z"}'
CITIES = (b"Amsterdam", b"Berlin", b"Chania", b"Dresden", b"Eindhoven", b"Firenze", b"Graz", b"Haarlem")
BATCH, STEP, FIRST_STEM = 20_000, 1_000_000, "0" * 12
PEERS = {"deltalake": "deltalake, merge", "pyiceberg": "PyIceberg, upsert"}


@dataclass(frozen=True, slots=True)
class Turn:
    """One case, once."""

    case: str
    rows: int
    changes: int
    seconds: float
    cpu_s: float
    memory_gib: float

    def line(self) -> str:
        """A row of the page's table."""
        cells = (
            self.case,
            f"{self.rows:,}",
            f"{self.changes:,}",
            f"{self.seconds:.1f}",
            f"{self.cpu_s:.0f}",
            number(self.changes / self.seconds),
            f"{self.memory_gib:.1f}",
        )
        return f"| {' | '.join(cells)} |"


def values(numbers: Iterable[int], *, seed: int) -> list[tuple[bytes, bytes]]:
    """Keys and JSON rows of customers."""
    chance = random.Random(seed)
    draw = chance.random
    return [
        (b"customer-%d" % n, ROW % (n, n, CITIES[n % len(CITIES)], draw() * 1000, int(draw() * 100), n % 28 + 1))
        for n in numbers
    ]


@dataclass(frozen=True, slots=True)
class Customers:
    """A topic of customers that is made up as it is read: what the rows of the table were loaded from."""

    count: int
    progress: Progress

    def bounds(self) -> dict[int, OffsetBounds]:
        """Return the extent of each partition."""
        return {partition: OffsetBounds(0, self.count // PARTITIONS) for partition in range(PARTITIONS)}

    def read(self, offsets: OffsetRange) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range: the customer of a partition's offset is that of all whose turn it is."""
        for first in range(offsets.first_offset, offsets.end_offset, BATCH):
            self.progress.status(f"making rows: partition {offsets.partition}, {first:,} of {offsets.end_offset:,}")
            some = range(first, min(first + BATCH, offsets.end_offset))
            pairs = values([PARTITIONS * n + offsets.partition for n in some], seed=first)
            columns = [
                pa.array([offsets.partition] * len(some), pa.int32()),
                pa.array(some, pa.int64()),
                pa.array([1_700_000_000_000_000] * len(some), TIME),
                pa.array([key for key, _ in pairs], pa.binary()),
                pa.array([value for _, value in pairs], pa.binary()),
            ]
            yield pa.record_batch(columns, schema=RECORDS)


def make_table(root: Path, table_format: str, rows: int, progress: Progress) -> None:
    """Load the rows into the table, in this process, by the code of a load: as if another topic had brought them."""
    lake = Lake(LocalStore(root), TableFormat(table_format))
    rule = ChangeRule()
    mapping = RowMapping(JsonObjects(), TimeRule(granularity=Granularity.NONE), keep=(KEY,), changes=rule)
    tables = Tables(lake.table(TOPIC), lake.quarantine(TOPIC))
    create_tables(tables, mapping)
    into, aside = (target_of(table, table.spec()) for table in (tables.table, tables.quarantine))
    topic = Customers(rows, progress)
    job = WriteSpec("made up", topic, mapping, into, aside, pa.schema([]), stem=FIRST_STEM)

    def write(job: WriteSpec, parts: Sequence[Sequence[OffsetRange]]) -> list[StagedFiles]:
        return [write_ranges(job, part) for part in parts]

    applier = ChangeApplier(rule, merge_in_turn, FIRST_STEM, FILE_BYTES)
    TopicLoader(tables, job, write, lambda ranges: [list(ranges)], applier=applier).run(topic.bounds())


def changed(rows: int, changes: int) -> list[tuple[bytes, bytes]]:
    """Changes spread over all rows: nine of ten are of rows that there are, the others new ones."""
    chance = random.Random(3)
    old = sorted(chance.sample(range(rows), changes * 9 // 10))
    return values([*old, *range(rows, rows + changes - len(old))], seed=5)


def measure(command: list[str]) -> tuple[float, float, float, str]:
    """Run a command; return its seconds, those of processor, the most memory that it had in GiB, and its output."""
    with tempfile.TemporaryFile("w+") as out:
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        process = subprocess.Popen(command, stdout=out)
        most = 0
        while process.poll() is None:
            most = max(most, sum(map(_resident, [process.pid, *descendants(process.pid)])))
            time.sleep(0.2)
        seconds = time.perf_counter() - began
        assert process.returncode == 0, command
        out.seek(0)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return seconds, cpu_s, most / (1 << 30), out.read()


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def ours(root: Path, table_format: str, rows: int, changes: int, progress: Progress) -> Turn:
    """The load of the changes into the table that has the rows. A table that is there already is taken for it."""
    from confluent_kafka import Producer

    lake = root / table_format
    if not lake.exists():
        make_table(lake, table_format, rows, progress)
    with tempfile.TemporaryDirectory() as directory:
        broker = OttlaProcess(Path(directory) / "broker")
        broker.start()
        try:
            create_topic(broker.bootstrap, TOPIC, partitions=PARTITIONS)
            limits = {"linger.ms": 50, "queue.buffering.max.messages": changes + 1, "log_level": 0}
            producer = Producer({"bootstrap.servers": broker.bootstrap, **limits})
            for key, value in changed(rows, changes):
                producer.produce(TOPIC, value, key, partition=int(key.rpartition(b"-")[2]) % PARTITIONS)
            producer.flush()
            program = str(Path(sys.executable).with_name("ottla"))
            load = [
                program,
                "pipeline",
                "load",
                TOPIC,
                "--lake",
                str(lake),
                "-b",
                broker.bootstrap,
                "-o",
                "mode=upsert",
            ]
            load += ["--master", f"local[{CORES}]", "--table-format", table_format, "--format", "json"]
            progress.status("loading the changes")
            seconds, cpu_s, memory, out = measure(load)
        finally:
            broker.stop()
    (result,) = json.loads(out)["load"]["result"]
    assert result["records"] == changes, result
    return Turn(f"`ottla pipeline load`, {table_format}", rows, changes, seconds, cpu_s, memory)


def peer_table(pairs: list[tuple[bytes, bytes]]) -> pa.Table:
    """The decoded rows, with the key as a text."""
    import pyarrow.json as pj

    rows = pj.read_json(pa.BufferReader(b"\n".join(value for _, value in pairs)))
    return rows.append_column("key", pa.array([key.decode() for key, _ in pairs]))


def peer(case: str, root: Path, rows: int, changes: int) -> Turn:
    """The merge of another library, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.upserts", "--peer", case, "--root", str(root)]
    _, _, memory, out = measure([*command, "--rows", str(rows), "--changes", str(changes)])
    seconds, cpu_s = map(float, out.split())
    return Turn(PEERS[case], rows, changes, seconds, cpu_s, memory)


def catalog_in(root: Path) -> Any:
    """PyIceberg's catalogue of a directory."""
    from pyiceberg.catalog.sql import SqlCatalog

    return SqlCatalog("c", uri=f"sqlite:///{root}/c.db", warehouse=f"file://{root}")


def make_peer_table(case: str, root: Path, rows: int) -> None:
    """Make the table of another library, a million rows at a time."""
    root.mkdir(parents=True)
    table = None
    for at in range(0, rows, STEP):
        part = peer_table(values(range(at, min(at + STEP, rows)), seed=at))
        if case == "deltalake":
            from deltalake import write_deltalake

            write_deltalake(str(root), part, mode="append")
            continue
        if table is None:
            catalog = catalog_in(root)
            catalog.create_namespace("n")
            table = catalog.create_table("n.t", part.schema)
        table.append(part)


def run_peer(case: str, root: Path, rows: int, changes: int) -> tuple[float, float]:
    """Merge the changes into the table, made if it is not there; return the seconds of the merge, and of processor."""
    if not root.exists():
        make_peer_table(case, root, rows)
    source = peer_table(changed(rows, changes))
    if case == "deltalake":
        from deltalake import DeltaTable

        began, before = time.perf_counter(), time.process_time()
        merger = DeltaTable(str(root)).merge(source, "t.key = s.key", source_alias="s", target_alias="t")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()
        return time.perf_counter() - began, time.process_time() - before
    table = catalog_in(root).load_table("n.t")
    began, before = time.perf_counter(), time.process_time()
    table.upsert(source, join_cols=["key"])
    return time.perf_counter() - began, time.process_time() - before


def page(turns: list[Turn]) -> list[str]:
    """The page's part."""
    mine = [turn for turn in turns if turn.case.startswith("`ottla")]
    return [
        (
            f"Measured {today()} on {machine()}; `local[{CORES}]`, 16 buckets. Nine of ten changes are of rows that "
            "are there, spread over all, so that every file is rewritten. Ours is the whole command, from the topic to "
            "the durable commit; the others merge an Arrow table that is ready in memory."
        ),
        "",
        "| case | rows | changes | s | s of processor | changes/s | GiB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(turn.line() for turn in turns),
        "",
        *(
            f"{turn.case}: {'meets' if turn.seconds < REQUIRED_S and turn.memory_gib < REQUIRED_GIB else 'misses'} the "
            f"aim of {REQUIRED_S:.0f} s and {REQUIRED_GIB:.0f} GiB for {CHANGES:,} changes of {ROWS:,} rows."
            for turn in mine
            if turn.rows >= ROWS
        ),
    ]


def main(arguments: list[str]) -> None:
    """Run the cases, and write the page's part where the size is the whole one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--changes", type=int, default=CHANGES)
    parser.add_argument("--peer-rows", type=int, help="of the table of PyIceberg; its changes are a tenth of it")
    parser.add_argument("--only", choices=["ours", "peers"])
    parser.add_argument("--tables", type=Path, help="where the tables are, or are made and kept")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    parser.add_argument("--peer", choices=sorted(PEERS), help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    options: Any = parser.parse_args(arguments)
    if options.peer:
        seconds, cpu_s = run_peer(options.peer, options.root, options.rows, options.changes)
        sys.stdout.write(f"{seconds} {cpu_s}\n")
        return
    progress = Progress()
    turns = []
    for case in [] if options.only == "peers" else ["delta", "iceberg"]:
        with tempfile.TemporaryDirectory() as root:
            turns.append(ours(options.tables or Path(root), case, options.rows, options.changes, progress))
            progress.line(turns[-1].line())
    for case in [] if options.only == "ours" else sorted(PEERS):
        rows = options.rows if case == "deltalake" else options.peer_rows or options.rows // 10
        changes = options.changes if rows == options.rows else rows // 10
        with tempfile.TemporaryDirectory() as root:
            turns.append(peer(case, (options.tables or Path(root)) / case, rows, changes))
            progress.line(turns[-1].line())
    if options.write:
        write_part(PAGE, TITLE, page(turns))


if __name__ == "__main__":
    main(sys.argv[1:])
