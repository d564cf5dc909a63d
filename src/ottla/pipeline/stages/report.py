"""Writes a job's report: runs the queries over its tables and replaces the HTML file atomically."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from ottla.pipeline.audit.model import TopicAudit
from ottla.pipeline.job_file.report_section import section_queries
from ottla.pipeline.lake.lake_table import TableReader
from ottla.pipeline.reporting.audit_section import audit_section
from ottla.pipeline.reporting.page import render
from ottla.pipeline.reporting.query import create_views, run_queries
from ottla.pipeline.reporting.values import Report, text_of
from ottla.pipeline.session import spark_step
from ottla.pipeline.stages.compact import tables_of
from ottla.pipeline.stages.runner import Context, StageResult


def run(context: Context) -> StageResult:
    """Write the page. Raises InvalidReportSection, SparkFailed, OSError."""
    settings = context.job.sections["report"]
    output: Path = settings["output"]
    with context.reporter.stage("report") as stage:
        session = context.spark.session()
        with spark_step("the report", context.spark.options.log):
            create_views(session, tables_by_name(context))
            sections = run_queries(session, section_queries(settings), context.job.functions)
            made = made_text(context.clock.wall_ms())
            report = Report(settings["title"], settings["subtitle"], sections, offsets_text(context.topic_audits), made)
            _replace_file(output, render(report, audit_section(context.topic_audits if settings["books"] else ())))
        stage.done(str(output))
    return StageResult(str(output), {"output": str(output)})


def made_text(now_ms: int) -> str:
    """Return the line with the time and the version of Ottla that made the page.

    >>> made_text(1_431_856_800_000).partition(" by ")[0]
    'Made 17 May 2015 10:00 UTC'
    """
    return f"Made {text_of(datetime.fromtimestamp(now_ms / 1000, UTC))} UTC by Ottla {version('ottla')}"


def offsets_text(topic_audits: Sequence[TopicAudit]) -> str:
    """Return the offsets that the tables have been loaded from, for each topic and partition; "" without an audit."""
    return " ".join(
        f"From topic {audit.topic}: "
        + ", ".join(
            f"partition {partition.partition} offsets {partition.first_offset:,} to {partition.position - 1:,}"
            for partition in loaded
        )
        + "."
        for audit in topic_audits
        if (loaded := [partition for partition in audit.partitions if partition.position > partition.first_offset])
    )


def _replace_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)  # noqa: PTH105 - atomic: a reader sees the old page or the new one


def tables_by_name(context: Context) -> dict[str, TableReader]:
    """Return the tables that a report may query.

    Those are the tables that the job loads, their quarantines, and the results of streams.
    """
    readers: dict[str, TableReader] = {}
    for tables in tables_of(context):
        readers |= {table.name: table for table in (tables.table, tables.quarantine)}
    for stream in context.job.sections["stream"]:
        readers[stream["name"]] = context.job.lake.table(stream["name"])
    return readers
