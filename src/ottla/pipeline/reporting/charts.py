"""Charts as SVG that stretches to the width there is.

Nothing in a drawing may be text, for it is stretched: labels are text beside it, so that they stay the size of text on
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
_KNOWN = {"2xx": "#2f7d5b", "3xx": "#4a78b5", "4xx": "#d9902f", "5xx": "#b8352c", OTHERS: "#8a8a8a"}
_PALETTE = ("#4a78b5", "#d9902f", "#2f7d5b", "#6b5b95", "#b8352c", "#3a8f9e", "#a4702e", "#7a8450")


def colours(names: Sequence[str]) -> list[str]:
    """A colour for each series: the usual one for a known first word of its name."""
    return [_KNOWN.get(name.split(" ")[0], _PALETTE[n % len(_PALETTE)]) for n, name in enumerate(names)]


def columns_chart(content: ChartData, column: str) -> str:
    """Stacked columns, one unit wide each."""
    heights = [sum(values[n] for values in content.values) for n in range(len(content.places))]
    highest = max(heights, default=0)
    if highest <= 0:
        return nothing()
    pieces = []
    for n, place in enumerate(content.places):
        y = float(HEIGHT)
        drawn = []
        for colour, values in zip(colours(content.series), content.values, strict=True):
            height = max(values[n], 0) / highest * HEIGHT
            y -= height
            if height:
                drawn.append(
                    f'<rect x="{n + 0.06:.2f}" y="{y:.3f}" width="0.88" height="{height:.3f}" fill="{colour}"/>'
                )
        title = escape(f"{text_of(place)}: {_tooltip(content, n, column)}")
        pieces.append(f"<g><title>{title}</title>{''.join(drawn)}</g>")
    return _framed(content, "".join(pieces), f"0 0 {len(content.places)} {HEIGHT}", highest, column)


def lines_chart(content: ChartData, column: str) -> str:
    """One line a series."""
    highest = max((max(values, default=0) for values in content.values), default=0)
    if highest <= 0:
        return nothing()
    pieces = []
    for name, colour, values in zip(content.series, colours(content.series), content.values, strict=True):
        points = " ".join(f"{n + 0.5:.2f},{HEIGHT - value / highest * HEIGHT:.3f}" for n, value in enumerate(values))
        pieces.append(
            f"<g><title>{escape(name or column)}</title>"
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" '
            f'vector-effect="non-scaling-stroke" stroke-linejoin="round"/></g>'
        )
    return _framed(content, "".join(pieces), f"0 0 {max(len(content.places), 1)} {HEIGHT}", highest, column)


def bar(share: float) -> str:
    """A bar under a label, its length a share of the widest."""
    return (
        f'<svg viewBox="0 0 100 1" preserveAspectRatio="none"><rect width="{min(max(share, 0), 1) * 100:.2f}" '
        f'height="1" fill="{_PALETTE[0]}"/></svg>'
    )


def nothing() -> str:
    """Return the text of an empty chart."""
    return '<p class="soft">Nothing to show.</p>'


def _tooltip(content: ChartData, n: int, column: str) -> str:
    amounts = [(name, values[n]) for name, values in zip(content.series, content.values, strict=True) if values[n]]
    return ", ".join(f"{name} {number(amount, column)}".strip() for name, amount in amounts) or "0"


def number(amount: float, column: str) -> str:
    """A chart's number as its column's values look."""
    return text_of(int(amount) if amount == int(amount) else amount, column)


def _framed(content: ChartData, pieces: str, box: str, highest: float, column: str) -> str:
    ticks = "".join(f"<span>{escape(_tick(place, content))}</span>" for place in _some(content.places))
    per = "" if content.step is None else f" per {step_text(content.step)}"
    top = f"at most {number(highest, column)} {_plain(column)}".rstrip() + per
    return (
        f'<div class="chart"><span class="top">{escape(top)}</span>'
        f'<svg viewBox="{box}" preserveAspectRatio="none" role="img">{pieces}</svg></div>'
        f'<div class="ticks">{ticks}</div>{_legend(content)}'
    )


def _plain(column: str) -> str:
    return "" if column.endswith("bytes") else column.replace("_", " ")


def _some(places: Sequence[Any]) -> list[Any]:
    """First, middle and last: what fits on a phone."""
    return [places[n] for n in sorted({0, len(places) // 2, len(places) - 1})] if places else []


def _tick(place: Any, content: ChartData) -> str:
    if isinstance(place, datetime):
        whole_days = content.step is not None and content.step.seconds == 0
        return place.strftime("%-d %b" if whole_days else "%-d %b %H:%M")
    return text_of(place)


def _legend(content: ChartData) -> str:
    if list(content.series) in ([""], []):
        return ""
    items = "".join(
        f'<li><i style="background:{colour}"></i>{escape(name)}</li>'
        for name, colour in zip(content.series, colours(content.series), strict=True)
    )
    return f'<ul class="legend">{items}</ul>'
