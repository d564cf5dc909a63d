"""Measures how soon a record is readable in the table of a continuous load (`ottla pipeline load --every`).

    python -m benchmarks.continuous_load [--rate 50000] [--every 5s] [--seconds 45] [--format json]

A producer writes records of about 120 bytes at a steady rate to 4 partitions, each with the time of its writing.
Every tenth of a second the newest version of the table is asked for its newest record time. The delay of a commit is
the age, when it is first seen, of the oldest record that it brought: the newest of the commit before.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
from confluent_kafka import Producer
from deltalake import DeltaTable

from tests.support.ottla_process import OttlaProcess
from tests.support.topics import create_topic

TOPIC, PARTITIONS = "orders", 4
BURST_S = 0.05
WARM_UP_S = 60.0


def produce(bootstrap: str, rate: int, until: threading.Event, sent: list[int]) -> None:
    """Write records at a rate until the event is set."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "queue.buffering.max.messages": 1 << 20})
    began, count = time.monotonic(), 0
    while not until.is_set():
        due = int((time.monotonic() - began) * rate)
        for n in range(count, due):
            value = b'{"id": %d, "customer": "customer-%d", "total": %d.5, "state": "paid", "note": "%040d"}'
            producer.produce(TOPIC, value % (n, n % 9973, n % 500, n), partition=n % PARTITIONS)
            if n % 1000 == 0:
                producer.poll(0)
        count = due
        until.wait(BURST_S)
    producer.flush(30)
    sent.append(count)


def newest_ms(table: DeltaTable, known: dict[str, int]) -> int:
    """Return the newest record time of a version, of footers that are read once."""
    for path in table.file_uris():
        if path not in known:
            times = pq.read_table(path, columns=["record_time"])["record_time"]
            known[path] = pc.max(times).cast("int64").as_py() // 1000
    return max(known.values(), default=0)


def watch(path: Path, seconds: float) -> list[float]:
    """Return the delays of the commits that are seen in some seconds."""
    known: dict[str, int] = {}
    delays: list[float] = []
    table = DeltaTable(path)
    version, newest = table.version(), newest_ms(table, known)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.1)
        table.update_incremental()
        if table.version() == version:
            continue
        seen_ms = time.time() * 1000
        version, before = table.version(), newest
        newest = newest_ms(table, known)
        if newest > before:
            delays.append((seen_ms - before) / 1000)
    return delays


def main() -> None:
    """Run it and print the delays."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=int, default=50_000)
    parser.add_argument("--every", default="5s")
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--format", default="json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        at = Path(directory)
        server = OttlaProcess(at / "broker")
        server.start()
        create_topic(server.bootstrap, TOPIC, partitions=PARTITIONS)
        done, sent = threading.Event(), list[int]()
        command = [sys.executable, "-m", "ottla", "pipeline", "load", TOPIC, "--lake", str(at / "lake")]
        command += ["--as", given.format, "--every", given.every, "--brokers", server.bootstrap, "--quiet"]
        writer = threading.Thread(target=produce, args=(server.bootstrap, given.rate, done, sent))
        load = subprocess.Popen(command, cwd=at)
        try:
            writer.start()
            table = at / "lake" / TOPIC
            limit = time.monotonic() + WARM_UP_S
            while not (table.exists() and DeltaTable.is_deltatable(str(table)) and DeltaTable(table).file_uris()):
                if time.monotonic() > limit:
                    raise SystemExit("the load made no commit")
                time.sleep(0.2)
            delays = watch(table, given.seconds)[2:]  # the first catch up with what was written while Spark started
        finally:
            done.set()
            writer.join()
            load.terminate()
            load.wait(60)
            server.stop()
    shown = ", ".join(f"{delay:.1f}" for delay in delays)
    sys.stdout.write(f"{sum(sent):,} records; delays of {len(delays)} commits in seconds: {shown}\n")
    sys.stdout.write(f"the longest: {max(delays, default=float('nan')):.1f} s\n")


if __name__ == "__main__":
    main()
