"""`ottla pipeline init | check | run | status | load | replay | redrive | compact`: jobs from a file, or from options.

Options that say what to load become the same values as a job file's keys, and are checked by the same declarations
(`pipeline/job_file/`).
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.connection import ConnectionOptions
from ottla.cli.errors import CommandFailed, ExitCode, not_found, usage_error
from ottla.cli.offset_options import read_offset
from ottla.cli.options import Brokers, Format, OutputFormat, Profile, parse_location
from ottla.cli.output import ItemResult, show_json, show_results, show_rows
from ottla.client.offset_spec import OffsetSpec
from ottla.core.clock import SystemClock
from ottla.core.quantities import parse_duration_ms, parse_size
from ottla.pipeline.formats.record_format import RecordFormat
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.loading.on_loss import OnLoss

if TYPE_CHECKING:
    from ottla.pipeline.job_file.job import PipelineJob
    from ottla.pipeline.job_file.reader import ReadResult
    from ottla.pipeline.stages.runner import Context, Round, StageEntry, StageResult

JOB_FILE = "job.toml"
_ANY_TOPIC = "any"
_LOAD_STAGE = "load"


JobFile = Annotated[
    Path | None, typer.Option("--job", metavar="FILE", help="A job file (see `init`).", parser=parse_location)
]
Topics = Annotated[list[str] | None, typer.Argument(metavar="TOPIC...", help="Names of topics.")]
Pattern = Annotated[
    str | None, typer.Option("--pattern", metavar="REGEX", help="Topics whose whole name matches this expression.")
]
Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="TABLE", help="Only the loads of the job file into this table.")
]
Lake = Annotated[
    str | None, typer.Option("--lake", metavar="DIR", help="The directory of the tables: a path or a file:// URI.")
]
Table = Annotated[
    str | None,
    typer.Option("--table", metavar="NAME", help="Name of the table; {topic} (the default) makes one per topic."),
]
Tables = Annotated[TableFormat | None, typer.Option("--table-format", help="Format of the tables. Default: delta.")]
Records = Annotated[RecordFormat | None, typer.Option("--as", help="Format of a record's value. Default: json.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="KEY=VALUE", help="Any key of [[load]]: time.field=at, columns.n=int."),
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="URL of a Spark master. Default: all cores of this machine."),
]
Every = Annotated[
    str | None, typer.Option("--every", metavar="SPAN", help="Repeat at this interval: 30s, 5m. Ctrl-C ends it.")
]
OnLossOption = Annotated[
    OnLoss | None,
    typer.Option("--on-loss", help="Offsets deleted before they were loaded: fail (the default), or skip them."),
]
Wait = Annotated[
    str | None,
    typer.Option("--wait", metavar="SPAN", help="Wait at the start for brokers that are not up. Default: 8s."),
]
Functions = Annotated[
    list[str] | None,
    typer.Option(
        "--function",
        metavar="NAME",
        help="Let the job file use this: MODULE:NAME of your own, or a function of Spark's SQL that can do more than "
        "compute. Repeatable.",
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress; with --every no results either, only faults and warnings.")
]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Holds the options that select what to load."""

    topics: Sequence[str] | None = None
    pattern: str | None = None
    lake: str | None = None
    table: str | None = None
    tables: TableFormat | None = None
    records: RecordFormat | None = None
    options: Sequence[str] | None = None
    brokers: str | None = None
    profile: str | None = None

    @property
    def is_given(self) -> bool:
        """Return whether any of the options is given."""
        return any(value is not None for value in (self.topics or None, *self._others()))

    def _others(self) -> tuple[Any, ...]:
        return (
            self.pattern,
            self.lake,
            self.table,
            self.tables,
            self.records,
            self.options,
            self.brokers,
            self.profile,
        )

    def job(self) -> PipelineJob:
        """Build the job from the options. Raises `CommandFailed`."""
        if self.lake is None:
            raise usage_error("no lake is given: add --lake DIR, or --job FILE")
        if not self.topics and self.pattern is None:
            raise usage_error("no topics are given: name them, or add --pattern REGEX or --job FILE")
        target = ConnectionOptions(self.brokers, self.profile)
        addresses = ",".join(str(address) for address in target.addresses())
        load = {"topics": list(self.topics or ()) or None, "pattern": self.pattern, "table": self.table}
        load["format"] = self.records.value if self.records else None
        lake = {"path": self.lake, "format": self.tables.value if self.tables else None}
        from ottla.pipeline.job_file.job import add_options, job_from

        loads = [_given(load)]
        brokers = {"bootstrap": addresses, "settings": target.settings()}
        values = {"brokers": brokers, "lake": _given(lake), "load": loads}
        try:
            add_options(loads[0], self.options or ())
        except ValueError as error:
            raise usage_error(str(error)) from None
        made, result = job_from(values, directory=Path.cwd(), now_ms=SystemClock().wall_ms())
        if made is None:
            raise usage_error("; ".join(fault.text for fault in result.faults))
        return made


def init(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.", parser=parse_location)] = Path(
        JOB_FILE
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    shape: Format = OutputFormat.TABLE,
) -> None:
    """Write a job file with every key and its meaning."""
    from importlib.resources import files

    text = (files("ottla.pipeline.job_file") / "example.toml").read_text(encoding="utf-8")
    if file.exists() and not force:
        raise usage_error(f"{file} exists already", "`--force` replaces it")
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandFailed(f"{file} cannot be written: {error.strerror}") from None
    if shape is OutputFormat.JSON:
        show_results([ItemResult(str(file), "written")], shape)
    else:
        print(f"{file} is written; `ottla pipeline check --job {file}` validates it", file=sys.stderr)


def check(
    job: JobFile = None,
    online: Annotated[bool, typer.Option("--online", help="Also check that the brokers have the topics.")] = False,
    shape: Format = OutputFormat.TABLE,
) -> None:
    """Validate a job file and print each mistake with its line."""
    path = job_path(job)
    made, result = _read_file(path)
    if made is not None and online:
        from ottla.pipeline.job_file.preflight import check_online

        check_online(made, result)
    if shape is OutputFormat.JSON:
        show_json([{"line": fault.line, "text": fault.text} for fault in result.faults])
    else:
        for fault in result.faults:
            print(fault.shown(str(path)), file=sys.stderr)
    if result.faults:
        raise typer.Exit(int(ExitCode.BAD_INPUT))
    if shape is not OutputFormat.JSON:
        print(f"{path} is valid", file=sys.stderr)


def run(
    job: JobFile = None,
    stage: Annotated[
        list[str] | None, typer.Option("--stage", metavar="NAME", help="Only this one; may be repeated.")
    ] = None,
    every: Every = None,
    on_loss: OnLossOption = None,
    functions: Functions = None,
    master: Master = None,
    wait: Wait = None,
    quiet: Quiet = False,
    shape: Format = OutputFormat.TABLE,
) -> None:
    """Run the stages of a job file, once or on its schedule."""
    from ottla.pipeline.stages.runner import STAGES, stages_of

    made = with_functions(with_wait(with_on_loss(job_in(job_path(job)), on_loss), wait), functions)
    stages = stages_of(made)
    if stage:
        known = [entry.name for entry in STAGES]
        if unknown := sorted(set(stage) - set(known)):
            raise usage_error(f"there is no stage {', '.join(unknown)}", f"these are: {', '.join(known)}")
        stages = [entry for entry in STAGES if entry.name in stage]
    if not stages:
        raise usage_error("the job has no stage: no [[load]] and nothing else")
    Runner(made, shape, master, quiet).run_rounds(stages, every)


def status(
    job: JobFile = None,
    lake: Lake = None,
    brokers: Brokers = None,
    profile: Profile = None,
    wait: Wait = None,
    shape: Format = OutputFormat.TABLE,
) -> None:
    """Show how far each partition is loaded: position, log end, lag, quarantined and late rows, last commit.

    With --lake, of all topics that the lake's tables were loaded from, by whatever job.
    """
    from ottla.pipeline.status import status_of, status_of_lake

    if lake is not None and job is not None:
        raise usage_error("give --job or --lake, not both")
    with _failures():
        if lake is not None:
            of_lake = with_wait(LoadOptions([_ANY_TOPIC], lake=lake, brokers=brokers, profile=profile).job(), wait)
            warn = partial(print, "warning:", file=sys.stderr)
            statuses = status_of_lake(of_lake.lake, of_lake.brokers, warn)
        else:
            statuses = status_of(with_wait(job_in(job_path(job)), wait))
    lines = [asdict(line) for line in statuses]
    columns = ["topic", "partition", "table", "position", "log_end", "lag", "quarantined", "late", "last_commit"]
    if shape is not OutputFormat.JSON:
        from datetime import UTC, datetime

        for line in lines:
            at_ms = line["last_commit_ms"]
            line["last_commit"] = at_ms and datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    show_rows(lines, columns, shape, empty="the lake has no table" if lake is not None else "the job loads nothing")


def load(
    topics: Topics = None,
    pattern: Pattern = None,
    job: JobFile = None,
    only: Only = None,
    lake: Lake = None,
    table: Table = None,
    tables: Tables = None,
    records: Records = None,
    options: Options = None,
    first: Annotated[
        str | None,
        typer.Option("--from", metavar="PLACE", help="Backfill from this offset or time: 5, -1h, @2015-05-17."),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="PLACE", help="End of the backfill, exclusive.")] = None,
    every: Every = None,
    on_loss: OnLossOption = None,
    brokers: Brokers = None,
    profile: Profile = None,
    master: Master = None,
    wait: Wait = None,
    quiet: Quiet = False,
    shape: Format = OutputFormat.TABLE,
) -> None:
    """Load new records into tables, each offset exactly once; with --from or --to, backfill a range of offsets."""
    load_options = LoadOptions(topics, pattern, lake, table, tables, records, options, brokers, profile)
    from ottla.pipeline.loading.load import BackfillRange
    from ottla.pipeline.stages.load import load_stage
    from ottla.pipeline.stages.runner import STAGES

    made = with_wait(with_on_loss(load_job(job, only, load_options), on_loss), wait)
    runner = Runner(made, shape, master, quiet, loads_only=True)
    if first is None and end is None:
        runner.run_rounds([entry for entry in STAGES if entry.name == _LOAD_STAGE], every)
        return
    if every is not None:
        raise usage_error("--from and --to backfill a range once and exclude --every")
    begin = _offset("--from", first or "start")
    assert begin is not None
    backfill = BackfillRange(begin, _offset("--to", end))
    runner.once("load", lambda context: load_stage(context, backfill))


def replay(
    topics: Topics = None,
    pattern: Pattern = None,
    job: JobFile = None,
    only: Only = None,
    lake: Lake = None,
    table: Table = None,
    tables: Tables = None,
    records: Records = None,
    options: Options = None,
    brokers: Brokers = None,
    profile: Profile = None,
    master: Master = None,
    wait: Wait = None,
    quiet: Quiet = False,
    shape: Format = OutputFormat.TABLE,
) -> None:
    """Parse quarantined records again and move those that parse now into the table, once."""
    load_options = LoadOptions(topics, pattern, lake, table, tables, records, options, brokers, profile)
    runner = Runner(with_wait(load_job(job, only, load_options), wait), shape, master, quiet, loads_only=True)
    from ottla.pipeline.stages.load import replay_stage

    runner.once("replay", replay_stage)


def redrive(
    topics: Topics = None,
    pattern: Pattern = None,
    job: JobFile = None,
    only: Only = None,
    lake: Lake = None,
    table: Table = None,
    tables: Tables = None,
    options: Options = None,
    brokers: Brokers = None,
    profile: Profile = None,
    wait: Wait = None,
    redrives_max: Annotated[
        int, typer.Option("--max", metavar="N", min=1, help="How often a record is produced again at most.")
    ] = 3,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count only.")] = False,
    quiet: Quiet = False,
    shape: Format = OutputFormat.TABLE,
) -> None:
    """Produce dead letters again to the topics that they came from, each once. Needs no Spark.

    A record that is refused again comes back to the dead letters, --max times at most.
    """
    load_options = LoadOptions(topics, pattern, lake, table, tables, None, options, brokers, profile)
    runner = Runner(with_wait(load_job(job, only, load_options), wait), shape, None, quiet, loads_only=True)
    from ottla.pipeline.stages.load import redrive_stage

    runner.once("redrive", partial(redrive_stage, redrives_max=redrives_max, dry_run=dry_run))


def compact(
    topics: Topics = None,
    job: JobFile = None,
    only: Only = None,
    lake: Lake = None,
    table: Table = None,
    tables: Tables = None,
    file_size: Annotated[
        str | None, typer.Option("--file-size", metavar="SIZE", help="Size of a merged file. Default: 256MB.")
    ] = None,
    keep: Annotated[
        str | None, typer.Option("--keep", metavar="SPAN", help="Retention of older versions. Default: 7d.")
    ] = None,
    quiet: Quiet = False,
    shape: Format = OutputFormat.TABLE,
) -> None:
    """Merge small files, expire old versions and delete orphaned files. Needs no broker and no Spark."""
    named = list(topics or ()) or ([_ANY_TOPIC] if table is not None else None)
    made = load_job(job, only, LoadOptions(named, None, lake, table, tables))
    if keep is not None:
        made = replace(made, keep_ms=_span_ms("--keep", keep))
    if file_size is not None:
        size = parse_size(file_size)
        if not size:
            raise usage_error(f"--file-size: {file_size!r} is not a size; write 256MB")
        made = replace(made, compact_file_bytes=size)
    from ottla.pipeline.stages import compact as compact_stage

    Runner(made, shape, None, quiet).once("compact", compact_stage.run)


def add_to(app: typer.Typer) -> None:
    """Make these commands of `ottla pipeline`."""
    for command in (init, check, run, status, load, replay, redrive, compact):
        app.command()(command)


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs a job's stages and prints their results."""

    job: PipelineJob
    shape: OutputFormat
    master: str | None
    quiet: bool
    loads_only: bool = False
    """The work is done by the tasks in Python: compiling Java for the long run would only take their processor."""

    def once(self, name: str, work: Callable[[Context], StageResult]) -> None:
        """Run one stage once."""
        with self._context() as context:
            began = context.clock.monotonic()
            result = work(context)
            seconds = context.clock.monotonic() - began
        self._print({name: result}, {name: seconds})
        if not result.ok:
            raise typer.Exit(int(ExitCode[result.failure.name]))

    def do(self, work: Callable[[Context], None]) -> None:
        """Run work that prints its own result."""
        with self._context() as context:
            work(context)

    def run_rounds(self, stages: list[StageEntry], every: str | None) -> None:
        """Run stages, once or on a schedule."""
        job = self.job if every is None else replace(self.job, every_ms=_span_ms("--every", every))
        from ottla.pipeline.stages import runner

        stop = threading.Event()
        scheduled = replace(self, job=job)
        with scheduled._context() as context:  # noqa: SLF001 - our own
            watching = runner.stopping_on_signals(stop) if job.every_ms is not None else contextlib.nullcontext()
            with watching:
                failure = runner.run_rounds(context, stop=stop, notify=scheduled._print_round, stages=stages)  # noqa: SLF001 - our own
        if failure is not None:
            raise typer.Exit(int(ExitCode[failure.name]))

    @contextlib.contextmanager
    def _context(self) -> Iterator[Context]:
        from ottla.pipeline.loading.spark_host import SparkHost
        from ottla.pipeline.progress import ProgressReporter
        from ottla.pipeline.session import SparkOptions
        from ottla.pipeline.stages.runner import Context

        clock = SystemClock()
        reporter = ProgressReporter(clock, quiet=self.quiet)
        master = self.master or self.job.master
        options = SparkOptions(self.job.spark_work, master, short_run=self.loads_only)
        host = SparkHost(options, reporter.notify)
        with _failures():
            try:
                yield Context(self.job, host, reporter, clock)
            finally:
                host.stop()

    def _print_round(self, done: Round) -> None:
        """Print a round's results. On a schedule `quiet` leaves those that found a fault; JSON is for programs."""
        results = done.results
        if self.quiet and self.job.every_ms is not None and self.shape is not OutputFormat.JSON:
            results = {name: result for name, result in results.items() if not result.ok}
        self._print(results, done.seconds)

    def _print(self, results: dict[str, StageResult], seconds: dict[str, float]) -> None:
        if self.shape is OutputFormat.JSON:
            values = {
                name: {"ok": r.ok, "seconds": round(seconds[name], 3), "result": r.data} for name, r in results.items()
            }
            print(json.dumps(values), flush=True)  # a round is a line
            return
        for name, result in results.items():
            for line in result.text.splitlines():
                print(f"{name:<8} {line}", flush=True)


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """Report expected errors as one line with the next action."""
    from ottla.pipeline.errors import failure_kind_of, is_expected

    try:
        yield
    except Exception as error:
        if not is_expected(error):
            raise
        end, advice = failure_kind_of(error)
        raise CommandFailed(str(error), code=ExitCode[end.name], advice=advice) from error


def load_job(job: Path | None, only: Sequence[str] | None, load_options: LoadOptions) -> PipelineJob:
    """Return the job of a file, or of options."""
    if job is None:
        if only is not None:
            raise usage_error("--only needs --job: it selects loads of a job file")
        return load_options.job()
    if load_options.is_given:
        raise usage_error("--job excludes topics and the options that select what to load")
    from ottla.pipeline.stages.load import select_loads

    made = job_in(job_path(job))
    try:
        return replace(made, loads=select_loads(made.loads, only or ()))
    except ValueError as error:
        raise usage_error(str(error)) from None


def with_on_loss(job: PipelineJob, on_loss: OnLoss | None) -> PipelineJob:
    """Return the job with another `on_loss` for every load, if one is given."""
    return job if on_loss is None else replace(job, loads=[replace(load, on_loss=on_loss) for load in job.loads])


def with_wait(job: PipelineJob, wait: str | None) -> PipelineJob:
    """Return the job with another time to wait for brokers, if one is given."""
    if wait is None:
        return job
    wait_s = _span_ms("--wait", wait) / 1000
    loads = [replace(load, brokers=replace(load.brokers, wait_s=wait_s)) for load in job.loads]
    return replace(job, brokers=replace(job.brokers, wait_s=wait_s), loads=loads)


def with_functions(job: PipelineJob, functions: Sequence[str] | None) -> PipelineJob:
    """Return the job with the functions that its streams and reports may name."""
    return replace(job, functions=frozenset(functions or ()))


def job_path(job: Path | None) -> Path:
    """Return the path of the job file. Raises `CommandFailed` if it does not exist."""
    path = job or Path(JOB_FILE)
    if not path.is_file():
        raise not_found(f"there is no job file {path}", "`ottla pipeline init` writes one" if job is None else "")
    return path


def _read_file(path: Path) -> tuple[PipelineJob | None, ReadResult]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{path} cannot be read: {error}", code=ExitCode.BAD_INPUT) from None
    from ottla.pipeline.job_file.job import read_job

    made, result = read_job(text, directory=path.absolute().parent, now_ms=SystemClock().wall_ms())
    return made, result


def job_in(path: Path) -> PipelineJob:
    """Return the job of a file. Raises `CommandFailed` with every mistake."""
    made, result = _read_file(path)
    if made is None:
        faults = "\n".join(f"  {fault.shown(str(path))}" for fault in result.faults)
        raise CommandFailed(f"the job file has mistakes:\n{faults}", code=ExitCode.BAD_INPUT)
    return made


def _offset(option: str, text: str | None) -> OffsetSpec | None:
    return None if text is None else read_offset(option, text, now_ms=SystemClock().wall_ms())


def _span_ms(option: str, text: str) -> int:
    found = parse_duration_ms(text)
    if found is None:
        raise usage_error(f"{option}: {text!r} is not a duration; write 30s, 5m or 7d")
    return found


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
