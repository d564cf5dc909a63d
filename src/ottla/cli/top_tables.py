"""Lays out what `ottla top` shows: a table for each kind of thing, in an order that a key or an option selects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from ottla.cli.output import bytes_text, duration_text
from ottla.cli.table import table
from ottla.cli.times import clock_time
from ottla.client.activity import Activity

_ROWS_MAX: Final = 10  # of each table where there is no terminal whose height decides
_HEAD_LINES: Final = 2
_FOOT_LINES: Final = 2
_TABLE_LINES: Final = 2  # an empty line and the heads


class Kind(Enum):
    """The tables; the value is the word of `--show`."""

    BROKERS = "brokers"
    TOPICS = "topics"
    PARTITIONS = "partitions"
    GROUPS = "groups"
    CLIENTS = "clients"
    REQUESTS = "requests"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head, the text of a cell, and what rows are sorted by, the greatest first; texts the least."""

    head: str
    text: Callable[[Any], str]
    sort: Callable[[Any], float | str | None]


def _number(text: str) -> Callable[[float | None], str]:
    return lambda value: "-" if value is None else format(value, text)


_rate, _count, _share, _ms = _number(",.1f"), _number(",.0f"), _number(".0%"), _number(",.1f")


def _column(name: str, head: str, text: Callable[[Any], str] = str) -> Column:
    return Column(head, lambda row: text(getattr(row, name)), lambda row: getattr(row, name))


def _bytes(value: float | None) -> str:
    return "-" if value is None else bytes_text(round(value))


def _lag_change(value: int | None) -> str:
    return "-" if value is None else f"{value:+,}"


COLUMNS: Final[Mapping[Kind, Sequence[Column]]] = MappingProxyType(
    {
        Kind.BROKERS: (
            _column("broker", "broker"),
            _column("address", "address"),
            _column("leaders", "leads"),
            _column("written_per_s", "records/s", _rate),
            _column("bytes_per_s", "bytes/s", _bytes),
            _column("bytes_out_per_s", "read bytes/s", _bytes),
            _column("requests_per_s", "requests/s", _rate),
            _column("processor", "processor", _share),
            _column("loop_delay_ms", "loop ms", _ms),
            _column("loop_stalls", "stalls", _count),
            _column("memory_bytes", "memory", _bytes),
            _column("connections", "connections", _count),
        ),
        Kind.TOPICS: (
            _column("topic", "topic"),
            _column("partitions", "partitions"),
            _column("written_per_s", "written/s", _rate),
            _column("bytes_per_s", "bytes/s", _bytes),
            _column("size_bytes", "size", _bytes),
            _column("busiest_share", "busiest", _share),
        ),
        Kind.PARTITIONS: (
            _column("topic", "topic"),
            _column("partition", "partition"),
            _column("leader", "leader"),
            _column("written_per_s", "written/s", _rate),
            _column("bytes_per_s", "bytes/s", _bytes),
        ),
        Kind.GROUPS: (
            _column("group", "group"),
            _column("state", "state"),
            _column("members", "members"),
            _column("read_per_s", "read/s", _rate),
            _column("lag", "lag", _count),
            _column("lag_s", "lag_time", duration_text),
            _column("lag_change", "change", _lag_change),
            _column("catches_up_s", "catches_up", duration_text),
        ),
        Kind.CLIENTS: (
            _column("client", "client"),
            _column("host", "host"),
            _column("group", "group"),
            _column("partitions", "partitions"),
            _column("read_per_s", "read/s", _rate),
        ),
        Kind.REQUESTS: (
            _column("api", "request"),
            _column("requests_per_s", "requests/s", _rate),
            _column("bytes_per_s", "bytes/s", _bytes),
            _column("mean_ms", "mean ms", _ms),
        ),
    }
)
KEYS: Final[Mapping[str, tuple[Kind, ...]]] = MappingProxyType(
    {
        "a": (Kind.BROKERS, Kind.TOPICS, Kind.GROUPS, Kind.CLIENTS),
        "b": (Kind.BROKERS,),
        "t": (Kind.TOPICS,),
        "p": (Kind.PARTITIONS,),
        "g": (Kind.GROUPS,),
        "c": (Kind.CLIENTS,),
        "r": (Kind.REQUESTS,),
    }
)
_HELP: Final = (
    "a all  b brokers  t topics  p partitions  g groups  c clients  r requests  s sorts by the next column  q ends"
)


@dataclass(slots=True)
class View:
    """The tables that are shown, and the column that they are sorted by; empty for the order of the rates."""

    kinds: tuple[Kind, ...] = KEYS["a"]
    sort: str = ""

    def press(self, key: str) -> bool:
        """Take a key; return whether the view is to end."""
        if key in KEYS:
            self.kinds, self.sort = KEYS[key], ""
        elif key == "s":
            heads = ["", *(column.head for column in COLUMNS[self.kinds[0]])]
            self.sort = heads[(heads.index(self.sort) + 1) % len(heads)] if self.sort in heads else ""
        return key == "q"

    def lines(self, activity: Activity, *, width: int | None, height: int | None, has_keys: bool = False) -> list[str]:
        """Return the lines of a sample; with a height each table has as many rows as fit."""
        shown = [(kind, rows) for kind in self.kinds if (rows := rows_of(activity, kind))]
        lines = _head(activity)
        rows_max = _ROWS_MAX
        if height is not None and shown:
            free = height - _HEAD_LINES - (_FOOT_LINES if has_keys else 0) - _TABLE_LINES * len(shown)
            rows_max = max(1, free // len(shown))
        for kind, rows in shown:
            columns = COLUMNS[kind]
            in_order = sorted_rows(rows, columns, self.sort)[:rows_max]
            cells = [[column.text(row) for column in columns] for row in in_order]
            marked = [f"{column.head}*" if column.head == self.sort else column.head for column in columns]
            lines += ["", *table(cells, marked, width_max=width).splitlines()]
        if not shown:
            lines += ["", f"nothing of {', '.join(kind.value for kind in self.kinds)} is known here"]
        return [*lines, "", _HELP] if has_keys else lines


def rows_of(activity: Activity, kind: Kind) -> Sequence[Any]:
    """Return the rows of a table in the order of their rates."""
    match kind:
        case Kind.BROKERS:
            return activity.broker_activity
        case Kind.TOPICS:
            return activity.topics
        case Kind.PARTITIONS:
            return activity.partitions
        case Kind.GROUPS:
            return activity.groups
        case Kind.CLIENTS:
            return activity.clients
        case Kind.REQUESTS:
            return activity.apis


def sorted_rows(rows: Sequence[Any], columns: Sequence[Column], head: str) -> Sequence[Any]:
    """Return rows in the order of a column: numbers from the greatest, texts from the least, unknown ones last."""
    column = next((column for column in columns if column.head == head), None)
    if column is None:
        return rows
    known = [row for row in rows if column.sort(row) is not None]
    unknown = [row for row in rows if column.sort(row) is None]
    is_text = any(isinstance(column.sort(row), str) for row in known)
    return [*sorted(known, key=lambda row: column.sort(row) or 0, reverse=not is_text), *unknown]


def _head(activity: Activity) -> list[str]:
    written = sum(topic.written_per_s for topic in activity.topics)
    read = sum(group.read_per_s for group in activity.groups)
    in_bytes = [topic.bytes_per_s for topic in activity.topics if topic.bytes_per_s is not None]
    counts = f"{activity.brokers} brokers, {len(activity.topics)} topics, {len(activity.groups)} groups"
    in_size = f" ({bytes_text(round(sum(in_bytes)))}/s)" if in_bytes else ""
    return [f"{clock_time(activity.wall_ms)}  {counts}", f"{written:,.1f} records/s written{in_size}, {read:,.1f} read"]
