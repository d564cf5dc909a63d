"""Renders charts as SVG that scales to the available width.

Nothing in a drawing may be text, for it is scaled: labels are text beside it, so that they stay the size of text on
every screen. Everything from a table is escaped: any client may have sent it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from html import escape
from typing import Any

from ottla.pipeline.reporting.series import OTHERS, ChartData, step_text
from ottla.pipeline.reporting.values import text_of

HEIGHT = 100
_VISIBLE = 0.8  # of HEIGHT: more than a pixel of a chart that is 160 pixels high
_KNOWN = {"2xx": "green", "3xx": "blue", "4xx": "orange", "5xx": "red", OTHERS: "grey"}
_PALETTE = ("blue", "orange", "green", "purple", "red", "teal", "brown", "olive")


def colours(names: Sequence[str]) -> list[str]:
    """Return a colour for each series: the usual one for a known first word of its name.

    A colour is a variable of the page's style, which has a value for light pages and one for dark ones.
    """
    chosen = [_KNOWN.get(name.split(" ")[0], _PALETTE[n % len(_PALETTE)]) for n, name in enumerate(names)]
    return [f"var(--{name})" for name in chosen]


def columns_chart(content: ChartData, column: str, title: str = "") -> str:
    """Draw stacked columns, one unit wide each. `title` is that of the section."""
    heights = [sum(values[n] for values in content.values) for n in range(len(content.x_values))]
    highest = max(heights, default=0)
    if highest <= 0:
        return nothing()
    pieces = []
    for n, x in enumerate(content.x_values):
        y = float(HEIGHT)
        drawn = []
        parts = _visible([max(values[n], 0) / highest * HEIGHT for values in content.values])
        for colour, height in zip(colours(content.series), parts, strict=True):
            y -= height
            if height:
                drawn.append(
                    f'<rect x="{n + 0.06:.2f}" y="{y:.3f}" width="0.88" height="{height:.3f}" style="fill:{colour}"/>'
                )
        pieces.append(f"<g><title>{escape(_values_at(content, n, x, column))}</title>{''.join(drawn)}</g>")
    return _framed(content, "".join(pieces), f"0 0 {len(content.x_values)} {HEIGHT}", highest, column, title)


def _visible(heights: list[float]) -> list[float]:
    """Give small parts of a column the height of a pixel, at the cost of the largest part.

    >>> _visible([99.97, 0.03, 0.0])
    [99.2, 0.8, 0.0]
    """
    shown = [max(height, _VISIBLE) if height else 0.0 for height in heights]
    largest = shown.index(max(shown))
    shown[largest] = round(shown[largest] - max(sum(shown) - max(sum(heights), _VISIBLE), 0), 6)
    return shown


def lines_chart(content: ChartData, column: str, title: str = "") -> str:
    """Draw one line a series. `title` is that of the section."""
    highest = max((max(values, default=0) for values in content.values), default=0)
    if highest <= 0:
        return nothing()
    pieces = []
    for name, colour, values in zip(content.series, colours(content.series), content.values, strict=True):
        points = " ".join(f"{n + 0.5:.2f},{HEIGHT - value / highest * HEIGHT:.3f}" for n, value in enumerate(values))
        pieces.append(
            f"<g><title>{escape(name or column)}</title>"
            f'<polyline points="{points}" fill="none" style="stroke:{colour}" stroke-width="2" '
            f'vector-effect="non-scaling-stroke" stroke-linejoin="round"/></g>'
        )
    return _framed(content, "".join(pieces), f"0 0 {max(len(content.x_values), 1)} {HEIGHT}", highest, column, title)


def bar(share: float) -> str:
    """Draw a bar under a label, its length a share of the widest."""
    return (
        f'<svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{min(max(share, 0), 1) * 100:.2f}" height="1" style="fill:var(--{_PALETTE[0]})"/></svg>'
    )


def nothing() -> str:
    """Return the text of an empty chart."""
    return '<p class="soft">Nothing to show.</p>'


def _values_at(content: ChartData, n: int, x: Any, column: str) -> str:
    amounts = [(name, values[n]) for name, values in zip(content.series, content.values, strict=True) if values[n]]
    shown = ", ".join(f"{name} {number(amount, column)}".strip() for name, amount in amounts) or "0"
    return f"{text_of(x)}: {shown}"


def number(amount: float, column: str) -> str:
    """Format a chart's number as its column's values look."""
    return text_of(int(amount) if amount == int(amount) else amount, column)


def _framed(content: ChartData, pieces: str, box: str, highest: float, column: str, title: str) -> str:
    per = "" if content.step is None else f" per {step_text(content.step)}"
    top = f"at most {number(highest, column)} {_plain(column)}".rstrip() + per
    name = f"{title or column}: {top}, from {text_of(content.x_values[0])} to {text_of(content.x_values[-1])}"
    return (
        f'<figure><div class="chart"><span class="top">{escape(top)}</span>'
        f'<svg viewBox="{box}" preserveAspectRatio="none" role="img" aria-label="{escape(name)}">{pieces}</svg></div>'
        f'<div class="ticks" aria-hidden="true">{_ticks(content)}</div>'
        f"{_legend(content)}{_value_table(content, column, name)}"
        "</figure>"
    )


def _value_table(content: ChartData, column: str, name: str) -> str:
    """Return the chart's values as a table that a keyboard opens."""
    heads = "".join(f'<th scope="col" class="n">{escape(series or _plain(column))}</th>' for series in content.series)
    rows = "".join(
        f'<tr><th scope="row">{escape(text_of(x))}</th>'
        + "".join(f'<td class="n">{escape(number(values[n], column))}</td>' for values in content.values)
        + "</tr>"
        for n, x in enumerate(content.x_values)
    )
    return (
        f'<details><summary>Values</summary><div class="wide" role="region" tabindex="0" aria-label="{escape(name)}">'
        f'<table><thead><tr><th scope="col"></th>{heads}</tr></thead><tbody>{rows}</tbody></table></div></details>'
    )


def _plain(column: str) -> str:
    return "" if column.endswith("bytes") else column.replace("_", " ")


def _ticks(content: ChartData) -> str:
    """Return labels for five values of x, the first and the last among them, each with a mark below its column.

    Five fit on a phone. The first label begins at its mark and the last one ends there, so that both stay on the page.
    """
    count = len(content.x_values)
    last = count - 1
    shown = sorted({last * quarter // 4 for quarter in range(5)}) if count else []
    pieces = []
    for n in shown:
        side = ' class="first"' if n == 0 else ' class="last"' if n == last else ""
        middle = (n + 0.5) / count * 100
        pieces.append(f'<span{side} style="left:{middle:.3f}%">{escape(_tick(content.x_values[n], content))}</span>')
    return "".join(pieces)


def _tick(x: Any, content: ChartData) -> str:
    if isinstance(x, datetime):
        whole_days = content.step is not None and content.step.seconds == 0
        return x.strftime("%-d %b" if whole_days else "%-d %b %H:%M")
    return text_of(x)


def _legend(content: ChartData) -> str:
    if list(content.series) in ([""], []):
        return ""
    items = "".join(
        f'<li><i style="background:{colour}"></i>{escape(name)}</li>'
        for name, colour in zip(content.series, colours(content.series), strict=True)
    )
    return f'<ul class="legend">{items}</ul>'
