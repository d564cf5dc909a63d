"""The stage that writes a job's report."""

from __future__ import annotations

from ottla.pipeline.job_file.report_section import asked_of
from ottla.pipeline.lake.port import LakeTable
from ottla.pipeline.reporting.stage import ReportSpec, write_report
from ottla.pipeline.session import spark_step
from ottla.pipeline.stages.compact import tables_of
from ottla.pipeline.stages.runner import Context, StageResult


def run(context: Context) -> StageResult:
    """Write the page. Raises InvalidReportSection, SparkFailed, OSError."""
    told = context.job.sections["report"]
    spec = ReportSpec(told["output"], told["title"], told["subtitle"], asked_of(told))
    with context.teller.stage("report") as stage:
        session = context.spark.session()
        with spark_step("the report", context.spark.options.log):
            write_report(spec, session, tables_by_name(context), context.topic_audits if told["books"] else ())
        stage.done(str(spec.output))
    return StageResult(str(spec.output), {"output": str(spec.output)})


def tables_by_name(context: Context) -> dict[str, LakeTable]:
    """What a report may ask: what the job loads, what it put aside, and what its streams keep."""
    found: dict[str, LakeTable] = {}
    for tables in tables_of(context):
        found |= {table.name: table for table in (tables.table, tables.quarantine)}
    for stream in context.job.sections["stream"]:
        found[stream["name"]] = context.job.lake.table(stream["name"])
    return found
