"""Runs the command line `ottla`: finds the command, and converts its result to an exit code (`cli/errors.py`).

typer finds the command (`cli/commands.py`), but for a complete `ottla server`: a broker starts without typer, which
would take a tenth of the start (docs/design/startup.md). Where typer is not installed, `cli/base_commands.py` runs the
broker and names the extra that has the other commands.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ottla.cli import server_start
from ottla.cli.errors import MESSAGES_AS_JSON, CommandFailed, ExitCode, OutputClosed, show_error
from ottla.core import garbage_collection

_EXTRA_CLI = {"typer", "rich"}
"""The libraries of the extra `cli`."""


def main() -> None:
    """Run the `ottla` program."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. A user's mistake never ends in a traceback."""
    MESSAGES_AS_JSON.set(asks_for_json(arguments))
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except CommandFailed as failure:
        show_error(failure)
        return int(failure.code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    except (OutputClosed, BrokenPipeError):
        _discard_stdout()
        return int(ExitCode.BROKEN_PIPE)
    return code if isinstance(code, int) else int(ExitCode.OK)


def _run(arguments: Sequence[str]) -> object:
    if arguments[:1] == [server_start.COMMAND]:
        try:
            options = server_start.read(arguments[1:])
        except server_start.NotRead:
            pass
        else:
            return server_start.start(options)
    try:
        with garbage_collection.paused():
            from ottla.cli import commands
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA_CLI:
            raise
        from ottla.cli import base_commands

        return base_commands.run(arguments, error.name)
    return commands.run(arguments)


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Return whether a command line has `--format json`; it is read before the command, whose errors depend on it.

    >>> asks_for_json(["topic", "list", "-f", "json"]), asks_for_json(["consume", "json"])
    (True, False)
    """
    for at, word in enumerate(arguments):
        if word == "--":
            return False
        if word in {"--format=json", "-fjson"} or (
            word in {"--format", "-f"} and list(arguments[at + 1 : at + 2]) == ["json"]
        ):
            return True
    return False


def _discard_stdout() -> None:
    """Redirect standard output to /dev/null, so that the interpreter's last flush does not fail."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)
