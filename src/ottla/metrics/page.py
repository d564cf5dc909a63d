"""Collects the samples of one scrape, and formats them as Prometheus text or OpenMetrics.

A family is declared once, in the module that reads it; `FAMILIES` has all of them, and docs/metrics.md is generated
from it. A broker may have hundreds of thousands of samples. So those of partitions are kept as numbers beside labels
that several families share (`Rows`), and become text a piece at a time while a page is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ottla.core.histogram import Histogram

COUNTER, GAUGE, HISTOGRAM, SUMMARY = "counter", "gauge", "histogram", "summary"

PIECE_CHARS: Final = 128 << 10
"""A piece of a page that is formatted at once has no more than this and one entry: well below a millisecond's work."""

ROWS_MAX: Final = 250
"""Samples of one `Rows`."""


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


class Rows(NamedTuple):
    r"""Holds samples of one family that are not formatted yet.

    >>> print(Rows('{topic="t"} %d\n{topic="u"} %d', (1, 2)).text("lag"), end="")
    lag{topic="t"} 1
    lag{topic="u"} 2
    """

    lines: str  # labels in braces and `%d`, or `%s` for fractions; without the names
    values: tuple[float, ...]

    def text(self, name: str) -> str:
        """Return the lines of a family with this name."""
        return f"{name}{self.lines.replace(_NEWLINE, _NEWLINE + name)}\n" % self.values


_NEWLINE: Final = "\n"


def escape_row(text: str) -> str:
    """Return the value of a label as it is written in the lines of `Rows`, which are a format of values, too.

    >>> escape_row("100 %")
    '100 %%'
    """
    return escape(text).replace("%", "%%")


class Page:
    """Holds the samples of one scrape."""

    def __init__(self) -> None:
        self._entries: dict[Family, list[str | Rows]] = {}

    def _entries_of(self, of: Family) -> list[str | Rows]:
        entries = self._entries.get(of)
        if entries is None:
            entries = self._entries[of] = []
        return entries

    def add_rows(self, lines: Sequence[str], families: Sequence[Family], values: Sequence[Sequence[float]]) -> None:
        """Add samples of several gauges that have their labels in common: a line of `Rows`, and values, for each."""
        if lines:
            joined = _NEWLINE.join(lines)
            for of, column in zip(families, zip(*values, strict=True), strict=True):
                self._entries_of(of).append(Rows(joined, column))

    def add(self, of: Family, value: float, labels: str = "") -> None:
        """Add a sample. A counter's has the suffix that both formats want."""
        name = f"{of.name}_total" if of.kind == COUNTER else of.name
        self._entries_of(of).append(f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n")

    def add_histogram(self, of: Family, histogram: Histogram, labels: str = "") -> None:
        """Add a histogram, in seconds."""
        lines, prefix, seen = self._entries_of(of), f"{labels}," if labels else "", 0
        for bucket, count in enumerate(histogram.counts[:-1]):
            seen += count
            lines.append(f'{of.name}_bucket{{{prefix}le="{(1 << bucket) / 1e6!r}"}} {seen}\n')
        seen += histogram.counts[-1]
        lines.append(f'{of.name}_bucket{{{prefix}le="+Inf"}} {seen}\n')
        braces = f"{{{labels}}}" if labels else ""
        lines.append(f"{of.name}_count{braces} {seen}\n{of.name}_sum{braces} {histogram.total_us / 1e6!r}\n")

    def add_summary(self, of: Family, histogram: Histogram, labels: str = "") -> None:
        """Add quantiles, in milliseconds, as Kafka's metrics have them."""
        lines, prefix = self._entries_of(of), f"{labels}," if labels else ""
        for quantile in (0.5, 0.75, 0.95, 0.98, 0.99, 0.999):
            lines.append(f'{of.name}{{{prefix}quantile="{quantile}"}} {histogram.quantile_us(quantile) / 1000!r}\n')
        braces = f"{{{labels}}}" if labels else ""
        lines.append(
            f"{of.name}_count{braces} {histogram.count}\n{of.name}_sum{braces} {histogram.total_us / 1000!r}\n"
        )

    @property
    def samples(self) -> int:
        """Return how many lines there are."""
        return sum(
            len(entry.values) if isinstance(entry, Rows) else 1
            for entries in self._entries.values()
            for entry in entries
        )

    def pieces(self, *, is_openmetrics: bool) -> Iterator[bytes]:
        """Yield the text in pieces; the end of OpenMetrics is the caller's to write."""
        piece, size = list[str](), 0
        for declared, entries in self._entries.items():
            piece.append(heading(declared, is_openmetrics=is_openmetrics))
            for entry in entries:
                text = entry.text(declared.name) if isinstance(entry, Rows) else entry
                piece.append(text)
                size += len(text)
                if size >= PIECE_CHARS:
                    yield "".join(piece).encode()
                    piece, size = [], 0
        if piece:
            yield "".join(piece).encode()


def heading(declared: Family, *, is_openmetrics: bool) -> str:
    """Return the lines before the samples of a family."""
    name = declared.name if is_openmetrics or declared.kind != COUNTER else f"{declared.name}_total"
    text = declared.help.replace("\\", "\\\\").replace("\n", "\\n")
    if is_openmetrics:
        text = text.replace('"', '\\"')
    return f"# HELP {name} {text}\n# TYPE {name} {declared.kind}\n"
