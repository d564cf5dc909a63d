"""The tables of a pipeline's job, how far each is loaded, their audit, and the job's report."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ottla.console.pages.page import Page
from ottla.console.visit import Refused, Visit
from ottla.core.clock import SystemClock
from ottla.http.web import HTMLResponse, Response

if TYPE_CHECKING:  # pyarrow and more, imported when the page is asked for
    from ottla.pipeline.audit.model import TopicAudit
    from ottla.pipeline.job_file.job import PipelineJob
    from ottla.pipeline.status import PartitionStatus

_AUDITING: Final = asyncio.Lock()
REPORT_POLICY: Final = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""A report has its styles in itself. It runs no script and reaches nothing of the console."""


@dataclass(frozen=True, slots=True)
class TableState:
    """The progress of a topic into a table."""

    table: str
    topic: str
    partitions: int
    lag: int
    quarantined: int
    late: int
    last_commit_ms: int | None
    complete_until: str


async def pipeline(visit: Visit) -> Response:
    """Show the tables of the job file, if the console has one."""
    if visit.options.job_file is None:
        return visit.page("pipeline.html", title="Pipeline", job=None, tables=[], audits=[], report="", problem="")
    return await _page(visit, [])


async def audit(visit: Visit) -> Response:
    """Audit all topics of the job now, one audit at a time, and show what was found."""
    if visit.options.job_file is None:
        raise Refused("this console has no job file; start it with --job FILE")
    if _AUDITING.locked():
        raise Refused("an audit runs already")
    async with _AUDITING:
        return await _page(visit, await asyncio.to_thread(_audit, visit.options.job_file))


async def report(visit: Visit) -> Response:
    """Show the report that the job has written."""
    path = None if visit.options.job_file is None else await asyncio.to_thread(_report_path, visit.options.job_file)
    if path is None or not path.exists():
        raise Refused("the job has written no report yet", 404)
    text = await asyncio.to_thread(path.read_text, "utf-8")
    return HTMLResponse(text, headers={"content-security-policy": REPORT_POLICY})


async def _page(visit: Visit, audits: Sequence[tuple[str, bool, Sequence[str], Mapping[str, int]]]) -> Response:
    assert visit.options.job_file is not None
    tables, problem = await asyncio.to_thread(_tables, visit.options.job_file)
    path = await asyncio.to_thread(_report_path, visit.options.job_file)
    return visit.page(
        "pipeline.html",
        title="Pipeline",
        job=str(visit.options.job_file),
        tables=tables,
        audits=audits,
        report="" if path is None else "there" if path.exists() else "not written yet",
        problem=problem,
        cli=visit.cli("pipeline", "status", "--job", str(visit.options.job_file)),
    )


def _job(path: Path) -> PipelineJob:
    """Read the job file. Raises Refused."""
    from ottla.pipeline.job_file.job import read_job

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None
    job, result = read_job(text, directory=path.parent.absolute(), now_ms=SystemClock().wall_ms())
    if job is None:
        raise Refused(f"the job file has mistakes: {'; '.join(fault.shown(str(path)) for fault in result.faults)}")
    return job


def _report_path(path: Path) -> Path | None:
    section = _job(path).sections.get("report")
    return Path(section["output"]) if section else None


def _tables(path: Path) -> tuple[list[TableState], str]:
    """Return the state of each topic and table; and why it is unknown, if it is."""
    from ottla.pipeline.audit.run import COMPLETE_UNTIL
    from ottla.pipeline.status import status_of

    job = _job(path)
    try:
        lines = status_of(job)
    except Exception as error:  # noqa: BLE001 - whatever it is, the page names it
        return [], str(error)
    by_table: dict[tuple[str, str], list[PartitionStatus]] = {}
    for line in lines:
        by_table.setdefault((line.table, line.topic), []).append(line)
    complete = {}
    for load in job.loads:
        for _, topic in by_table:
            table = load.tables(topic).table
            if table.exists():
                complete[str(table.name), topic] = table.properties().get(COMPLETE_UNTIL, "")
    return [
        TableState(
            table,
            topic,
            len(group),
            sum(line.lag for line in group),
            sum(line.quarantined for line in group),
            sum(line.late for line in group),
            max((line.last_commit_ms or 0 for line in group), default=0) or None,
            complete.get((table, topic), ""),
        )
        for (table, topic), group in by_table.items()
    ], ""


def _audit(path: Path) -> list[tuple[str, bool, Sequence[str], Mapping[str, int]]]:
    """Audit the topics; Spark is not started for it."""
    from ottla.pipeline.audit.format import verdict
    from ottla.pipeline.loading.spark_host import SparkHost
    from ottla.pipeline.progress import ProgressReporter
    from ottla.pipeline.session import SparkOptions
    from ottla.pipeline.stages.audit import audit_topics
    from ottla.pipeline.stages.runner import Context

    job, clock = _job(path), SystemClock()
    audits: list[TopicAudit] = []
    host = SparkHost(SparkOptions(work=job.spark_work), lambda _: None)
    failures = audit_topics(Context(job, host, ProgressReporter(clock, quiet=True), clock), audits)
    rows = [
        (
            topic_audit.topic,
            topic_audit.balanced,
            verdict(topic_audit),
            {"loaded": topic_audit.total.loaded, "missing": topic_audit.total.missing},
        )
        for topic_audit in audits
    ]
    return [*rows, *((failure.topic, False, [f"not audited: {failure.text}"], {}) for failure in failures)]


PAGES = (Page("/pipeline", pipeline), Page("/pipeline/audit", audit, "POST"), Page("/pipeline/report", report))
