"""The balance sheets at the end of a report."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import pyarrow as pa

from ottla.pipeline.audit.format import partition_rows, verdict
from ottla.pipeline.audit.model import Sheet
from ottla.pipeline.reporting.page import frame, table


def books_section(sheets: Sequence[Sheet]) -> str:
    """One section of HTML for all topics; "" for none."""
    parts = []
    for sheet in sheets:
        first, *rest = verdict(sheet)
        colour = "good" if sheet.balanced else "bad"
        told = f'<p class="{colour}"><b>{escape(first)}</b> {escape("; ".join(rest))}</p>'
        heading = f"<h3>{escape(sheet.topic)}</h3>" if len(sheets) > 1 else ""
        parts.append(heading + table(pa.Table.from_pylist(partition_rows(sheet)), sums=True) + told)
    return frame("The books", "".join(parts)) if parts else ""
