"""Renders the audit at the end of a report."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import pyarrow as pa

from ottla.pipeline.audit.format import partition_rows, verdict
from ottla.pipeline.audit.model import TopicAudit
from ottla.pipeline.reporting.page import frame, table


def audit_section(topic_audits: Sequence[TopicAudit]) -> str:
    """Return one section of HTML for all topics; "" for none."""
    parts = []
    for topic_audit in topic_audits:
        first, *rest = verdict(topic_audit)
        colour = "good" if topic_audit.balanced else "bad"
        conclusion = f'<p class="{colour}"><b>{escape(first)}</b> {escape("; ".join(rest))}</p>'
        heading = f"<h3>{escape(topic_audit.topic)}</h3>" if len(topic_audits) > 1 else ""
        parts.append(
            heading
            + table(
                pa.Table.from_pylist(partition_rows(topic_audit)), caption=f"Audit of {topic_audit.topic}", sums=True
            )
            + conclusion
        )
    return frame("Audit", "".join(parts), name="audit") if parts else ""
