"""Measures what many idle connections cost beside a real Kafka's: their memory, their accepts, the others' latency.

An idle connection has asked for ApiVersions, as every client does first, and asks for nothing more. The latency is that
of 32 synchronous producers, in turns on a broker with the idle connections and on one without any.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks import clients
from benchmarks.brokers import Running, kafka, ottla
from benchmarks.progress import Progress
from benchmarks.report import CONNECTIONS_TITLE, machine, today, write_part
from tests.support.processes import usage
from tests.support.wire_client import encode

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
IN_FLIGHT = 200  # connections that are made at the same time: below every backlog
BUSY = 32
SEGMENTS = 2_000  # what is left of this machine's limit of file handles is for connections
TOPIC = "measured"
Figures = dict[str, list[float]]


def hello() -> bytes:
    """Return a whole ApiVersions request."""
    frame = encode("api_versions", 0, 1, {})
    return struct.pack(">i", len(frame)) + frame


def hold(port: int, count: int, control: Connection) -> None:
    """Open connections in a process of its own, report how long it took, and keep them until the parent says to end."""
    request, waiting, opened = hello(), list[socket.socket](), list[socket.socket]()
    began, spent = time.perf_counter(), time.process_time()
    while len(opened) < count:
        for _ in range(min(IN_FLIGHT, count - len(opened))):
            made = socket.create_connection(("127.0.0.1", port), timeout=60)
            made.sendall(request)
            waiting.append(made)
        for made in waiting:
            clients.receive(made)
        opened += waiting
        waiting.clear()
    control.send((time.perf_counter() - began, time.process_time() - spent))
    control.recv()
    for made in opened:
        made.close()


@contextmanager
def idle(port: int, count: int) -> Iterator[tuple[float, float]]:
    """Keep idle connections for the block; yields the seconds until all were answered, and the client's own."""
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    process = multiprocessing.get_context("fork").Process(target=hold, args=(port, count, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.send(None)
        process.join(60)


def measure(running: tuple[Running, Running], count: int, rounds: int, seconds: float, figures: Figures) -> None:
    """Measure a broker that gets the idle connections beside an equal one that gets none."""
    crowded = running[0]
    for each in running:
        clients.make_topic(each.port, TOPIC)
        clients.synchronous(each.port, TOPIC, producers=BUSY, seconds=4 * seconds)
    for _ in range(2):  # the second time the program's own tables and pools are as large as they get
        before, cpu_before = usage(crowded.pid).rss_bytes, usage(crowded.pid).cpu_s
        with idle(crowded.port, count) as (took_s, _):
            accepted = count / took_s
            cpu_us = (usage(crowded.pid).cpu_s - cpu_before) / count * 1e6
            time.sleep(20)  # until the connections count as quiet
            kib = (usage(crowded.pid).rss_bytes - before) / count / 1024
            note(figures, "accepted, connections/s", accepted)
            note(figures, "CPU, us/connection", cpu_us)
            if "memory, KiB/connection" not in figures:
                note(figures, "memory, KiB/connection", kib)
                latencies(running, rounds, seconds, figures)
        time.sleep(2)


def latencies(running: tuple[Running, Running], rounds: int, seconds: float, figures: Figures) -> None:
    """Measure the producers on both brokers in turns; the order turns round each time."""
    names = ("beside idle ones", "alone")
    for number in range(rounds):
        pairs = list(zip(names, running, strict=True))
        for name, each in pairs if number % 2 == 0 else reversed(pairs):
            before = usage(each.pid).cpu_s
            found = clients.synchronous(each.port, TOPIC, producers=BUSY, seconds=seconds)
            spent = usage(each.pid).cpu_s - before
            note(figures, f"p50, ms, {name}", found.p50_ms)
            note(figures, f"p99, ms, {name}", found.p99_ms)
            note(figures, f"CPU, us/request, {name}", spent / found.per_second / seconds * 1e6)


def note(figures: Figures, name: str, value: float) -> None:
    """Keep one value."""
    figures.setdefault(name, []).append(value)


def start_ottla(directory: Path) -> tuple[Running, float]:
    """Start Ottla with room for the connections."""
    room = ("-o", "max.connections=100000", "-o", f"ottla.open.segments.max={SEGMENTS}", "-o", "durability=page-cache")
    return ottla(directory, *room)


def run(count: int, rounds: int, seconds: float, with_kafka: bool, progress: Progress) -> dict[str, Figures]:
    """Measure the brokers, one program after the other: two of each at a time."""
    found: dict[str, Figures] = {}
    programs: list[tuple[str, Callable[[Path], tuple[Running, float]]]] = [("Ottla", start_ottla)]
    if with_kafka:
        programs.append(("Kafka", kafka))
    for name, start in programs:
        progress.status(f"{name}: {count:,} connections")
        with tempfile.TemporaryDirectory(prefix="ottla-bench-") as scratch, ExitStack() as stop:
            crowded, _ = start(Path(scratch) / "crowded")
            stop.callback(crowded.stop)
            alone, _ = start(Path(scratch) / "alone")
            stop.callback(alone.stop)
            measure((crowded, alone), count, rounds, seconds, found.setdefault(name, {}))
        for row in table({name: found[name]}):
            progress.status(row)
    return found


def table(found: dict[str, Figures]) -> list[str]:
    """Return the table of medians, and the ratio of the latencies."""
    names = list(found)
    rows = [f"| | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
    for figure in next(iter(found.values())):
        values = " | ".join(f"{statistics.median(found[name][figure]):,.3g}" for name in names)
        rows.append(f"| {figure} | {values} |")
    ratios = (
        statistics.median(
            crowded / alone
            for crowded, alone in zip(
                found[name]["p99, ms, beside idle ones"], found[name]["p99, ms, alone"], strict=True
            )
        )
        for name in names
    )
    rows.append(
        f"| p99 beside idle ones / alone, median of the rounds | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |"
    )
    return rows


def main() -> int:
    """Run what was asked for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.connections", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="idle connections")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn of the producers")
    parser.add_argument("--no-kafka", action="store_true")
    parser.add_argument("--no-page", action="store_true", help="write no page")
    asked = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    progress = Progress()
    found = run(asked.count, asked.rounds, asked.seconds, not asked.no_kafka, progress)
    rows = table(found)
    for row in rows:
        progress.line(row)
    if not asked.no_page:
        text = (
            f"Measured {today()} on {machine()}. {asked.count:,} connections that have asked for ApiVersions and are "
            f"idle; {BUSY} synchronous producers of 200 B, page cache, {asked.rounds} rounds of {asked.seconds:g} s in "
            "turns on a broker with them and on an equal one without."
        )
        write_part(PAGE, CONNECTIONS_TITLE, [text, "", *rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
