"""Collects the samples of one scrape, and formats them as Prometheus text or OpenMetrics.

A family is declared once, in the module that reads it; `FAMILIES` has all of them, and docs/metrics.md is generated
from it. A broker may have hundreds of thousands of samples, so a sample becomes its line of text at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from ottla.core.histogram import Histogram

COUNTER, GAUGE, HISTOGRAM, SUMMARY = "counter", "gauge", "histogram", "summary"

LINES_OF_PIECE: Final = 2_000
"""Lines that are joined in one turn of the loop."""


class Family(NamedTuple):
    """Declares a metric: its name, without the suffix of its samples, and what its value means."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    group: str = "Broker"  # the heading in docs/metrics.md


FAMILIES: Final[dict[str, Family]] = {}


def family(name: str, kind: str, text: str, labels: str = "", *, group: str) -> Family:
    """Declare a metric."""
    assert name not in FAMILIES, f"{name} is declared twice"
    declared = FAMILIES[name] = Family(name, kind, text, tuple(labels.split()), group)
    return declared


def escape(text: str) -> str:
    r"""Return the value of a label as it is written.

    >>> print(escape('a "b" \\ c'))
    a \"b\" \\ c
    """
    if '"' in text or "\\" in text or "\n" in text:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return text


def labels_of(**values: object) -> str:
    """Return labels as they are written, without braces.

    >>> labels_of(topic="t", partition=3)
    'topic="t",partition="3"'
    """
    return ",".join(f'{name}="{escape(str(value))}"' for name, value in values.items())


class Page:
    """Holds the lines of one scrape."""

    def __init__(self) -> None:
        self._lines: dict[Family, list[str]] = {}

    def lines_of(self, of: Family) -> list[str]:
        """Return the list to which lines of a family are added, for those who have many."""
        lines = self._lines.get(of)
        if lines is None:
            lines = self._lines[of] = []
        return lines

    def add(self, of: Family, value: float, labels: str = "") -> None:
        """Add a sample. A counter's has the suffix that both formats want."""
        name = f"{of.name}_total" if of.kind == COUNTER else of.name
        self.lines_of(of).append(f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n")

    def add_histogram(self, of: Family, histogram: Histogram, labels: str = "") -> None:
        """Add a histogram, in seconds."""
        lines, prefix, seen = self.lines_of(of), f"{labels}," if labels else "", 0
        for bucket, count in enumerate(histogram.counts[:-1]):
            seen += count
            lines.append(f'{of.name}_bucket{{{prefix}le="{(1 << bucket) / 1e6!r}"}} {seen}\n')
        seen += histogram.counts[-1]
        lines.append(f'{of.name}_bucket{{{prefix}le="+Inf"}} {seen}\n')
        braces = f"{{{labels}}}" if labels else ""
        lines.append(f"{of.name}_count{braces} {seen}\n{of.name}_sum{braces} {histogram.total_us / 1e6!r}\n")

    def add_summary(self, of: Family, histogram: Histogram, labels: str = "") -> None:
        """Add quantiles, in milliseconds, as Kafka's metrics have them."""
        lines, prefix = self.lines_of(of), f"{labels}," if labels else ""
        for quantile in (0.5, 0.75, 0.95, 0.98, 0.99, 0.999):
            lines.append(f'{of.name}{{{prefix}quantile="{quantile}"}} {histogram.quantile_us(quantile) / 1000!r}\n')
        braces = f"{{{labels}}}" if labels else ""
        lines.append(
            f"{of.name}_count{braces} {histogram.count}\n{of.name}_sum{braces} {histogram.total_us / 1000!r}\n"
        )

    @property
    def samples(self) -> int:
        """Return how many lines there are."""
        return sum(map(len, self._lines.values()))

    def pieces(self, *, is_openmetrics: bool) -> Iterator[bytes]:
        """Yield the text in pieces; the end of OpenMetrics is the caller's to write."""
        for declared, lines in self._lines.items():
            yield heading(declared, is_openmetrics=is_openmetrics).encode()
            for first in range(0, len(lines), LINES_OF_PIECE):
                yield "".join(lines[first : first + LINES_OF_PIECE]).encode()


def heading(declared: Family, *, is_openmetrics: bool) -> str:
    """Return the lines before the samples of a family."""
    name = declared.name if is_openmetrics or declared.kind != COUNTER else f"{declared.name}_total"
    text = declared.help.replace("\\", "\\\\").replace("\n", "\\n")
    if is_openmetrics:
        text = text.replace('"', '\\"')
    return f"# HELP {name} {text}\n# TYPE {name} {declared.kind}\n"
