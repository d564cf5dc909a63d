"""Runs what needs no typer, where typer is not installed: `ottla server`, its help, and `ottla --version`.

All other commands need the extra `cli`. What is installed without it: docs/design/build.md.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence

from ottla import compiled
from ottla.cli import server_start
from ottla.cli.command_table import ABOUT, COMMANDS
from ottla.cli.errors import CommandFailed, ExitCode, usage_error

INSTALL_CLI = "install the command line: pip install '.[cli]' in a clone, or 'FILE.whl[cli]'"
_HELP = ("-h", "--help")
_HELP_OPTION = ("-h, --help", "Show this message and exit.")
_WIDTH_MAX = 80
_NAMES_WIDTH_MAX = 32


def run(arguments: Sequence[str], missing: str) -> int:
    """Run a command line without the library that is missing; returns the exit code. Raises CommandFailed."""
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", ())
    if command == "--version":
        print(version_line())
        return ExitCode.OK
    if not command or command in _HELP:
        print(_overview())
        return ExitCode.OK if command else ExitCode.USAGE
    if command == server_start.COMMAND:
        if not set(rest).isdisjoint(_HELP):
            print(server_help())
            return ExitCode.OK
        try:
            return server_start.start(server_start.read(rest))
        except server_start.NotRead as error:
            raise usage_error(str(error), "ottla server --help lists the options") from None
    if command in COMMANDS:
        raise CommandFailed(f"ottla {command} needs {missing}, which is not installed", advice=INSTALL_CLI)
    raise usage_error(f"unknown command {command}", INSTALL_CLI)


def version_line() -> str:
    """Return the line that `ottla --version` prints."""
    from importlib.metadata import version

    return f"ottla {version('ottla')} ({compiled.form()})"


def server_help() -> str:
    """Return the help of `ottla server`, as typer prints it."""
    paragraphs = map(_filled, server_start.HELP.strip().split("\n\n"))
    options = [
        (", ".join(sorted(option.names, key=len)) + f" {option.metavar}".rstrip(), option.help)
        for option in server_start.OPTIONS
        if option.help
    ]
    return "\n\n".join(("Usage: ottla server [OPTIONS]", *paragraphs, _section("Options", [*options, _HELP_OPTION])))


def _overview() -> str:
    here = [(name, command.summary) for name, command in COMMANDS.items() if name == server_start.COMMAND]
    with_extra = [(name, command.summary) for name, command in COMMANDS.items() if name != server_start.COMMAND]
    options = [("--version", "Print the version."), _HELP_OPTION]
    return "\n\n".join(
        (
            "Usage: ottla [OPTIONS] COMMAND [ARGS]...",
            _filled(ABOUT),
            _section("Options", options),
            _section("Commands", here),
            _section("Commands of the extra `cli`, which is not installed", with_extra),
            INSTALL_CLI[0].upper() + INSTALL_CLI[1:],
        )
    )


def _width() -> int:
    return min(shutil.get_terminal_size().columns, _WIDTH_MAX) - 2


def _filled(text: str, *, indent: str = "  ") -> str:
    return textwrap.fill(text, _width(), initial_indent=indent, subsequent_indent=indent)


def _section(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Format a title and rows of two columns; a long first column stands on a line of its own."""
    pairs = list(rows)
    column = 2 + min(_NAMES_WIDTH_MAX, max(len(name) for name, _ in pairs)) + 2
    lines = [f"{title}:"]
    for name, text in pairs:
        described = _filled(text, indent=" " * column)
        if len(name) + 4 <= column:
            described = f"  {name}".ljust(column) + described[column:]
        else:
            lines.append(f"  {name}")
        lines.append(described)
    return "\n".join(lines)
