"""Prints the output of commands: tables, JSON documents and progress bars."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ottla.cli.options import OutputFormat
from ottla.cli.table import table
from ottla.core.clock import Clock, SystemClock

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_SHOW_AFTER_S = 1.0  # a shorter command shows no progress bar
_REFRESH_S = 0.1
_COUNTS = frozenset(
    {
        "records",
        "lag",
        "partitions",
        "members",
        "leaders",
        "preferred",
        "produced",
        "in_log",
        "loaded",
        "late",
        "quarantined",
        "skipped",
        "deleted",
        "missing",
        "duplicated",
        "waiting",
    }
)
"""The columns with counts. Ids and offsets have no separators: they are copied into other commands."""

_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")


def show_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    shape: OutputFormat,
    *,
    empty: str = "",
    is_alarming: Callable[[Mapping[str, Any]], bool] | None = None,
) -> None:
    """Print a list: the named columns as a table, or every field as JSON.

    On a terminal the table fits, counts have separators, and rows of what is not well are red.
    """
    if shape is OutputFormat.JSON:
        show_json(list(rows))
    elif rows:
        width_max = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        texts = [
            [_cell_of(name, row.get(name), with_separators=width_max is not None) for name in columns] for row in rows
        ]
        alarming = {n for n, row in enumerate(rows) if is_alarming(row)} if is_alarming is not None else set[int]()
        mark = (lambda number, line: alert(line) if number in alarming else line) if alarming else None
        print(table(texts, columns, width_max=width_max, mark=mark))
    elif empty:
        print(empty, file=sys.stderr)


def _cell_of(column: str, value: Any, *, with_separators: bool) -> str:
    is_count = with_separators and column in _COUNTS and isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if is_count else cell(value)


def show_fields(fields: Mapping[str, Any], shape: OutputFormat) -> None:
    """Print the fields of one item: as lines, or as a JSON object."""
    if shape is OutputFormat.JSON:
        show_json(fields)
        return
    width = max(len(name) for name in fields)
    for name, value in fields.items():
        print(f"{name.replace('_', ' '):<{width}}  {cell(value)}")


def alert(text: str) -> str:
    """Return a text in red for a terminal, for what is not well; NO_COLOR turns that off."""
    is_colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return f"\x1b[31m{text}\x1b[0m" if is_colored else text


class ItemResult(NamedTuple):
    """The result of a command for one item: `deleted`, `would delete`; `text` replaces the line printed for people."""

    name: str
    result: str
    text: str = ""


def show_results(results: Iterable[ItemResult], shape: OutputFormat) -> None:
    """Print what was done: a line for each item, or a list of objects with `name` and `result`."""
    if shape is OutputFormat.JSON:
        show_json([{"name": result.name, "result": result.result} for result in results])
        return
    for each in results:
        print(each.text or f"{each.result} {each.name}")


def show_json(value: Any) -> None:
    """Print a JSON document."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def cell(value: Any) -> str:
    """Format a value for a table.

    >>> cell([1, 2]), cell(None), cell(True), cell(1.25)
    ('1,2', '-', 'yes', '1.2')
    """
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.1f}"
        case list() | tuple():
            return ",".join(cell(item) for item in value) or "-"
        case _:
            return str(value)


def bytes_text(size_bytes: int | None) -> str:
    """Format a size in bytes; "-" if unknown.

    >>> bytes_text(1536), bytes_text(12), bytes_text(-1)
    ('1.5 KB', '12 B', '-')
    """
    if size_bytes is None or size_bytes < 0:
        return "-"
    size = float(size_bytes)
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def duration_text(seconds: float | None) -> str:
    """Format a duration; "-" if unknown.

    >>> duration_text(0), duration_text(75), duration_text(4000), duration_text(None)
    ('0s', '1m15s', '1h6m', '-')
    """
    if seconds is None:
        return "-"
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f}s" if 0 < seconds < 10 else f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600}h"


class ProgressBar:
    """A progress bar on standard error, shown after a second if standard error is a terminal."""

    def __init__(
        self, label: str, *, total: int | None = None, visible: bool = True, clock: Clock | None = None
    ) -> None:
        self._label = label
        self._total = total
        self._clock = clock or SystemClock()
        self._next_at = self._clock.monotonic() + _SHOW_AFTER_S
        self._visible = visible and sys.stderr.isatty()
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int) -> None:
        """Set the number of completed units; cheap, so it may be called often."""
        if not self._visible or (now := self._clock.monotonic()) < self._next_at:
            return
        self._next_at = now + _REFRESH_S
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._label, total=self._total)
            self._bar.start()
        assert self._task is not None
        self._bar.update(self._task, completed=done)
