"""Writes docs/benchmarks.md from the measured figures: targets, limits of the machine, every figure, and the method."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.brokers import KAFKA, KAFKA_FSYNC, OTTLA, OTTLA_FSYNC, Broker
from benchmarks.cases import IN_MEMORY, SIZES, Figures
from ottla import compiled
from tests.support.kafka_jars import VERSION

FINDINGS = Path(__file__).with_name("FINDINGS.md")  # what profiles of the cases showed
CLIENTS = ("librdkafka", "bare socket")
PAIRS = {
    "page cache": (OTTLA, KAFKA),
    "Ottla fsync, Kafka page cache": (OTTLA_FSYNC, KAFKA),
    "fsync": (OTTLA_FSYNC, KAFKA_FSYNC),
}
"""How the targets name which brokers are compared."""


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio of two brokers' medians, in Ottla's favour above 1, that must be reached."""

    pair: str
    figure: str
    at_least: float

    @property
    def more_is_better(self) -> bool:
        """Whether the figure is a rate; all others are costs."""
        return self.figure.endswith("/s")

    def ratio(self, figures: Figures) -> float | None:
        """How many times better Ottla is, or None if one of them was not measured."""
        ottla, kafka = (median(figures, self.figure, broker) for broker in PAIRS[self.pair])
        if not ottla or not kafka:
            return None
        return ottla / kafka if self.more_is_better else kafka / ottla


def _bulk_targets() -> list[Target]:
    return [
        target
        for pair in ("page cache", "Ottla fsync, Kafka page cache")
        for verb in ("write", "read")
        for size in SIZES
        for client in CLIENTS
        for target in (
            Target(pair, f"{verb} {size:,} B, {client}: records/s", 1.0),
            Target(pair, f"{verb} {size:,} B, {client}: CPU, us/record", 1.5),
        )
    ]


TARGETS = (
    Target("page cache", "1 synchronous: requests/s", 1.6),
    Target("page cache", "1 synchronous: p99, ms", 2.0),
    Target("page cache", "32 synchronous: requests/s", 1.2),
    Target("page cache", "32 synchronous: CPU, us/request", 1 / 0.65),
    Target("page cache", "32 synchronous: p99, ms", 1.0),
    Target("Ottla fsync, Kafka page cache", "32 synchronous: requests/s", 0.95),
    Target("Ottla fsync, Kafka page cache", "1 synchronous: requests/s", 0.5),
    Target("Ottla fsync, Kafka page cache", f"{IN_MEMORY}32 synchronous: requests/s", 0.95),
    Target("Ottla fsync, Kafka page cache", f"{IN_MEMORY}1 synchronous: requests/s", 0.5),
    Target("fsync", "1 synchronous: requests/s", 3.0),
    Target("fsync", "32 synchronous: requests/s", 8.0),
    Target("page cache", "produce to consume: p50, ms", 1.0),
    Target("page cache", "produce to consume: p99, ms", 1.0),
    Target("fsync", "produce to consume: p50, ms", 1.0),
    Target("fsync", "produce to consume: p99, ms", 1.0),
    Target("page cache", "start-up, s", 8.0),
    Target("page cache", "memory idle, MiB", 9.0),
    Target("page cache", "memory after the load, MiB", 20.0),
    *_bulk_targets(),
)
START_LIMIT_S = 0.2

Limits = Mapping[str, float]
Limit = Callable[[Limits], float]


def limit_of(figure: str, limits: Limits, *, fsync: bool) -> tuple[float, str] | None:
    """Return what the machine would allow for a figure, and what that is made from; None if nothing bounds it."""
    sync_s = limits["fdatasync: p50, ms"] / 1e3 if fsync else 0.0
    text = " + fdatasync" if fsync else ""
    if figure == "1 synchronous: requests/s":
        return 1 / (1 / limits["socket, 1: requests/s"] + sync_s), f"socket round trip{text}"
    if figure in {"1 synchronous: p50, ms", "produce to consume: p50, ms"}:
        return limits["socket, 1: p50, ms"] + sync_s * 1e3, f"socket round trip{text}"
    if figure == "32 synchronous: requests/s":
        rate = limits["socket, 32: requests/s"]
        shared_s = limits["fdatasync of 32 appends: p50, ms"] / 1e3 if fsync else 0.0
        return 32 / (32 / rate + shared_s), f"32 sockets that echo{text}"
    if figure == "start-up, s":
        return limits["start of Python, s"], "start of Python alone"
    if figure == "memory idle, MiB":
        return limits["memory of Python, MiB"], "Python alone"
    if figure.endswith(": records/s"):
        verb, size = figure.partition(" B,")[0].split(" ")
        stored = int(size.replace(",", "")) + 10
        name = "page cache write" if verb == "write" else "page cache read to a socket"
        return limits[f"{name}, MB/s"] * 1e6 / stored, name
    return None


def median(figures: Figures, figure: str, broker: Broker) -> float | None:
    """Return the median of a broker's rounds."""
    values = figures.get(figure, {}).get(broker.name)
    return statistics.median(values) if values else None


def write(path: Path, kept: Mapping[str, Any]) -> None:
    """Write the page from all parts measured so far, keeping what other commands wrote."""
    others = other_parts(path)
    figures, limits = kept["figures"], kept["limits"]
    parts = [HEAD.format(date=today(), machine=machine(), kafka=VERSION, form=compiled.form())]
    parts += ["## Every figure (median, and lowest to highest of the rounds)", "", *full_table(figures), ""]
    if others:
        parts += [f"{others.rstrip()}\n"]
    parts += [
        METHOD.format(kafka=VERSION, form=compiled.form(), effort=kept["effort"], librdkafka=version("confluent-kafka"))
    ]
    if limits:
        parts += ["## How near to what the machine allows", "", *limit_table(figures, limits), ""]
        parts += ["| limit of the machine | measured |", "| --- | ---: |"]
        parts += [f"| {name} | {number(value)} |" for name, value in limits.items()] + [""]
    parts += [FINDINGS.read_text(encoding="utf-8"), TARGETS_TITLE, "", *target_table(figures), ""]
    path.write_text("\n".join(parts))


def target_table(figures: Figures) -> list[str]:
    """List every target that was measured with its ratio and the verdict."""
    rows = ["| compared | figure | target | measured |", "| --- | --- | ---: | ---: |"]
    for target in TARGETS:
        ratio = target.ratio(figures)
        if ratio is not None:
            verdict = "met" if ratio >= target.at_least else "**missed**"
            rows.append(f"| {target.pair} | {target.figure} | {target.at_least:.2f}x | {ratio:.2f}x {verdict} |")
    for broker in (OTTLA, OTTLA_FSYNC):
        took = median(figures, "start-up, s", broker)
        if took is not None:
            verdict = "met" if took < START_LIMIT_S else "**missed**"
            rows.append(f"| {broker.name} | start-up, s | under {START_LIMIT_S:g} s | {took:.3f} s {verdict} |")
    return rows


def limit_table(figures: Figures, limits: Limits) -> list[str]:
    """Set both forms of Ottla beside the limit of the machine."""
    rows = [
        f"| figure | limit | from | {OTTLA.name} | of the limit | {OTTLA_FSYNC.name} | of its limit |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for figure in figures:
        cells, head = [], ""
        for broker, fsync in ((OTTLA, False), (OTTLA_FSYNC, True)):
            limit, value = limit_of(figure, limits, fsync=fsync), median(figures, figure, broker)
            if limit is None or value is None:
                continue
            head = head or f"{number(limit[0])} | {limit[1]}"
            share = value / limit[0] if figure.endswith("/s") else limit[0] / value
            cells += [number(value), f"{share:.0%}"]
        if len(cells) == 4:
            rows.append(f"| {figure} | {head} | {' | '.join(cells)} |")
    return rows


def full_table(figures: Figures) -> list[str]:
    """List every figure of every broker."""
    brokers = (KAFKA, OTTLA, OTTLA_FSYNC, KAFKA_FSYNC)
    rows = [f"| figure | {' | '.join(each.name for each in brokers)} |", "| --- |" + " ---: |" * len(brokers)]
    for figure, by_broker in figures.items():
        cells = []
        for broker in brokers:
            values = by_broker.get(broker.name)
            if not values:
                cells.append("")
                continue
            spread = f" ({number(min(values))} to {number(max(values))})" if len(values) > 1 else ""
            cells.append(number(statistics.median(values)) + spread)
        rows.append(f"| {figure} | {' | '.join(cells)} |")
    return rows


def keep(path: Path, figures: Figures, limits: Limits, effort: str) -> dict[str, Any]:
    """Merge newly measured figures into those of parts that ran before, and return all of them."""
    kept: dict[str, Any] = {"figures": {}, "limits": {}}
    if path.exists():
        kept = json.loads(path.read_text())
    kept["figures"].update(figures)
    kept["limits"].update(limits)
    kept["effort"] = effort
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=1))
    return kept


def number(value: float) -> str:
    """Three figures that mean something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def today() -> str:
    """The date on the page."""
    return str(datetime.now(UTC).date())


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
STORAGE_TITLE = "## The storage package at its own interface (`make bench-storage`)"
CLEANER_TITLE = "## Compaction (`make bench-cleaner`)"
SPARK_TITLE = "## Spark: our source and load, and the official connector (`make bench-spark`)"
VALIDATION_TITLE = "## Record validation (`python -m benchmarks.record_validation`)"
TRANSACTIONS_TITLE = "## Transactions (`python -m benchmarks transactions`)"
GROUPS_TITLE = "## Groups (`make bench-groups`)"
TESTING_TITLE = "## Brokers for tests (`make bench-testing`)"
CLUSTER_TITLE = "## Three brokers (`make bench-cluster`)"
RECOVERY_TITLE = "## After a loss, and workers (`make bench-recovery`)"
PARTITIONS_TITLE = "## 10,000 partitions (`make bench-recovery`)"
STARTS_TITLE = "## Starts with 10,000 partitions (`make bench-starts`)"
SCRAPE_TITLE = "## A scrape of /metrics (`make bench-scrape`)"
CONNECTIONS_TITLE = "## 10,000 idle connections (`make bench-connections`)"
ABUSE_TITLE = "## An innocent client beside abuse (`make bench-abuse`)"
GROUP_LOAD_TITLE = "## Loading 100,000 groups (`make bench-group-load`)"
READING_TITLE = "## Reading back, and a bare sendfile loop (`make bench-reading`)"
SECURITY_TITLE = "## TLS, access control and sign-ins (`make bench-security`)"
METHOD_TITLE = "## Method"
TARGETS_TITLE = "## Appendix: the project's own targets"
_OTHERS = (
    BACKLOG_TITLE,
    STORAGE_TITLE,
    CLEANER_TITLE,
    SPARK_TITLE,
    VALIDATION_TITLE,
    TRANSACTIONS_TITLE,
    GROUPS_TITLE,
    TESTING_TITLE,
    CLUSTER_TITLE,
    RECOVERY_TITLE,
    PARTITIONS_TITLE,
    STARTS_TITLE,
    SCRAPE_TITLE,
    CONNECTIONS_TITLE,
    ABUSE_TITLE,
    GROUP_LOAD_TITLE,
    READING_TITLE,
    SECURITY_TITLE,
)


def other_parts(path: Path) -> str:
    """What the page says of what is measured by other commands, as it stands."""
    text = path.read_text() if path.exists() else ""
    return "\n".join(f"{part.rstrip()}\n" for title in _OTHERS if (part := _part(text, title)))


def write_part(path: Path, title: str, lines: Sequence[str]) -> None:
    """Put one such part into the page, leaving the rest."""
    text = path.read_text() if path.exists() else "# Benchmarks\n\n"
    fresh = "\n".join([title, "", *lines, "", ""])
    stale = _part(text, title)
    if not stale and METHOD_TITLE in text:  # what is measured comes before the method
        stale, fresh = METHOD_TITLE, f"{fresh}{METHOD_TITLE}"
    whole = text.replace(stale, fresh) if stale else f"{text.rstrip()}\n\n{fresh}"
    path.write_text(f"{whole.rstrip()}\n")


def _part(text: str, title: str) -> str:
    """From a title to the next, or to the end."""
    begin = text.find(title)
    end = text.find("\n## ", begin + 1)
    return "" if begin < 0 else text[begin:] if end < 0 else text[begin : end + 1]


HEAD = """\
# Benchmarks

Written by `make bench`. Measured {date} on {machine}.

Apache Kafka {kafka} beside Ottla ({form}), with the same clients on the same machine. "Kafka" and "Ottla" answer
from the page cache: Kafka's default, and Ottla's with `durability=page-cache`. "Ottla, fsync" is Ottla's default: an
acknowledged record is on disk. That costs a synchronous producer one fsync for each request, so alone it is slower
than with Kafka; 32 producers share their fsyncs. Rates are better if higher; times, CPU and memory if lower.
"""

METHOD = """\
## Method

- Apache Kafka {kafka} from its jars, with the heap (`-Xms1G -Xmx1G`) and the collector options of its own start
  script, and Ottla ({form}), each twice: answering from the page cache ("Kafka" as it is by default, "Ottla" with
  `durability=page-cache`) and after an fsync ("Kafka, fsync" with `log.flush.interval.messages=1`, "Ottla, fsync"
  as it is by default). Same clients, same machine, same disk. The clients run on the same cores as the brokers.
- All four run at the same time and are warmed by the same load before anything is measured. A case runs on them in
  turn, in short runs, and the order turns round each time; the figures are medians. {effort}.
- A ratio above 1 is in Ottla's favour. `acks=all` everywhere.
- Synchronous producers: one request of one 200 B record in flight per connection, by bare sockets that send Produce
  v9 frames made beforehand, so that the broker and not the client is measured; 32 of them share one process by
  epoll. "In memory": the same with all logs on a file system in memory, where an fsync costs nothing: what the
  brokers do beside the disk.
- Produce to consume: a fetch waits at the broker; measured from the send of one record of 200 B until the consumer
  has it.
- Bulk: records of 200 B and 2,100 B into one partition, by librdkafka (confluent-kafka {librdkafka}, its default
  batch size, `linger.ms=5`, no compression) and by a bare socket (ready-made batches of 500 kB, five in flight);
  then read back by librdkafka and by bare Fetch requests of 4 MiB. After each case the log's end offset is compared
  with what was sent.
- Before each start and each turn of a bulk case free memory is touched: a virtual machine may get each page from its
  host when it is first touched, and then the broker that is measured pays more for new pages than for all else.
- CPU: user and system time of the broker process from /proc. Memory: its resident set.
- Start-up: from the start of the process in an empty directory until ApiVersions and Metadata are answered, polled
  every 5 ms. Formatting Kafka's directory is not counted, creating Ottla's is.
- The limits are measured in the same run: a process that only echoes over a socket, fdatasync after each append of
  270 B and after 32 of them, 500 kB writes into a new file, and sendfile from the page cache into a socket.
"""
