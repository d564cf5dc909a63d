"""Measures how fast a topic is read back beside a real Kafka and beside a process that does nothing but `sendfile`.

The bare process answers the same Fetch requests of the same client with the same bytes, in the same pieces, from the
same segment file as Ottla: what it reaches is what the kernel allows on this machine. Processor time is split into that
of the program (user) and that of the kernel (system).
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import struct
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from benchmarks import clients
from benchmarks.brokers import KAFKA, OTTLA, Broker, kafka, ottla
from benchmarks.progress import Progress
from benchmarks.report import READING_TITLE, machine, today, write_part
from tests.support.processes import TICKS_PER_S

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
BARE = "bare sendfile"
KEEP = "log.retention.ms"  # the clients' ready-made batches are old
BROKERS = (
    Broker(KAFKA.name, lambda directory: kafka(directory, **{KEEP: "-1"})),
    Broker(OTTLA.name, lambda directory: ottla(directory, "-o", f"{KEEP}=-1", "-o", "durability=page-cache")),
)
RECORDS = {200: 2_000_000, 2_100: 200_000}
TURN_BYTES = 2 << 30  # one turn reads the topic so often
MIB = 1 << 20
RECORDS_AT = 66  # where the records begin in an answer of Fetch v11 for one partition, besides the topic's name


class Piece(NamedTuple):
    """One answer: its bytes before the records, and where the records are in the segment."""

    head: bytes
    position: int
    size: int


class Figures(NamedTuple):
    """What one turn showed."""

    mib_per_s: float
    user_us: float  # of the server, for one MiB
    system_us: float


def pieces(port: int, name: str, records: int) -> list[Piece]:
    """Read a topic once, and return how the broker divides it into answers."""
    found: list[Piece] = []
    head_bytes, position, offset = RECORDS_AT + len(name), 0, 0
    with clients.connect(port) as connection:
        while offset < records:
            connection.sendall(clients.fetch_frame(name, offset))
            length = receive(connection, 4)
            answer = receive(connection, struct.unpack(">i", length)[0])
            found.append(Piece(length + answer[:head_bytes], position, len(answer) - head_bytes))
            position += whole_bytes(answer, head_bytes)
            offset, _ = clients.count_records(memoryview(answer), name, offset)
    return found


def whole_bytes(answer: bytes, at: int) -> int:
    """Return the size of the whole batches in an answer, whose records begin there: the last one may be cut off."""
    begin = at
    while at + 12 <= len(answer):
        size = 12 + int(struct.unpack_from(">i", answer, at + 8)[0])
        if at + size > len(answer):
            break
        at += size
    return at - begin


def receive(connection: socket.socket, size: int) -> bytes:
    """Receive exactly so many bytes."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        view = view[connection.recv_into(view) :]
    return bytes(data)


def send_pieces(listening: socket.socket, segment: Path, answers: list[Piece], request_bytes: int) -> None:
    """Answer each request with the next piece, until the process is ended."""
    with segment.open("rb") as file:
        while True:
            connection, _ = listening.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in answers:
                if len(connection.recv(request_bytes)) < request_bytes:
                    break
                connection.send(piece.head, socket.MSG_MORE)
                at, left = piece.position, piece.size
                while left:
                    sent = os.sendfile(connection.fileno(), file.fileno(), at, left)
                    at, left = at + sent, left - sent
            connection.close()


def times(pid: int) -> tuple[float, float]:
    """Return the seconds of user and system time of a process."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(after_name[11]) / TICKS_PER_S, int(after_name[12]) / TICKS_PER_S


def turn(port: int, pid: int, name: str, records: int, size_bytes: int) -> Figures:
    """Read the topic so often that a turn takes a while."""
    again = max(1, TURN_BYTES // size_bytes)
    user, system = times(pid)
    took = sum(clients.read_frames(port, name, records=records) for _ in range(again))
    user_after, system_after = times(pid)
    mib = again * size_bytes / MIB
    return Figures(mib / took, (user_after - user) / mib * 1e6, (system_after - system) / mib * 1e6)


def measure(size: int, rounds: int, progress: Progress) -> dict[str, list[Figures]]:
    """Write a topic into both brokers and read it from them and from the bare process in turns."""
    name, records = f"read-{size}", RECORDS[size]
    found: dict[str, list[Figures]] = {KAFKA.name: [], OTTLA.name: [], BARE: []}
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as scratch, ExitStack() as stop:
        servers: dict[str, tuple[int, int]] = {}
        for broker in BROKERS:
            running, _ = broker.start(Path(scratch) / broker.name)
            stop.callback(running.stop)
            clients.make_topic(running.port, name)
            clients.bulk_frames(running.port, name, records=records, size=size)
            servers[broker.name] = running.port, running.pid
        (segment,) = Path(scratch, OTTLA.name, "data", f"{name}-0").glob("*.log")
        answers = pieces(servers[OTTLA.name][0], name, records)
        listening = stop.enter_context(socket.create_server(("127.0.0.1", 0)))
        request_bytes = len(clients.fetch_frame(name, 0))
        target = partial(send_pieces, listening, segment, answers, request_bytes)
        bare = get_context("fork").Process(target=target, daemon=True)
        bare.start()
        stop.callback(bare.kill)
        assert bare.pid is not None
        servers[BARE] = listening.getsockname()[1], bare.pid
        size_bytes = sum(piece.size for piece in answers)
        for number in range(rounds + 1):  # the first one warms them
            for server in servers if number % 2 else reversed(servers):
                progress.status(f"{size:,} B, {server}, round {number}")
                figures = turn(*servers[server], name, records, size_bytes)
                if number:
                    found[server].append(figures)
    return found


def table(found: dict[int, dict[str, list[Figures]]]) -> list[str]:
    """Return the medians, and what they are of the bare process's."""
    rows = [f"| records of | | {KAFKA.name} | {OTTLA.name} | {BARE} |", "| ---: | --- | ---: | ---: | ---: |"]
    labels = {"mib_per_s": "MiB/s", "user_us": "user, us/MiB", "system_us": "system, us/MiB"}
    for size, figures in found.items():
        for field, label in labels.items():
            values = [statistics.median(getattr(each, field) for each in turns) for turns in figures.values()]
            rows.append(f"| {size:,} B | {label} | {' | '.join(f'{value:,.0f}' for value in values)} |")
        rates = list(zip(*([each.mib_per_s for each in turns] for turns in figures.values()), strict=True))
        to_kafka = statistics.median(ottla / kafka for kafka, ottla, _ in rates)
        to_bare = statistics.median(ottla / bare for _, ottla, bare in rates)
        rows.append(f"| {size:,} B | Ottla's rate, of the same round | {to_kafka:.2f} of | | {to_bare:.2f} of |")
    return rows


def main() -> int:
    """Run what was asked for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reading", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-page", action="store_true", help="write no page")
    asked = parser.parse_args()
    progress = Progress()
    began = time.perf_counter()
    rows = table({size: measure(size, asked.rounds, progress) for size in RECORDS})
    for row in rows:
        progress.line(row)
    progress.line(f"{time.perf_counter() - began:.0f} s")
    if not asked.no_page:
        text = (
            f"Measured {today()} on {machine()}. A topic in the page cache is read by bare Fetch requests of "
            f"{clients.READ_BYTES // MIB} MiB, one after the other; {asked.rounds} rounds in turns, median. The bare "
            "process sends the same answers from the same segment file, and nothing else."
        )
        write_part(PAGE, READING_TITLE, [text, "", *rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
