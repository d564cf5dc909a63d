"""`ottla pipeline stream | audit | report`: commands for the stream, audit and report stages of a job."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.errors import CommandFailed, ExitCode
from ottla.cli.options import Brokers, Format, OutputFormat, Profile
from ottla.cli.output import show_json, show_rows
from ottla.cli.pipeline_jobs import (
    Every,
    Functions,
    JobFile,
    Lake,
    LoadOptions,
    Master,
    OnLossOption,
    Only,
    Quiet,
    Runner,
    Table,
    Tables,
    Topics,
    Wait,
    job_in,
    job_path,
    load_job,
    with_functions,
    with_on_loss,
    with_wait,
)

if TYPE_CHECKING:
    from ottla.pipeline.audit.model import TopicAudit


class By(StrEnum):
    """The grouping of an audit's lines."""

    PARTITION = "partition"
    BUCKET = "bucket"


def stream(
    job: JobFile = None,
    load: Annotated[bool, typer.Option("--load/--no-load", help="Load new records first.")] = True,
    every: Every = None,
    on_loss: OnLossOption = None,
    functions: Functions = None,
    master: Master = None,
    wait: Wait = None,
    quiet: Quiet = False,
    shape: Format = OutputFormat.TABLE,
) -> None:
    """Load new records, and recompute the windows of a job's aggregates that they change."""
    from ottla.pipeline.stages.runner import stages_of

    made = with_functions(with_wait(with_on_loss(job_in(job_path(job)), on_loss), wait), functions)
    if not made.sections["stream"]:
        raise CommandFailed("the job has no [[stream]]", code=ExitCode.BAD_INPUT)
    names = {"load", "stream"} if load else {"stream"}
    stages = [entry for entry in stages_of(made) if entry.name in names]
    Runner(made, shape, master, quiet).run_rounds(stages, every)


def audit(
    topics: Topics = None,
    job: JobFile = None,
    only: Only = None,
    lake: Lake = None,
    table: Table = None,
    tables: Tables = None,
    by: Annotated[By, typer.Option("--by", help="A line for each partition, or for each time bucket.")] = (
        By.PARTITION
    ),
    brokers: Brokers = None,
    profile: Profile = None,
    wait: Wait = None,
    quiet: Quiet = False,
    shape: Format = OutputFormat.TABLE,
) -> None:
    """Compare every offset of the log with the tables. Exit code 1 if the books do not balance.

    Exit code 9 if a topic was deleted and created again since it was loaded, and 3, 4, 6 or 8 if the audit could not
    compare everything.
    """
    from ottla.pipeline.audit import format as audit_format
    from ottla.pipeline.stages.audit import audit_topics
    from ottla.pipeline.stages.runner import Context

    named = LoadOptions(topics, None, lake, table, tables, brokers=brokers, profile=profile)
    runner = Runner(with_wait(load_job(job, only, named), wait), shape, None, quiet)
    topic_audits: list[TopicAudit] = []

    def audit_all(context: Context) -> None:
        for failed in audit_topics(context, topic_audits):
            raise failed.error

    failure = _failure_of(lambda: runner.do(audit_all))
    if shape is OutputFormat.JSON:
        show_json([audit_format.as_json(topic_audit) for topic_audit in topic_audits])
    else:
        for topic_audit in topic_audits:
            _show(topic_audit, by)
    if failure is not None:
        if any(topic_audit.faults for topic_audit in topic_audits):
            failure.code = ExitCode.FAILED
        raise failure
    if any(topic_audit.faults for topic_audit in topic_audits):
        raise typer.Exit(int(ExitCode.FAILED))
    if any(topic_audit.recreated for topic_audit in topic_audits):
        raise typer.Exit(int(ExitCode.TOPIC_RECREATED))


def _failure_of(audit_all: Callable[[], None]) -> CommandFailed | None:
    """Return why the audit is incomplete, if it is. Its exit code never means that the books do not balance."""
    try:
        audit_all()
    except CommandFailed as failure:
        if failure.code is ExitCode.FAILED:
            failure.code = ExitCode.AUDIT_INCOMPLETE
        return failure
    except Exception as error:  # noqa: BLE001 - a traceback must not end with the exit code of a difference
        traceback.print_exc()
        return CommandFailed(f"the audit failed: {error}", code=ExitCode.AUDIT_INCOMPLETE)
    return None


def _show(topic_audit: TopicAudit, by: By) -> None:
    from ottla.pipeline.audit import format as audit_format

    rows = audit_format.partition_rows(topic_audit) if by is By.PARTITION else audit_format.bucket_rows(topic_audit)
    columns = ["partition" if by is By.PARTITION else "from", *audit_format.shown_columns(topic_audit)]
    print(topic_audit.topic)
    show_rows(rows, columns, OutputFormat.TABLE)
    print("\n".join(audit_format.verdict(topic_audit)), end="\n\n")


def report(
    job: JobFile = None,
    books: Annotated[
        bool, typer.Option("--books/--no-books", help="Audit first, if the report includes the audit.")
    ] = True,
    master: Master = None,
    quiet: Quiet = False,
    shape: Format = OutputFormat.TABLE,
) -> None:
    """Write a job's report: one HTML file from its tables, with the audit at its end."""
    from ottla.pipeline.stages.runner import stages_of

    made = job_in(job_path(job))
    settings = made.sections["report"]
    if settings is None:
        raise CommandFailed("the job has no [report]", code=ExitCode.BAD_INPUT)
    names = {"audit", "report"} if books and settings["books"] else {"report"}
    stages = [entry for entry in stages_of(made) if entry.name in names]
    Runner(made, shape, master, quiet).run_rounds(stages, None)


def add_to(app: typer.Typer) -> None:
    """Make these commands of `ottla pipeline`."""
    for command in (stream, audit, report):
        app.command()(command)
