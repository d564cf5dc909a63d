"""The report: one HTML file that needs nothing else, readable on a phone, on a screen and on paper.

Charts over time are SVG stretched to the width there is; their labels are text beside them, so that they stay the size
of text on every screen. Everything from a log is escaped: paths and clients are whatever somebody out there sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from html import escape

from ottla.pipeline.balance import BalanceSheet, PartitionBooks
from ottla.pipeline.summary import Bar, Ranked, Summary

CLASS_COLOURS = {"2xx": "#2f7d5b", "3xx": "#4a78b5", "4xx": "#d9902f", "5xx": "#b8352c"}
_OTHER_COLOUR = "#8a8a8a"
_CHART_HEIGHT = 100
_BYTE_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")
_MEANING = {"2xx": "served", "3xx": "moved or unchanged", "4xx": "client errors", "5xx": "server errors"}

_STYLE = """
:root { --ink: #1d2327; --soft: #5c666d; --line: #d9dee1; --paper: #fff; --tint: #f4f6f7; --bar: #4a78b5; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.2rem 1rem 3rem; background: var(--paper); color: var(--ink);
  font: 16px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0; }
h2 { font-size: 1.05rem; margin: 0 0 .7rem; }
.soft { color: var(--soft); }
header p { margin: .3rem 0 0; }
section { margin-top: 2rem; break-inside: avoid; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(8rem, 1fr)); gap: .6rem; }
.figures div { background: var(--tint); border-radius: .4rem; padding: .6rem .8rem; }
.figures b { display: block; font-size: 1.45rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.figures span { color: var(--soft); font-size: .85rem; }
.chart { border-bottom: 1px solid var(--line); position: relative; padding-top: 1.3rem; }
.chart .top { position: absolute; top: 0; left: 0; font-size: .8rem; color: var(--soft); }
.chart svg { display: block; width: 100%; height: 10rem; border-top: 1px dashed var(--line); }
.ticks { display: flex; justify-content: space-between; font-size: .8rem; color: var(--soft); margin-top: .25rem; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .85rem; margin: .6rem 0 0; padding: 0; }
.legend li { list-style: none; }
.legend i, td i { display: inline-block; width: .75em; height: .75em; border-radius: .15em; margin-right: .4em; }
.mix svg { display: block; width: 100%; height: 1.6rem; border-radius: .3rem; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 0 2.5rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: .8rem; vertical-align: bottom; }
th, td { padding: .3rem .5rem .3rem 0; border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; padding-right: 0; padding-left: .6rem; white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
tr.sum td { font-weight: 600; border-top: 2px solid var(--line); }
td.name { overflow-wrap: anywhere; min-width: 9rem; }
td.name svg { display: block; width: 100%; height: .4rem; margin-top: .2rem; }
.wide { overflow-x: auto; }
.wide th.n { white-space: normal; }
@media (max-width: 30rem) {
  .wide table { font-size: .76rem; }
  .wide th { font-size: .7rem; }
  .wide th, .wide td { padding: .3rem 0 .3rem .35rem; }
  .wide th:first-child, .wide td:first-child { padding-left: 0; }
}
.good { color: #1f6b4a; } .bad { color: #a32a22; }
footer { margin-top: 2.5rem; font-size: .85rem; color: var(--soft); }
@media print {
  @page { size: A4; margin: 14mm; }
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  section { margin-top: 1.3rem; }
  .figures div { border: 1px solid var(--line); }
  .two { grid-template-columns: 1fr 1fr; gap: 0 1.5rem; }
  .chart svg { height: 7rem; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""


def render(summary: Summary, sheet: BalanceSheet | None, *, title: str, source: str) -> str:
    """The whole file. `source` says in a few words what was counted."""
    parts = [
        _header(summary, title, source),
        _figures(summary),
        _traffic_over_time(summary),
        _bytes_over_time(summary),
        _status_mix(summary),
        '<div class="two">',
        _top_list("Top paths", "path", summary.paths),
        _top_list("Top clients", "client", summary.top_clients),
        "</div>",
        "" if sheet is None else _books(sheet),
        "<footer>Made by <b>ottla</b> from the lake table; times are UTC.</footer>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body>\n</html>\n"
    )


def size_text(size_bytes: float) -> str:
    """Bytes for people.

    >>> size_text(512), size_text(2_400_000), size_text(999_960)
    ('512 B', '2.4 MB', '1.0 MB')
    """
    unit = 0
    while size_bytes >= (1000 if unit == 0 else 999.95) and unit < len(_BYTE_UNITS) - 1:
        size_bytes /= 1000
        unit += 1
    return f"{size_bytes:.0f} B" if unit == 0 else f"{size_bytes:.1f} {_BYTE_UNITS[unit]}"


def step_text(step: timedelta) -> str:
    """A step for people.

    >>> step_text(timedelta(minutes=5)), step_text(timedelta(hours=1)), step_text(timedelta(days=7))
    ('5 minutes', 'hour', '7 days')
    """
    minutes = int(step.total_seconds()) // 60
    for size, name in ((1440, "day"), (60, "hour"), (1, "minute")):
        if minutes % size == 0:
            count = minutes // size
            return name if count == 1 else f"{count} {name}s"
    raise AssertionError("a step is whole minutes")


def share_text(share: float) -> str:
    """A share for people: what is there is never shown as nothing.

    >>> share_text(0.0002), share_text(0.5), share_text(0)
    ('<0.1%', '50.0%', '0.0%')
    """
    return "<0.1%" if 0 < share < 0.001 else f"{share:.1%}"


def _header(summary: Summary, title: str, source: str) -> str:
    if summary.first is None or summary.last is None:
        period = "no requests"
    else:
        period = f"{_moment(summary.first)} to {_moment(summary.last)}"
    return f'<header><h1>{escape(title)}</h1><p class="soft">{escape(period)} &middot; {escape(source)}</p></header>'


def _figures(summary: Summary) -> str:
    share = summary.errors / summary.requests if summary.requests else 0
    figures = (
        (f"{summary.requests:,}", "requests"),
        (f"{summary.errors:,}", f"errors ({share:.1%})"),
        (f"{summary.clients:,}", "clients"),
        (size_text(summary.bytes), "sent"),
    )
    boxes = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for value, name in figures)
    return f'<section class="figures">{boxes}</section>'


def _traffic_over_time(summary: Summary) -> str:
    classes = _classes(summary)
    highest = max((sum(bar.requests.values()) for bar in summary.bars), default=0)
    stacks = [[(_colour(name), bar.requests.get(name, 0)) for name in classes] for bar in summary.bars]
    titles = [f"{_moment(bar.start)}: {sum(bar.requests.values()):,} requests" for bar in summary.bars]
    chart = _time_chart(summary.bars, stacks, titles, highest, f"at most {highest:,} requests")
    return f"<section><h2>Traffic, requests per {step_text(summary.step)}</h2>{chart}{_legend(classes)}</section>"


def _bytes_over_time(summary: Summary) -> str:
    highest = max((bar.bytes for bar in summary.bars), default=0)
    stacks = [[("#6b5b95", bar.bytes)] for bar in summary.bars]
    titles = [f"{_moment(bar.start)}: {size_text(bar.bytes)}" for bar in summary.bars]
    chart = _time_chart(summary.bars, stacks, titles, highest, f"at most {size_text(highest)}")
    return f"<section><h2>Bytes sent per {step_text(summary.step)}</h2>{chart}</section>"


def _time_chart(
    bars: Sequence[Bar], stacks: Sequence[Sequence[tuple[str, int]]], titles: Sequence[str], highest: int, top: str
) -> str:
    """Stacked bars, one unit wide each; the drawing is stretched, so nothing in it may be text."""
    if not bars or not highest:
        return '<p class="soft">Nothing to show.</p>'
    drawn = []
    for place, (stack, title) in enumerate(zip(stacks, titles, strict=True)):
        y = float(_CHART_HEIGHT)
        rectangles = []
        for colour, value in stack:
            height = value / highest * _CHART_HEIGHT
            y -= height
            if value:
                rectangles.append(
                    f'<rect x="{place + 0.06:.2f}" y="{y:.3f}" width="0.88" height="{height:.3f}" fill="{colour}"/>'
                )
        drawn.append(f"<g><title>{escape(title)}</title>{''.join(rectangles)}</g>")
    box = f"0 0 {len(bars)} {_CHART_HEIGHT}"
    ticks = "".join(f"<span>{_day(time)}</span>" for time in _ticks(bars))
    return (
        f'<div class="chart"><span class="top">{escape(top)}</span>'
        f'<svg viewBox="{box}" preserveAspectRatio="none" role="img">{"".join(drawn)}</svg></div>'
        f'<div class="ticks">{ticks}</div>'
    )


def _ticks(bars: Sequence[Bar]) -> Iterable[datetime]:
    """First, middle and last: what fits on a phone."""
    return [bars[i].start for i in sorted({0, len(bars) // 2, len(bars) - 1})]


def _status_mix(summary: Summary) -> str:
    classes = _classes(summary)
    of_class = {name: sum(s.requests for s in summary.statuses if _class_of(s.value) == name) for name in classes}
    total = sum(of_class.values())
    if not total:
        return ""
    x = 0.0
    pieces = []
    for name, count in of_class.items():
        width = count / total * 1000
        title = f"<title>{name}: {count:,} ({count / total:.1%})</title>"
        pieces.append(f'<rect x="{x:.2f}" y="0" width="{width:.2f}" height="10" fill="{_colour(name)}">{title}</rect>')
        x += width
    rows = "".join(
        f'<tr><td><i style="background:{_colour(_class_of(s.value))}"></i>{escape(s.value)}</td>'
        f'<td class="soft">{_MEANING.get(_class_of(s.value), "")}</td>'
        f'<td class="n">{s.requests:,}</td><td class="n">{escape(share_text(s.requests / total))}</td></tr>'
        for s in summary.statuses
    )
    return (
        '<section class="mix"><h2>Status mix</h2>'
        f'<svg viewBox="0 0 1000 10" preserveAspectRatio="none" role="img">{"".join(pieces)}</svg>'
        f'<table><tr><th>status</th><th></th><th class="n">requests</th><th class="n">share</th></tr>{rows}</table>'
        "</section>"
    )


def _top_list(heading: str, column: str, rows: Sequence[Ranked]) -> str:
    highest = max((row.requests for row in rows), default=0)
    body = "".join(
        f'<tr><td class="name">{escape(row.value)}'
        f'<svg viewBox="0 0 100 1" preserveAspectRatio="none"><rect width="{row.requests / highest * 100:.2f}" '
        f'height="1" fill="#4a78b5"/></svg></td>'
        f'<td class="n">{row.requests:,}</td><td class="n">{size_text(row.bytes)}</td></tr>'
        for row in rows
    )
    head = f'<tr><th>{column}</th><th class="n">requests</th><th class="n">sent</th></tr>'
    return f"<section><h2>{heading}</h2><table>{head}{body}</table></section>"


def _books(sheet: BalanceSheet) -> str:
    columns: tuple[tuple[str, Callable[[PartitionBooks], int]], ...] = (
        ("lines read", lambda b: b.read),
        ("acknowl&shy;edged", lambda b: b.acknowledged),
        ("in the log", lambda b: b.in_log),
        ("in the lake", lambda b: b.in_lake),
        ("quaran&shy;tined", lambda b: b.quarantined),
    )
    head = "<tr><th>parti&shy;tion</th>" + "".join(f'<th class="n">{name}</th>' for name, _ in columns) + "</tr>"
    body = "".join(
        ('<tr class="sum"><td>all</td>' if line.partition < 0 else f"<tr><td>{line.partition}</td>")
        + "".join(f'<td class="n">{of(line):,}</td>' for _, of in columns)
        + "</tr>"
        for line in (*sheet.lines, sheet.total())
    )
    faults = "".join(f"<li>{escape(fault)}</li>" for fault in sheet.faults)
    verdict = (
        '<p class="good">The books balance: nothing was lost and nothing counted twice.</p>'
        if sheet.balanced
        else f'<p class="bad">The books do not balance:</p><ul class="bad">{faults}</ul>'
    )
    table = f'<div class="wide"><table>{head}{body}</table></div>'
    return f"<section><h2>Balance sheet of this run</h2>{table}{verdict}</section>"


def _legend(classes: Iterable[str]) -> str:
    items = "".join(f'<li><i style="background:{_colour(c)}"></i>{c} {_MEANING.get(c, "")}</li>' for c in classes)
    return f'<ul class="legend">{items}</ul>'


def _classes(summary: Summary) -> list[str]:
    """Good news at the bottom of a stack, errors on top."""
    return sorted({_class_of(status.value) for status in summary.statuses})


def _class_of(status: str) -> str:
    return f"{status[:1]}xx"


def _colour(status_class: str) -> str:
    return CLASS_COLOURS.get(status_class, _OTHER_COLOUR)


def _moment(time: datetime) -> str:
    return time.strftime("%-d %b %Y %H:%M")


def _day(time: datetime) -> str:
    return time.strftime("%-d %b %H:%M")
