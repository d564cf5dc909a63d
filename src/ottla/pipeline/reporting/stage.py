"""The stage of a job that writes its report."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.pipeline.audit.model import TopicAudit
from ottla.pipeline.lake.port import LakeTable
from ottla.pipeline.reporting.audit_section import books_section
from ottla.pipeline.reporting.page import render
from ottla.pipeline.reporting.query import SectionQuery, answer, name_tables
from ottla.pipeline.reporting.values import Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ReportSpec:
    """A page."""

    output: Path
    title: str
    subtitle: str
    sections: Sequence[SectionQuery]


def write_report(
    spec: ReportSpec, spark: SparkSession, tables: Mapping[str, LakeTable], topic_audits: Sequence[TopicAudit] = ()
) -> None:
    """Runs the queries and replaces the page atomically. Raises InvalidReportSection, OSError, and Spark's errors."""
    name_tables(spark, tables)
    report = Report(spec.title, spec.subtitle, answer(spark, spec.sections))
    html = render(report, books_section(topic_audits))
    spec.output.parent.mkdir(parents=True, exist_ok=True)
    aside = spec.output.with_name(spec.output.name + ".tmp")
    aside.write_text(html, encoding="utf-8")
    os.replace(aside, spec.output)  # noqa: PTH105 - one step, so that a reader finds the old page or the new
