"""Draws numbers over time as a small plot of characters."""

from __future__ import annotations

from collections.abc import Sequence

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def plot(values: Sequence[float], *, width: int, height: int) -> list[str]:
    r"""Return the lines of a plot from 0 to the greatest value; the last value is at the right.

    >>> print("\n".join(plot([0, 1, 2, 4], width=12, height=2)))
    4 ┤   █
    0 ┤ ▄██
    """
    highest = max([*values, 0])
    label_width = len(f"{highest:,.0f}")
    shown = list(values)[-max(1, width - label_width - 2) :]
    lines = []
    for row in range(height):
        label = f"{highest:,.0f}" if row == 0 else "0" if row == height - 1 else ""
        bars = "".join(_bar(value / highest if highest else 0.0, height - 1 - row, height) for value in shown)
        lines.append(f"{label:>{label_width}} ┤{bars}".rstrip())
    return lines


def _bar(share: float, row: int, height: int) -> str:
    """Return the character of a bar in a row, counted from the lowest; what is more than nothing is visible."""
    eighths = share * height * 8 - row * 8
    if row == 0 and share > 0:
        eighths = max(eighths, 1)
    return _EIGHTHS[min(8, max(0, round(eighths)))]
