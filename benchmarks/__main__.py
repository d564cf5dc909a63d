"""Runs `python -m benchmarks [PART ...]`, or one of `backlog`, `pipeline`, `cleaner`, `transactions`; see `--help`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import backlog, cases, cleaner, machine_limits, pipeline, report, transactions
from benchmarks.cases import IN_MEMORY, QUICK, Cases, Effort, Figures
from benchmarks.progress import Progress
from ottla.pipeline.jars import JarsNotFound
from tests.support.kafka_jars import kafka_jars

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
KEPT = ROOT / "build" / "benchmarks.json"
PARTS = ("limits", "start", "in-memory", "synchronous", "latency", "bulk")
MEMORY = Path("/dev/shm")  # noqa: S108 - a file system in memory, where an fsync costs nothing


def against_kafka(parts: list[str], effort: Effort, progress: Progress, *, page: Path, kept: Path) -> None:
    """Measure the parts and write the page from them and from the parts that `kept` holds of earlier runs."""
    progress.line(f"Kafka's jars: {(kafka_jars() / 'how.txt').read_text().strip()}")
    limits: dict[str, float] = {}
    figures: Figures = {}
    if "limits" in parts:
        limits = machine_limits.measure(effort.seconds, progress.status)
    if "start" in parts:
        figures |= cases.starts(effort, progress.status)
    if "in-memory" in parts:
        with cases.all_running(progress.status, MEMORY) as running:
            in_memory = Cases(running, effort, progress.status, prefix=IN_MEMORY)
            in_memory.warm()
            in_memory.synchronous()
        figures |= in_memory.figures
    on_running = [part for part in PARTS[3:] if part in parts]
    if on_running:
        with cases.all_running(progress.status) as running:
            run = Cases(running, effort, progress.status)
            run.warm()
            for part in on_running:
                getattr(run, part)()
                report.keep(kept, run.figures, {}, str(effort))
        figures |= run.figures
    everything = report.keep(kept, figures, limits, f"The effort: {effort}")
    report.write(page, everything)
    for row in report.full_table(everything["figures"]) + report.target_table(everything["figures"]):
        progress.line(row)
    if everything["limits"]:
        for row in report.limit_table(everything["figures"], everything["limits"]):
            progress.line(row)
    progress.line(f"written to {page}")


def main() -> int:
    """Run what was asked for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Ottla against a real Apache Kafka.")
    others = ("backlog", "pipeline", "cleaner", "transactions")
    parser.add_argument(
        "what", nargs="*", choices=(*PARTS, *others, []), default=[], help="parts of the comparison; none: all parts"
    )
    parser.add_argument("--quick", action="store_true", help="small and short, to see that it works")
    parser.add_argument(
        "--rounds", type=int, default=0, help="pipeline (5), cleaner, transactions (3): rounds that count"
    )
    parser.add_argument("--gib", type=float, default=18.0, help="size of the backlog")
    parser.add_argument("--records", type=int, default=0, help="pipeline (4 million), cleaner (10 million): how many")
    parser.add_argument("--keys", type=int, default=1_000_000, help="cleaner: how many different ones")
    parser.add_argument("--broker", choices=("ottla", "kafka"), default="ottla", help="pipeline: where the topic is")
    parser.add_argument("--no-page", action="store_true", help="pipeline, cleaner, transactions: write no page")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the figures are written")
    parser.add_argument("--kept", type=Path, default=KEPT, help="the JSON file that holds the figures of all parts")
    asked = parser.parse_args()
    progress = Progress()
    if "backlog" in asked.what:
        return 0 if backlog.run(asked.gib, asked.page, progress) else 1
    if "transactions" in asked.what:
        page = None if asked.no_page or asked.quick else asked.page
        rounds = asked.rounds or (1 if asked.quick else 3)
        return 0 if transactions.run(1.0 if asked.quick else 5.0, rounds, page, progress) else 1
    if "cleaner" in asked.what:
        records = asked.records or (500_000 if asked.quick else 10_000_000)
        page = None if asked.no_page or asked.quick else asked.page
        rounds = asked.rounds or (1 if asked.quick else 3)
        sizes = cleaner.Sizes(records, min(asked.keys, records // 10), rounds)
        return 0 if cleaner.run(sizes, page, progress) else 1
    if "pipeline" in asked.what:
        page = None if asked.no_page or asked.quick else asked.page
        records = 200_000 if asked.quick else asked.records or 4_000_000
        rounds = asked.rounds or (1 if asked.quick else 5)
        return 0 if pipeline.run(records, rounds, asked.broker, page, progress) else 1
    try:
        effort = QUICK if asked.quick else Effort()
        against_kafka(asked.what or list(PARTS), effort, progress, page=asked.page, kept=asked.kept)
    except JarsNotFound as error:
        progress.line(f"no Apache Kafka to compare with: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
