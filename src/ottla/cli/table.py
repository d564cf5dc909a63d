"""Lays tables out for people: aligned columns, which fit on a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Sequence

_GAP = 2  # spaces between two columns
_TEXT_WIDTH_MIN = 16
_KEYS = frozenset({"broker", "topic", "partition", "group", "name", "from", "id", "member", "directory"})


def table(
    rows: Sequence[Sequence[str]],
    columns: Sequence[str],
    *,
    width_max: int | None = None,
    mark: Callable[[int, str], str] | None = None,
) -> str:
    """Format aligned columns under their names; numbers are aligned to the right.

    A table that is wider than `width_max` has long texts on several lines; if that is not enough, its last columns are
    below, after the first ones again. `mark` gets the number of each row and each line of it, and may color the line.

    >>> print(table([["a", "1"], ["bb", "20"]], ["name", "size_bytes"]))
    NAME  SIZE BYTES
    a              1
    bb            20
    """
    heads = [name.upper().replace("_", " ") for name in columns]
    widths = [max(len(head), *(len(row[i]) for row in rows)) for i, head in enumerate(heads)]
    numeric = {i for i in range(len(heads)) if all(_is_number(row[i]) for row in rows)}
    parts = [list(range(len(columns)))]
    if width_max is not None:
        widths = _narrowed(widths, numeric, width_max)
        parts = _parts(widths, _count_keys(columns), width_max)
    return "\n\n".join(_layout(rows, heads, part, widths, numeric, mark) for part in parts)


def _count_keys(columns: Sequence[str]) -> int:
    """Count the first columns, by which rows are found: at least one."""
    count = 1
    while count < len(columns) - 1 and columns[count] in _KEYS and columns[count - 1] in _KEYS:
        count += 1
    return count


def _narrowed(widths: Sequence[int], numeric: Collection[int], width_max: int) -> list[int]:
    """Return smaller widths for columns with long texts, the longest first, as far as the table needs it."""
    narrow = list(widths)
    texts = [i for i in range(len(narrow)) if i not in numeric]
    while texts and sum(narrow) + _GAP * (len(narrow) - 1) > width_max:
        widest = max(texts, key=lambda i: narrow[i])
        if narrow[widest] <= _TEXT_WIDTH_MIN:
            break
        narrow[widest] -= 1
    return narrow


def _parts(widths: Sequence[int], keys: int, width_max: int) -> list[list[int]]:
    """Divide the columns so that each part fits; each begins with the keys."""
    first = list(range(keys))
    parts = [list(first)]
    for i in range(keys, len(widths)):
        part = parts[-1]
        if sum(widths[at] + _GAP for at in part) + widths[i] > width_max and len(part) > keys:
            part = list(first)
            parts.append(part)
        part.append(i)
    return parts


def _layout(
    rows: Sequence[Sequence[str]],
    heads: Sequence[str],
    part: Sequence[int],
    widths: Sequence[int],
    numeric: Collection[int],
    mark: Callable[[int, str], str] | None,
) -> str:
    lines: list[str] = []
    for number, row in enumerate((heads, *rows), start=-1):
        cells = [[row[i]] if len(row[i]) <= widths[i] else textwrap.wrap(row[i], widths[i]) for i in part]
        for at in range(max(map(len, cells))):
            texts = [cell[at] if at < len(cell) else "" for cell in cells]
            line = (" " * _GAP).join(
                text.rjust(widths[i]) if i in numeric else text.ljust(widths[i])
                for i, text in zip(part, texts, strict=True)
            )
            lines.append(line.rstrip() if number < 0 or mark is None else mark(number, line.rstrip()))
    return "\n".join(lines)


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(".", "", 1).replace("-", "", 1).replace(",", "").isdecimal()
