"""`python -m benchmarks.cluster_recovery`: what a cluster does after a loss, beside Kafka; and workers on one machine.

- `catch-up`: four topics of two replicas each are filled; then each gets a third one on the broker that has none. From
  that request until the third replicas are in sync: megabytes a second.
- `fail-over`: a broker is killed that leads a third of 1,000 partitions with three replicas. From the kill until the
  metadata of another broker have a new leader for all: with the session timeout, and without it (from the first new
  leader to the last).
- `workers`: `ottla bench -p 8` against `ottla server --workers 1`, 2 and 4.

One cluster runs at a time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import clients
from benchmarks.cluster import BROKERS, FACTOR, MIB, PAIRS, ROOT, Case, Contestant, RunningCluster, Target, produce
from benchmarks.progress import Progress
from benchmarks.report import RECOVERY_TITLE, machine, number, today, write_part
from tests.support.kafka_jars import VERSION
from tests.support.processes import usage
from tests.support.wire_client import Wire, answers
from tests.support.workers_process import WorkersProcess

PARTITIONS = 1_000
WORKERS = (1, 2, 4)
WORKERS_PARTITIONS = 8
FILL = Case("fill", 4, 5, 47, 2_100)
FILL_S = 1.0
DONE_S = 120.0
POLL_S = 0.02
LINE = "| --- | ---: | ---: | ---: |"

Row = tuple[str, list[float]]
"""A figure, and its value for each contestant."""


def start(contestant: Contestant, directory: Path) -> RunningCluster:
    """Start a cluster whose brokers all answer."""
    running = contestant.start(directory, is_fsync=contestant.is_fsync)
    for port in running.ports:
        while not answers("127.0.0.1", port):
            time.sleep(0.01)
    until(lambda: len(metadata(running.ports[0], ())["brokers"]) == BROKERS, "not all brokers are known")
    return running


def metadata(port: int, topics: Sequence[str]) -> dict[str, Any]:
    """Ask one broker."""
    with Wire(port) as wire:
        found: dict[str, Any] = wire.call("metadata", 9, topics=[{"name": name} for name in topics])
        return found


def until(holds: Callable[[], bool], problem: str) -> None:
    """Poll until a condition holds."""
    deadline = time.perf_counter() + DONE_S
    while not holds():
        if time.perf_counter() > deadline:
            raise clients.WrongCount(f"{problem} after {DONE_S:g} s")
        time.sleep(POLL_S)


def create(port: int, new: dict[str, Any]) -> None:
    """Create a topic."""
    with Wire(port) as wire:
        (made,) = wire.call("create_topics", 5, topics=[new], timeout=60_000)["topics"]
        if made["error_code"]:
            raise clients.WrongCount(f"creating {made['name']} gave error {made['error_code']}")


def replicas_in_sync(ports: Sequence[int], topics: Sequence[str], count: int) -> bool:
    """Return whether all brokers know a leader of every partition and so many replicas in sync."""
    for port in ports:
        found = metadata(port, topics)["topics"]
        partitions = [part for topic in found for part in topic["partitions"]]
        if any(topic["error_code"] or not topic["partitions"] for topic in found) or any(
            part["leader_id"] < 0 or len(part["isr_nodes"]) != count for part in partitions
        ):
            return False
    return True


# ---- The parts


def catch_up(contestant: Contestant, directory: Path, fill_bytes: float) -> list[float]:
    """Fill four topics, and add a replica to each. Returns megabytes a second, and those copied."""
    running = start(contestant, directory)
    try:
        port = running.ports[0]
        found = metadata(port, ())
        nodes = sorted(broker["node_id"] for broker in found["brokers"])
        port_of = {broker["node_id"]: broker["port"] for broker in found["brokers"]}
        first, second, empty = nodes
        topics = {f"fill-{index}": leaders for index, leaders in enumerate(((first, second), (second, first)) * 2)}
        for name, replicas in topics.items():
            assignment = {"partition_index": 0, "broker_ids": list(replicas)}
            create(port, {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": [assignment]})
        until(lambda: replicas_in_sync(running.ports, list(topics), 2), "the topics have not all their replicas")
        targets = [Target(name, port_of[replicas[0]]) for name, replicas in topics.items()]
        size = 0.0
        while size < fill_bytes:
            sent = produce(
                targets,
                senders=FILL.senders,
                in_flight=FILL.in_flight,
                record_bytes=FILL.record_bytes,
                records=FILL.records,
                seconds=FILL_S,
            )
            size += sent.per_second * FILL_S * FILL.records * FILL.record_bytes
        began = time.perf_counter()
        wanted = [
            {"name": name, "partitions": [{"partition_index": 0, "replicas": [*replicas, empty]}]}
            for name, replicas in topics.items()
        ]
        with Wire(port) as wire:
            answer = wire.call("alter_partition_reassignments", 0, timeout=60_000, topics=wanted)
            if answer["error_code"]:
                raise clients.WrongCount(f"the reassignment gave error {answer['error_code']}")
        until(lambda: replicas_in_sync([port], list(topics), FACTOR), "the new replicas are not in sync")
        took = time.perf_counter() - began
        return [size / MIB / took, size / MIB]
    finally:
        running.stop()


def fail_over(contestant: Contestant, directory: Path, partitions: int) -> list[float]:
    """Kill a broker. Returns the seconds until all partitions have another leader, and from the first to the last."""
    running = start(contestant, directory)
    try:
        port = running.ports[0]
        create(port, {"name": "many", "num_partitions": partitions, "replication_factor": FACTOR})
        until(lambda: replicas_in_sync(running.ports, ["many"], FACTOR), "the partitions have not all their replicas")
        found = metadata(port, ["many"])
        port_of = {broker["node_id"]: broker["port"] for broker in found["brokers"]}
        lost = next(node for node in port_of if node != found["controller_id"] and port_of[node] != port)
        mine = sum(part["leader_id"] == lost for part in found["topics"][0]["partitions"])
        began = time.perf_counter()
        running.kill(running.ports.index(port_of[lost]))
        first = 0.0

        def is_over() -> bool:
            nonlocal first
            leaders = [part["leader_id"] for part in metadata(port, ["many"])["topics"][0]["partitions"]]
            left = sum(leader in {lost, -1} for leader in leaders)
            if left < mine and not first:
                first = time.perf_counter()
            return left == 0

        until(is_over, "partitions are without a leader")
        done = time.perf_counter()
        return [done - began, max(done - first, POLL_S)]
    finally:
        running.stop()


def workers(directory: Path, records: int) -> list[tuple[int, list[dict[str, Any]], float]]:
    """Run `ottla bench` against 1, 2 and 4 workers; also returns the processor time of all of them."""
    program = str(Path(sys.executable).with_name("ottla"))
    found = []
    for count in WORKERS:
        service = WorkersProcess(directory / f"workers-{count}", workers=count).start()
        try:
            assert service.process is not None
            found_pids = [service.worker_pid(worker + 1) for worker in range(count)]
            pids = [pid or service.process.pid for pid in found_pids]  # one worker is the service itself
            before = sum(usage(pid).cpu_s for pid in pids)
            shown = subprocess.run(
                [
                    program,
                    "bench",
                    "-p",
                    str(WORKERS_PARTITIONS),
                    "-n",
                    str(records),
                    "--brokers",
                    service.bootstrap,
                    "--format",
                    "json",
                ],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            spent = sum(usage(pid).cpu_s for pid in pids) - before
            found.append((count, _rows(shown), spent))
        finally:
            service.stop()
    return found


def _rows(shown: str) -> list[dict[str, Any]]:
    """Read the rows of `ottla bench --format json`: one list, or one object on each line."""
    text = shown.strip()
    if text.startswith("["):
        rows: list[dict[str, Any]] = json.loads(text)
        return rows
    return [json.loads(line) for line in text.splitlines()]


# ---- The page


def compare(part: str, fill_bytes: float, partitions: int, directory: Path, progress: Progress) -> list[str]:
    """Run one part on both clusters; returns its table."""
    found: list[list[float]] = []
    contestants = PAIRS["page-cache"] + PAIRS["fsync"][1:]
    names = ["Kafka", "Ottla", "Ottla, fsync"]
    for name, contestant in zip(names, contestants, strict=True):
        progress.status(f"{part}, {name}")
        at = directory / f"{part}-{name.replace(', ', '-')}"
        found.append(
            catch_up(contestant, at, fill_bytes) if part == "catch-up" else fail_over(contestant, at, partitions)
        )
        shutil.rmtree(at, ignore_errors=True)
    figures = {
        "catch-up": ("an empty replica catches up, MiB/s", "copied, MiB"),
        "fail-over": (
            f"{partitions:,} partitions, a broker killed: s until all have a leader",
            f"from the first new leader to the last, s ({POLL_S:g} or less: seen at once)",
        ),
    }[part]
    lines = [f"| {part} | {' | '.join(names)} |", LINE]
    for index, figure in enumerate(figures):
        lines.append(f"| {figure} | {' | '.join(number(values[index]) for values in found)} |")
    return lines


def workers_table(found: Sequence[tuple[int, list[dict[str, Any]], float]], records: int) -> list[str]:
    """The table of `workers`."""
    lines = [
        f"`ottla bench -p {WORKERS_PARTITIONS} -n {records}` against `ottla server --workers N`:",
        "",
        "| workers | case | records/s | p50, ms | p99, ms | CPU of the workers over all cases, s |",
        "| ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for count, rows, spent in found:
        for row in rows:
            times = [number(row[each]) if row.get(each) is not None else "" for each in ("p50_ms", "p99_ms")]
            lines.append(
                f"| {count} | {row['case']} | {number(float(row['records_per_s']))} | {times[0]} | {times[1]} "
                f"| {number(spent)} |"
            )
    return lines


def main() -> int:
    """Measure, print the tables and write them into the page."""
    parts = ("catch-up", "fail-over", "workers")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster_recovery", description=__doc__)
    parser.add_argument("parts", nargs="*", default=[], choices=(*parts, []), help="Default: all.")
    parser.add_argument("--mib", type=int, default=512, help="with how much the topics of catch-up are filled")
    parser.add_argument("--partitions", type=int, default=PARTITIONS, help="of fail-over")
    parser.add_argument("--records", type=int, default=1_000_000, help="of workers")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "benchmarks.md")
    parser.add_argument("--no-page", action="store_true")
    asked = parser.parse_args()
    progress = Progress()
    lines = [f"Measured {today()} on {machine()}, beside Apache Kafka {VERSION}: three brokers. `fsync` is Ottla's"]
    lines += ["default; the other columns answer from the page cache, as Kafka does by default."]
    directory = Path(tempfile.mkdtemp(prefix="ottla-bench-recovery-"))
    try:
        for part in asked.parts or list(parts):
            progress.status(part)
            lines.append("")
            if part == "workers":
                lines += workers_table(workers(directory, asked.records), asked.records)
            else:
                lines += compare(part, asked.mib * MIB, asked.partitions, directory, progress)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for line in lines:
        progress.line(line)
    if not asked.no_page:
        write_part(asked.page, RECOVERY_TITLE, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
