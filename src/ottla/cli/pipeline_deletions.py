"""`ottla pipeline declare-deleted`: declares rows that were deleted on purpose."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.errors import CommandFailed, ExitCode, usage_error
from ottla.cli.options import Brokers, DryRun, Format, OutputFormat, Profile
from ottla.cli.output import show_json
from ottla.cli.pipeline_jobs import JobFile, Lake, LoadOptions, Runner, Table, Tables, load_job
from ottla.core.clock import SystemClock

if TYPE_CHECKING:
    from ottla.pipeline.lake.rowless_offsets import Deletion
    from ottla.pipeline.stages.runner import Context


def declare_deleted(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic whose rows were deleted.")],
    offsets: Annotated[
        list[str] | None,
        typer.Option("--offsets", metavar="P:FIRST-LAST", help="Offsets of a partition, as 0:5-7; may be repeated."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="A file with such offsets, one per line; - is stdin.")
    ] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Every offset that the audit finds missing now. Look at it first.")
    ] = False,
    withdraw: Annotated[
        str | None, typer.Option("--withdraw", metavar="ID", help="Withdraw an earlier declaration instead.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; the audit shows it.")] = "",
    job: JobFile = None,
    lake: Lake = None,
    table: Table = None,
    tables: Tables = None,
    brokers: Brokers = None,
    profile: Profile = None,
    dry_run: DryRun = False,
    shape: Format = OutputFormat.TABLE,
) -> None:
    """Declare rows that were deleted on purpose: the audit counts them as deleted, and no backfill loads them again."""
    if sum((bool(offsets or file), missing, withdraw is not None)) != 1:
        raise usage_error("name the deleted offsets by --offsets, --file or --missing, or give --withdraw")
    from ottla.pipeline import declare_deleted as declaring

    topics = [topic] if job is None else None
    made = load_job(job, None, LoadOptions(topics, None, lake, table, tables, brokers=brokers, profile=profile))
    done = []

    def work(context: Context) -> None:
        target = declaring.table_of(made, topic)
        if withdraw is not None:
            done.append(declaring.withdraw_declaration(target, topic, withdraw, dry_run=dry_run))
            return
        if missing:
            ranges = declaring.missing_offsets(context, topic)
        else:
            ranges = declaring.parse_ranges([*(offsets or ()), *_lines(file)])
        if missing and not ranges:
            return
        done.append(declaring.declare(target, topic, ranges, reason=reason, clock=SystemClock(), dry_run=dry_run))

    Runner(made, shape, None, quiet=True).do(work)
    verb = "withdrawn" if withdraw is not None else "declared deleted"
    _show(done[0] if done else None, topic, f"would be {verb}" if dry_run else verb, shape)


def _show(deletion: Deletion | None, topic: str, verb: str, shape: OutputFormat) -> None:
    ranges = deletion.ranges if deletion is not None else ()
    count = sum(r.count for r in ranges)
    if shape is OutputFormat.JSON:
        number, reason = (deletion.id, deletion.reason) if deletion is not None else (None, "")
        result = {
            "id": number,
            "result": verb,
            "count": count,
            "reason": reason,
            "offsets": [asdict(r) for r in ranges],
        }
        show_json(result)
        return
    for r in ranges:
        print(f"{topic}-{r.partition}: {r.text}")
    of = "" if deletion is None else f" (id {deletion.id})"
    print(f"{count:,} offsets {verb}{of}", file=sys.stderr)


def _lines(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{file} cannot be read: {error}", code=ExitCode.BAD_INPUT) from None
    return [line for line in text.splitlines() if line.strip()]


def add_to(app: typer.Typer) -> None:
    """Make this a command of `ottla pipeline`."""
    app.command("declare-deleted")(declare_deleted)
