"""`ottla log`: verifies and dumps the files of a log directory, and moves replicas between directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ottla.cli import log_move
from ottla.cli.command_group import CommandGroup
from ottla.cli.errors import CommandFailed, ExitCode, not_found, usage_error
from ottla.cli.options import Format, OutputFormat
from ottla.cli.output import ProgressBar, bytes_text, show_json, show_rows
from ottla.core.settings import LONG_MAX

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Log directories and their files.",
)
app.command()(log_move.move)
app.command()(log_move.moves)
Paths = Annotated[
    list[Path], typer.Argument(metavar="PATH...", help="A log directory, a directory of a partition, or a file.")
]
DumpFile = Annotated[Path, typer.Argument(metavar="FILE", help="A .log, an index, a snapshot, a checkpoint.")]


@app.command("verify")
def verify_command(paths: Paths, shape: Format = OutputFormat.TABLE) -> None:
    """Verify logs, indexes, snapshots, checkpoints and the metadata store, without changing them.

    The broker may run meanwhile. Ends with exit code 1 if a file is corrupt.
    """
    results = [_verified(path) for path in paths]
    findings = [finding for result in results for finding in result["findings"]]
    if shape is OutputFormat.JSON:
        show_json(results)
    else:
        for result in results:
            _show_verified(result)
    if findings:
        files = len({finding["file"] for finding in findings})
        raise CommandFailed(f"corruption in {files} {'file' if files == 1 else 'files'}", code=ExitCode.FAILED)


def _verified(path: Path) -> dict[str, Any]:
    from ottla.core.files import SystemFiles
    from ottla.storage.scrubbing.directory_verifier import NothingToVerify, bytes_below, verify_directory
    from ottla.storage.scrubbing.scrubber import read_report

    files, path = SystemFiles(writable=False), path.absolute()
    try:
        with ProgressBar("bytes", total=bytes_below(files, path)) as progress:
            done = 0

            def add_progress(size_bytes: int) -> None:
                nonlocal done
                done += size_bytes
                progress.update(done)

            report = verify_directory(files, path, progress=add_progress)
    except FileNotFoundError:
        raise not_found(f"{path} does not exist") from None
    except NothingToVerify as error:
        raise CommandFailed(
            str(error), code=ExitCode.BAD_INPUT, advice="pass a directory of log.dirs, one of its partitions, or a file"
        ) from None
    except OSError as error:
        raise CommandFailed(f"{error.filename or path}: {error.strerror or error}", code=ExitCode.FAILED) from error
    findings = [{**corruption._asdict(), "file": str(corruption.file)} for corruption in report.findings]
    findings += _metadata_store(path)
    return {
        "path": str(path),
        "partitions": report.partitions,
        "segments": report.segments,
        "bytes_read": report.bytes_read,
        "findings": findings,
        "notes": report.notes,
        "last_scrub": read_report(files, path) if path.is_dir() else None,
    }


def _metadata_store(path: Path) -> list[dict[str, Any]]:
    """Verify the metadata store of a log directory in a copy: the broker has the file open."""
    from ottla.metadata_store.embedded_store import EmbeddedMetadataStore
    from ottla.metadata_store.sqlite_file import FILE_NAME

    store = path / FILE_NAME if path.is_dir() else path
    if store.suffix != ".db" or not store.is_file():
        return []
    import shutil
    import tempfile

    from ottla.core.errors import StorageError

    problem = ""
    for _ in range(3):  # a copy made while the broker writes may be inconsistent
        with tempfile.TemporaryDirectory() as place:
            for part in (store, store.with_name(store.name + "-wal")):
                if part.exists():
                    shutil.copyfile(part, Path(place) / part.name)
            try:
                EmbeddedMetadataStore.open(Path(place) / store.name).close()
            except StorageError as error:
                problem = error.message.replace(place, str(store.parent))
            else:
                return []
    advice = "stop the broker and restore a backup of the file; without a backup see docs/data-integrity.md"
    return [
        {
            "file": str(store),
            "what": problem,
            "advice": advice,
            "position": -1,
            "size_bytes": 0,
            "first_offset": -1,
            "last_offset": -1,
            "costs_records": False,
        }
    ]


def _show_verified(result: dict[str, Any]) -> None:
    findings, root = result["findings"], Path(result["path"])
    if findings:
        rows = [
            {
                "file": _below(root, finding["file"]),
                "position": finding["position"] if finding["position"] >= 0 else None,
                "offsets": f"{finding['first_offset']}-{finding['last_offset']}"
                if finding["first_offset"] >= 0
                else None,
                "what": finding["what"],
            }
            for finding in findings
        ]
        show_rows(rows, ["file", "position", "offsets", "what"], OutputFormat.TABLE)
        for advice in dict.fromkeys(finding["advice"] for finding in findings):
            about = [_below(root, finding["file"]) for finding in findings if finding["advice"] == advice]
            named = ", ".join(dict.fromkeys(about))
            print(f"\n{named}:\n  {advice}")
        print()
    for note in result["notes"]:
        print(f"note: {note}")
    seen = f"{result['partitions']} partitions, " if result["partitions"] else ""
    print(
        f"{root}: {seen}{result['segments']} segments, {bytes_text(result['bytes_read'])} read: "
        f"{len(findings) or 'no'} {'finding' if len(findings) == 1 else 'findings'}"
    )
    last = result["last_scrub"]
    if last is not None:
        from ottla.cli.record_formatter import time_text

        known = len(last["findings"]) or "nothing"
        print(f"  the broker last scrubbed it at {time_text(last['written_ms'])} and found {known}")


def _below(root: Path, file: str) -> str:
    try:
        return str(Path(file).relative_to(root))
    except ValueError:
        return file


@app.command("remove-unknown")
def remove_unknown_command(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="All data directories: log.dirs and metadata.log.dir.")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Remove them. Without this option they are only listed.")] = False,
    shape: Format = OutputFormat.TABLE,
) -> None:
    """List the partition directories of topics that the stopped broker does not know, and remove them with --yes."""
    from ottla.broker.maintenance.unknown_directories import CannotDecide, unknown_directories
    from ottla.core.errors import KafkaError
    from ottla.core.files import SystemFiles

    paths = [path.expanduser().absolute() for path in directories]
    for path in paths:
        if not path.is_dir():
            raise not_found(f"{path} does not exist" if not path.exists() else f"{path} is not a directory")
    try:
        found = unknown_directories(SystemFiles(), paths, remove=yes)
    except (CannotDecide, KafkaError) as error:
        raise CommandFailed(str(error), code=ExitCode.FAILED) from error
    except OSError as error:
        raise CommandFailed(f"{error.filename or paths[0]}: {error.strerror or error}", code=ExitCode.FAILED) from error
    if shape is OutputFormat.JSON:
        show_json(
            {
                "removed": yes,
                "directories": [{**directory._asdict(), "path": str(directory.path)} for directory in found],
            }
        )
        return
    if found:
        rows = [
            {"directory": directory.path, "topic_id": directory.topic_id, "size": bytes_text(directory.size_bytes)}
            for directory in found
        ]
        show_rows(rows, ["directory", "topic_id", "size"], OutputFormat.TABLE)
    size = bytes_text(sum(directory.size_bytes for directory in found))
    count = f"{len(found)} {'directory' if len(found) == 1 else 'directories'} of unknown topics, {size}"
    print(
        f"removed {count}" if yes else f"{count}; --yes removes them" if found else "no directories of unknown topics"
    )


@app.command("dump")
def dump_command(
    file: DumpFile,
    records: Annotated[bool, typer.Option("--records", help="Print the decoded records of each batch.")] = False,
    offsets: Annotated[
        str | None, typer.Option("--offsets", metavar="FROM:TO", help="Only this range of offsets, end exclusive.")
    ] = None,
    shape: Format = OutputFormat.TABLE,
) -> None:
    """Print the content of a file of a log directory.

    A corrupt file is printed as far as it can be read, with a line for each problem; the exit code is then 1.
    """
    from ottla.cli.log_dump import UnknownFileType, dump, line_of
    from ottla.core.files import SystemFiles

    first, end = _offsets(offsets)
    if not file.is_file():
        raise not_found(f"{file} does not exist" if not file.exists() else f"{file} is not a file")
    problems = shown = 0
    try:
        for item in dump(
            SystemFiles(writable=False), file.absolute(), records=records, first_offset=first, end_offset=end
        ):
            problems += "problem" in item
            if shape is OutputFormat.TABLE:
                print(line_of(item))
            else:
                print(",\n  " if shown else "[\n  ", json.dumps(item, ensure_ascii=False), sep="", end="")
            shown += 1
        if shape is OutputFormat.JSON:
            print("\n]" if shown else "[]")
    except UnknownFileType as error:
        raise CommandFailed(str(error), code=ExitCode.BAD_INPUT) from None
    except OSError as error:
        raise CommandFailed(f"{file}: {error.strerror or error}", code=ExitCode.FAILED) from error
    if problems:
        raise CommandFailed(f"{file} has {problems} {'problem' if problems == 1 else 'problems'}", code=ExitCode.FAILED)


def _offsets(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, LONG_MAX
    first, colon, end = text.partition(":")
    try:
        if not colon:
            raise ValueError
        found = int(first or 0), int(end) if end else LONG_MAX
    except ValueError:
        raise usage_error(f"--offsets {text}: write FROM:TO, such as 100:200, 100: or :200") from None
    if found[0] < 0 or found[1] < found[0]:
        raise usage_error(f"--offsets {text}: the first offset {found[0]} is after the end {found[1]}")
    return found
