"""Holds the parts of a report as values, and formats values for people. No HTML here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from typing import Any

import pyarrow as pa

_BYTE_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
_KILO = 1000


class SectionKind(StrEnum):
    """The forms in which the rows of a section are shown."""

    FIGURES = "figures"
    """One row: each column a figure."""
    COLUMNS = "columns"
    """x, value, or x, series, value: columns side by side, the series on top of each other."""
    LINES = "lines"
    """The same as lines."""
    BARS = "bars"
    """label, value, and more columns if there are any: a ranked list with bars."""
    TABLE = "table"
    """Any columns."""


@dataclass(frozen=True, slots=True)
class ReportSection:
    """One part of a report. Rows come in the order in which they are shown."""

    title: str
    kind: SectionKind
    rows: pa.Table
    note: str = ""
    found: str | None = None
    """The number of rows of the query, as text, where `rows` are the first of more."""


@dataclass(frozen=True, slots=True)
class Report:
    """Holds the content of a report."""

    title: str
    subtitle: str
    sections: Sequence[ReportSection]
    footer: str = ""
    made: str = ""
    """The time and the version that made it, in words."""


class InvalidReportSection(ValueError):
    """The rows cannot be shown in this way. The message says what would be needed."""


def check(section: ReportSection) -> None:
    """Raise InvalidReportSection unless the columns are what the kind needs."""
    kinds = [field.type for field in section.rows.schema]
    names = ", ".join(section.rows.schema.names)
    match section.kind:
        case SectionKind.COLUMNS | SectionKind.LINES:
            needs = "x and a number, or x, a series and a number"
            good = len(kinds) in {2, 3} and is_number(kinds[-1])
        case SectionKind.BARS:
            needs = "a label, a number, and whatever else"
            good = len(kinds) >= 2 and is_number(kinds[1])
        case SectionKind.FIGURES:
            needs = "one row"
            good = len(kinds) >= 1 and len(section.rows) == 1
        case SectionKind.TABLE:
            needs, good = "at least one column", bool(kinds)
    if not good:
        raise InvalidReportSection(
            f"section {section.title!r}: {section.kind} needs {needs}; there are {len(section.rows)} rows of {names}"
        )


def is_number(kind: pa.DataType) -> bool:
    """Return whether a column can be drawn."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def text_of(value: Any, column: str = "") -> str:
    """Format a value for people; a column's name marks bytes.

    >>> text_of(1234567), text_of(2_400_000, "sent_bytes"), text_of(0.12345), text_of(None)
    ('1,234,567', '2.4 MB', '0.123', '-')
    """
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int() | float() if _unit(column) == "bytes":
            return size_text(value)
        case int() | float() if _unit(column) == "share":
            return share_text(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if abs(value) >= _KILO else f"{value:.3g}"
        case datetime():
            return value.strftime("%-d %b %Y %H:%M")
        case date():
            return value.strftime("%-d %b %Y")
        case list() | tuple():
            return ", ".join(text_of(inner) for inner in value)
        case dict():
            return " ".join(text_of(inner) for inner in value.values())
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case _:
            return str(value)


def _unit(column: str) -> str:
    """Return the last word of a column's name, which says what it counts."""
    return column.rpartition("_")[2]


def size_text(size_bytes: float) -> str:
    """Format bytes for people.

    >>> size_text(512), size_text(2_400_000), size_text(999_960)
    ('512 B', '2.4 MB', '1.0 MB')
    """
    unit = 0
    while size_bytes >= (_KILO if unit == 0 else 999.95) and unit < len(_BYTE_UNITS) - 1:
        size_bytes /= _KILO
        unit += 1
    return f"{size_bytes:.0f} B" if unit == 0 else f"{size_bytes:.1f} {_BYTE_UNITS[unit]}"


def share_text(share: float) -> str:
    """Format a share for people: what is there is never shown as nothing.

    >>> share_text(0.0002), share_text(0.5), share_text(0)
    ('<0.1%', '50.0%', '0.0%')
    """
    return "<0.1%" if 0 < share < 0.001 else f"{share:.1%}"
