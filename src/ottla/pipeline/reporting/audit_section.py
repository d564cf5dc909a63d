"""Renders the audit at the end of a report."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import pyarrow as pa

from ottla.pipeline.audit.format import partition_rows, verdict
from ottla.pipeline.audit.model import TopicAudit
from ottla.pipeline.reporting.page import FinishedSection, table


def audit_section(topic_audits: Sequence[TopicAudit]) -> FinishedSection | None:
    """Return one section for all topics, with the verdict on each as its conclusion; None without a topic."""
    if not topic_audits:
        return None
    parts, verdicts = [], []
    for topic_audit in topic_audits:
        first, *rest = verdict(topic_audit)
        colour = "good" if topic_audit.balanced else "bad"
        topic = f"{escape(topic_audit.topic)}: " if len(topic_audits) > 1 else ""
        verdicts.append(f'{topic}<b class="{colour}">{escape(first.rstrip(":"))}</b>')
        rows = pa.Table.from_pylist(partition_rows(topic_audit))
        parts += [
            f"<h3>{escape(topic_audit.topic)}</h3>" if len(topic_audits) > 1 else "",
            f'<p class="{colour}"><b>{escape(first)}</b> {escape("; ".join(rest))}</p>',
            table(rows, caption=f"Audit of {topic_audit.topic}", sums=True),
        ]
    return FinishedSection("Audit", "audit", "".join(parts), "<br>".join(verdicts))
