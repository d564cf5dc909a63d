"""docs/benchmarks.md from the rounds' figures: what was required, what was measured, everything, and how."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path

from benchmarks.contenders import CONTENDERS
from benchmarks.rounds import Measured, Sizes
from tests.support.kafka_jars import VERSION

FINDINGS = Path(__file__).with_name("FINDINGS.md")  # what people found behind the figures
Figures = dict[str, list[Measured]]  # contender -> one measurement a counted round
KAFKA, DEFAULT, PAGE_CACHE, KAFKA_FSYNC = (each.name for each in CONTENDERS)


@dataclass(frozen=True, slots=True)
class Requirement:
    """A ratio that must be reached. `more_is_better` says which way the figure is divided."""

    case: str
    figure: str
    at_least: float
    more_is_better: bool

    def ratio(self, kafka: float, ottla: float) -> float:
        """How many times better than Kafka."""
        return ottla / kafka if self.more_is_better else kafka / ottla


CLIENTS = ("librdkafka", "bare socket")


def _each(verb: str, size: str, client: str) -> tuple[Requirement, Requirement]:
    times = 3.0 if verb == "write" else 1.0
    title = "bulk" if verb == "write" else "reading back"
    name = f"{verb} {size} B, {client}"
    return (
        Requirement(f"{title}, {size} B, {client}: records/s", f"{name}: records/s", 1.0, more_is_better=True),
        Requirement(
            f"{title}, {size} B, {client}: broker CPU per record",
            f"{name}: CPU, s/million",
            times,
            more_is_better=False,
        ),
    )


REQUIRED = (
    Requirement("start-up until it answers", "start-up, s", 10, more_is_better=False),
    Requirement("memory idle", "memory idle, MiB", 6, more_is_better=False),
    Requirement("memory after the load", "memory after the load, MiB", 4, more_is_better=False),
    Requirement("one synchronous producer, 200 B: requests/s", "1 synchronous: requests/s", 2, more_is_better=True),
    Requirement("one synchronous producer, 200 B: p99", "1 synchronous: p99, ms", 2, more_is_better=False),
    Requirement("32 synchronous producers: requests/s", "32 synchronous: requests/s", 1.5, more_is_better=True),
    Requirement("32 synchronous producers: p99", "32 synchronous: p99, ms", 2, more_is_better=False),
    Requirement(
        "one synchronous producer, librdkafka: requests/s",
        "1 synchronous, librdkafka: requests/s",
        2,
        more_is_better=True,
    ),
    Requirement(
        "one synchronous producer, librdkafka: p99", "1 synchronous, librdkafka: p99, ms", 2, more_is_better=False
    ),
    Requirement(
        "32 synchronous producers, librdkafka: requests/s",
        "32 synchronous, librdkafka: requests/s",
        1.5,
        more_is_better=True,
    ),
    Requirement(
        "32 synchronous producers, librdkafka: p99", "32 synchronous, librdkafka: p99, ms", 2, more_is_better=False
    ),
    *(each for case in product(("write", "read"), ("200", "2,100"), CLIENTS) for each in _each(*case)),
)
ABSOLUTE = (  # figure, limit, whether more is better, what it is
    ("start-up, s", 0.5, False, "start-up under 0.5 s"),
    ("write 200 B, {client}: records/s", 400_000, True, "200 B records: ten times 40,000/s, {client}"),
    ("write 2,100 B, {client}: records/s", 100_000, True, "2.1 KB records: ten times 10,000/s, {client}"),
)


def median(figures: Figures, contender: str, figure: str) -> float:
    """The middle one of a contender's rounds."""
    return statistics.median(each[figure] for each in figures[contender])


def write(path: Path, figures: Figures, sizes: Sizes, *, quick: bool) -> None:
    """Write the page, keeping the parts that other commands wrote."""
    others = other_parts(path)
    rounds = len(figures[KAFKA])
    parts = [HEAD.format(
        date=today(), machine=machine(), kafka=VERSION, rounds=rounds, sync=sizes.synchronous_s,
        small=f"{sizes.small_records:,}", large=f"{sizes.large_records:,}", librdkafka=version("confluent-kafka"),
        quick="**A quick run: too short to judge by.**\n\n" if quick else "",
    )]  # fmt: skip
    parts += ["## Required and measured", "", *required_table(figures), "", *absolute_table(figures), ""]
    parts += ["## Both with an fsync before the answer", "", *durable_table(figures), ""]
    parts += ["## Every figure (median, and lowest to highest of the rounds)", "", *full_table(figures), ""]
    path.write_text("\n".join([*parts, FINDINGS.read_text(encoding="utf-8"), ""]) + others)


def required_table(figures: Figures) -> list[str]:
    """Ratios of medians against what is asked."""
    rows = [
        f"| case | required | {DEFAULT} (fsync, the default) | {PAGE_CACHE} (as Kafka) |",
        "| --- | --- | --- | --- |",
    ]
    for each in REQUIRED:
        kafka = median(figures, KAFKA, each.figure)
        cells = []
        for name in (DEFAULT, PAGE_CACHE):
            ratio = (
                each.ratio(kafka, median(figures, name, each.figure))
                if kafka and median(figures, name, each.figure)
                else 0.0
            )
            cells.append(f"{ratio:.2f}x {'met' if ratio >= each.at_least else '**missed**'}")
        rows.append(f"| {each.case} | {each.at_least:g}x | {' | '.join(cells)} |")
    return rows


def durable_table(figures: Figures) -> list[str]:
    """Ottla as it comes beside a Kafka that is told to fsync as well."""
    rows = [
        f"| case | required | {DEFAULT} beside {KAFKA_FSYNC} (`log.flush.interval.messages=1`) |",
        "| --- | --- | --- |",
    ]
    for each in REQUIRED:
        if "synchronous" in each.case:
            ratio = each.ratio(median(figures, KAFKA_FSYNC, each.figure), median(figures, DEFAULT, each.figure))
            verdict = "met" if ratio >= each.at_least else "**missed**"
            rows.append(f"| {each.case} | {each.at_least:g}x | {ratio:.2f}x {verdict} |")
    return rows


def absolute_table(figures: Figures) -> list[str]:
    """Limits that do not depend on Kafka."""
    rows = [f"| limit | {KAFKA} | {DEFAULT} | {PAGE_CACHE} |", "| --- | --- | --- | --- |"]
    for figure, limit, more, title in ABSOLUTE:
        for client in ("librdkafka", "bare socket") if "{client}" in figure else ("",):
            cells = []
            for name in (KAFKA, DEFAULT, PAGE_CACHE):
                found = median(figures, name, figure.format(client=client))
                good = found >= limit if more else found <= limit
                cells.append(f"{number(found)}{'' if name == KAFKA else ' met' if good else ' **missed**'}")
            rows.append(f"| {title.format(client=client)} | {' | '.join(cells)} |")
    return rows


def full_table(figures: Figures) -> list[str]:
    """All of it."""
    names = list(figures)
    rows = [f"| figure | {' | '.join(names)} |", "| --- |" + " --- |" * len(names)]
    for figure in figures[KAFKA][0]:
        cells = []
        for name in names:
            values = [each[figure] for each in figures[name] if figure in each]
            if not values:
                cells.append("")
                continue
            spread = f" ({number(min(values))} to {number(max(values))})" if len(values) > 1 else ""
            cells.append(number(statistics.median(values)) + spread)
        rows.append(f"| {figure} | {' | '.join(cells)} |")
    return rows


def number(value: float) -> str:
    """Three figures that mean something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def today() -> str:
    """The date on the page."""
    return str(datetime.now(UTC).date())  # noqa: TID251 - no test owns a measurement's date


def machine() -> str:
    """What it ran on."""
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    memory = next(
        (int(line.split()[1]) // (1 << 20) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0
    )
    system = f"Linux {platform.release()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} cores ({model}), {memory} GiB, {system}"


def _lines(path: str) -> Sequence[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return ()


BACKLOG_TITLE = "## A backlog written with no consumer, then read (`make bench-backlog`)"
STORAGE_TITLE = "## The storage room at its own edge (`make bench-storage`)"
CLEANER_TITLE = "## Compaction (`make bench-cleaner`)"
SPARK_TITLE = "## Spark: our source and load, and the official connector (`make bench-spark`)"
_OTHERS = (BACKLOG_TITLE, STORAGE_TITLE, CLEANER_TITLE, SPARK_TITLE)


def other_parts(path: Path) -> str:
    """What the page says of what is measured by other commands, as it stands."""
    text = path.read_text() if path.exists() else ""
    return "\n".join(filter(None, (_part(text, title) for title in _OTHERS)))


def write_part(path: Path, title: str, lines: Sequence[str]) -> None:
    """Put one such part into the page, leaving the rest."""
    text = path.read_text() if path.exists() else "# Benchmarks\n\n"
    fresh = "\n".join([title, "", *lines, ""])
    stale = _part(text, title)
    path.write_text(text.replace(stale, fresh) if stale else f"{text.rstrip()}\n\n{fresh}")


def _part(text: str, title: str) -> str:
    """From a title to the next, or to the end."""
    begin = text.find(title)
    end = text.find("\n## ", begin + 1)
    return "" if begin < 0 else text[begin:] if end < 0 else text[begin : end + 1]


HEAD = """\
# Benchmarks

Written by `make bench`. Measured {date} on {machine}.

{quick}## Method

- Apache Kafka {kafka} from its jars, one process, with the heap (`-Xms1G -Xmx1G`) and collector options of its own
  start script, and Ottla; same clients, same machine, same disk, each round in an empty directory.
- Rounds alternate between the brokers and turn their order round each time. The first round is thrown away; the figures
  are medians of the other {rounds}. A ratio above 1 is in Ottla's favour.
- `acks=all` everywhere. Ottla's default answers after the group commit's fsync; Kafka answers from the page cache.
  `durability=page-cache` makes Ottla do what Kafka does, and is the like-for-like column; the other way round, a Kafka
  that fsyncs each batch (`log.flush.interval.messages=1`) is measured for the synchronous cases.
- Start-up: from the start of the process until ApiVersions and Metadata are answered; polled every 5 ms. Formatting
  Kafka's directory is not counted, making Ottla's is.
- Memory: resident set of the broker process. CPU: user and system time of the broker process from /proc.
- Synchronous producers: one request of one 200 B record in flight per connection, for {sync:g} s after as
  long a warm-up. "Bare socket" clients send Produce v9 frames made beforehand, so that the broker and not the client
  is measured; 32 of them share one process by epoll. The librdkafka client is
  confluent-kafka {librdkafka}, `linger.ms=0`, flushing each record; 32 of them are threads of one process.
- Bulk: {small} records of 200 B and {large} of 2,100 B into one partition, by librdkafka (its default batch size,
  `linger.ms=5`, no compression) and by a bare socket (ready-made batches of 500 kB, five in flight); then read back by
  librdkafka and by bare Fetch requests of 4 MiB. After each case the log's end offset is compared with what was sent.
- The clients run on the same cores as the broker.
"""
