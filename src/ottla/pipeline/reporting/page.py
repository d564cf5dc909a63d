"""Renders the page: one HTML file without external resources, for a phone, a screen and paper.

It asks for nothing from outside and runs nothing; its own policy forbids both.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

import pyarrow as pa

from ottla.pipeline.reporting import charts
from ottla.pipeline.reporting.series import chart_data
from ottla.pipeline.reporting.style import STYLE
from ottla.pipeline.reporting.values import Report, ReportSection, SectionKind, check, is_number, text_of

_FIGURE_LETTERS = 9
_CONTENTS_FROM = 4


class FinishedSection(NamedTuple):
    """A section that is HTML already: it stands last, its conclusion at the top of the page."""

    title: str
    name: str  # its anchor
    body: str
    conclusion: str


def render(report: Report, last: FinishedSection | None = None) -> str:
    """Return the whole file. Raises InvalidReportSection."""
    sections = [*_sections(report.sections), *([frame(last.title, last.body, name=last.name)] if last else ())]
    body = "\n".join(section for section in sections if section)
    parts = [_header(report, last), _contents(report.sections, last), f"<main>{body}</main>", _footer(report)]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(report.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body>\n</html>\n"
    )


def _header(report: Report, last: FinishedSection | None) -> str:
    made = f'<p class="soft">{escape(report.made)}</p>' if report.made else ""
    conclusion = f'<p><a href="#{escape(last.name)}">{last.conclusion}</a></p>' if last else ""
    title = f'<h1>{escape(report.title)}</h1><p class="soft">{escape(report.subtitle)}</p>'
    return f"<header>{title}{conclusion}{made}</header>"


def _contents(sections: Sequence[ReportSection], last: FinishedSection | None) -> str:
    """Return links to the sections, where there are enough of them to scroll."""
    titled = [(f"section-{n}", section.title) for n, section in enumerate(sections) if section.title]
    if last:
        titled.append((last.name, last.title))
    if len(titled) < _CONTENTS_FROM:
        return ""
    links = "".join(f'<li><a href="#{escape(name)}">{escape(title)}</a></li>' for name, title in titled)
    return f'<nav aria-label="Contents"><ul>{links}</ul></nav>'


def _footer(report: Report) -> str:
    return f"<footer>{escape(report.footer)} Times are UTC.</footer>"


def _sections(sections: Sequence[ReportSection]) -> Iterator[str]:
    """Yield the sections in order; consecutive ranked lists are set in pairs where the width allows."""
    for ranked, group in itertools.groupby(enumerate(sections), lambda numbered: numbered[1].kind is SectionKind.BARS):
        parts = [_section(section, f"section-{n}") for n, section in group]
        if ranked and len(parts) > 1:
            yield f'<div class="two">{"".join(parts)}</div>'
        else:
            yield from parts


def _section(section: ReportSection, name: str) -> str:
    check(section)
    if section.kind is SectionKind.FIGURES:
        return _figures(section, name)
    note = section.note
    if section.found is not None:
        note = f"{len(section.rows):,} of {section.found}. {note}".rstrip()
    return frame(section.title, _body(section), note, name=name)


def frame(title: str, body: str, note: str = "", *, name: str) -> str:
    """Return a section of finished HTML; `name` is its anchor."""
    noted = f'<p class="soft">{escape(note)}</p>' if note else ""
    return f'<section id="{escape(name)}"><h2>{escape(title)}</h2>{body}{noted}</section>'


def _body(section: ReportSection) -> str:
    rows = section.rows
    match section.kind:
        case SectionKind.COLUMNS:
            return charts.columns_chart(chart_data(rows), rows.column_names[-1], section.title)
        case SectionKind.LINES:
            return charts.lines_chart(chart_data(rows), rows.column_names[-1], section.title)
        case SectionKind.BARS:
            return _bars(rows, section.title)
        case _:
            return table(rows, caption=section.title)


def _figures(section: ReportSection, name: str) -> str:
    (row,) = section.rows.to_pylist()
    boxes = "".join(
        f"<div><b{_long(text := text_of(value, label))}>{escape(text)}</b><span>{escape(_label(label))}</span></div>"
        for label, value in row.items()
    )
    title = f"<h2>{escape(section.title)}</h2>" if section.title else ""
    return f'<section id="{name}">{title}<div class="figures">{boxes}</div></section>'


def _long(figure: str) -> str:
    """Return a class for a figure of many letters, as a time, which is set smaller: it would fill its box alone."""
    return ' class="long"' if len(figure) > _FIGURE_LETTERS else ""


def _bars(rows: pa.Table, caption: str) -> str:
    label, value = rows.column_names[:2]
    found = rows.to_pylist()
    highest = max((float(row[value] or 0) for row in found), default=0) or 1
    body = "".join(
        f'<tr><td class="name">{escape(text_of(row[label]))}{charts.bar(float(row[value] or 0) / highest)}</td>'
        + "".join(f'<td class="n">{escape(text_of(row[name], name))}</td>' for name in rows.column_names[1:])
        + "</tr>"
        for row in found
    )
    return _table_of(_head(rows, numbers_from=1), body, caption) if found else charts.nothing()


def table(rows: pa.Table, *, caption: str, sums: bool = False) -> str:
    """Format rows as they are, the last as the sum of the others if `sums`; a table wider than the page scrolls."""
    last = len(rows) - 1 if sums else -1
    body = "".join(
        ('<tr class="sum">' if n == last else "<tr>")
        + "".join(_cell(row[name], name, rows) for name in rows.column_names)
        + "</tr>"
        for n, row in enumerate(rows.to_pylist())
    )
    if not len(rows):
        return charts.nothing()
    region = f'<div class="wide" role="region" tabindex="0" aria-label="{escape(caption)}">'
    return f"{region}{_table_of(_head(rows), body, caption)}</div>"


def _cell(value: Any, name: str, rows: pa.Table) -> str:
    kind = "n" if is_number(rows.schema.field(name).type) else "name"
    return f'<td class="{kind}">{escape(text_of(value, name))}</td>'


def _head(rows: pa.Table, numbers_from: int | None = None) -> str:
    cells = []
    for n, field in enumerate(rows.schema):
        numeric = is_number(field.type) if numbers_from is None else n >= numbers_from
        kind = ' class="n"' if numeric else ""
        cells.append(f'<th scope="col"{kind}>{escape(_label(field.name))}</th>')
    return f"<tr>{''.join(cells)}</tr>"


def _table_of(head: str, body: str, caption: str) -> str:
    return f"<table><caption>{escape(caption)}</caption><thead>{head}</thead><tbody>{body}</tbody></table>"


def _label(name: str) -> str:
    """Return a column's name as words; what the value shows by itself is left out.

    >>> _label("sent_bytes"), _label("window_start")
    ('sent', 'window start')
    """
    words = name.split("_")
    return " ".join(words[:-1] if len(words) > 1 and words[-1] == "bytes" else words)
