"""`python -m benchmarks`, and `... backlog`, `... pipeline`, `... cleaner`; `--help` tells their options."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks import backlog, cleaner, pipeline, report
from benchmarks.contenders import CONTENDERS
from benchmarks.rounds import QUICK, Measured, Sizes, run_round
from benchmarks.screen import Screen
from tests.support.kafka_jars import NoJars, kafka_jars

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"


def against_kafka(rounds: int, page: Path, screen: Screen, *, quick: bool, raw: Path | None) -> None:
    """The comparison: one round thrown away, then `rounds` that count."""
    screen.say(f"Kafka's jars: {(kafka_jars() / 'how.txt').read_text().strip()}")
    sizes = QUICK if quick else Sizes()
    figures: dict[str, list[Measured]] = {each.name: [] for each in CONTENDERS}
    for number in range(rounds + 1):
        order = CONTENDERS if number % 2 == 0 else tuple(reversed(CONTENDERS))
        for contender in order:
            title = f"round {number} of {rounds}{' (thrown away)' if number == 0 else ''}, {contender.name}"
            measured = run_round(contender, sizes, lambda text, title=title: screen.now(f"{title}: {text}"))  # type: ignore[misc]
            screen.say(f"{title}: " + ", ".join(f"{name} {report.number(value)}" for name, value in measured.items()))
            if number:
                figures[contender.name].append(measured)
    page.parent.mkdir(exist_ok=True)
    report.write(page, figures, sizes, quick=quick)
    if raw:
        raw.write_text(json.dumps(figures, indent=1))
    screen.say("\n".join(report.required_table(figures)))
    screen.say(f"written to {page}")


def main() -> int:
    """Run what was asked for; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Ottla against a real Apache Kafka.")
    parser.add_argument("what", nargs="?", choices=("kafka", "backlog", "pipeline", "cleaner"), default="kafka")
    parser.add_argument("--quick", action="store_true", help="small and short, to see that it works")
    parser.add_argument("--rounds", type=int, default=0, help="rounds that count (default 3, quick 1)")
    parser.add_argument("--gib", type=float, default=18.0, help="size of the backlog")
    parser.add_argument("--records", type=int, default=0, help="pipeline (4 million), cleaner (10 million): how many")
    parser.add_argument("--keys", type=int, default=1_000_000, help="cleaner: how many different ones")
    parser.add_argument("--broker", choices=("ottla", "kafka"), default="ottla", help="pipeline: where the topic is")
    parser.add_argument("--no-page", action="store_true", help="pipeline, cleaner: write no page")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the figures are written")
    parser.add_argument("--raw", type=Path, help="a JSON file for every figure of every round")
    asked = parser.parse_args()
    screen = Screen()
    if asked.what == "backlog":
        return 0 if backlog.run(asked.gib, asked.page, screen) else 1
    if asked.what == "cleaner":
        records = asked.records or (500_000 if asked.quick else 10_000_000)
        page = None if asked.no_page or asked.quick else asked.page
        rounds = asked.rounds or (1 if asked.quick else 3)
        sizes = cleaner.Sizes(records, min(asked.keys, records // 10), rounds)
        return 0 if cleaner.run(sizes, page, screen) else 1
    if asked.what == "pipeline":
        page = None if asked.no_page or asked.quick else asked.page
        records = 200_000 if asked.quick else asked.records or 4_000_000
        rounds = asked.rounds or (1 if asked.quick else 5)
        return 0 if pipeline.run(records, rounds, asked.broker, page, screen) else 1
    try:
        against_kafka(asked.rounds or (1 if asked.quick else 3), asked.page, screen, quick=asked.quick, raw=asked.raw)
    except NoJars as error:
        screen.say(f"no Apache Kafka to compare with: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
