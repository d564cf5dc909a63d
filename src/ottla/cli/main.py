"""`ottla`: one command line for the server, topics, records, groups and the demo.

A noun's module is imported only when the noun is named, so that `ottla server` starts without what only other commands
need. Here is also the one place where a command's end becomes an exit code (`cli/errors.py`).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from types import MappingProxyType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ottla.cli.errors import CommandFailed, ExitCode

# noun -> the module that declares it, in the order of `ottla --help`
COMMANDS = MappingProxyType(
    {
        "server": "ottla.cli.server",
        "topic": "ottla.cli.topic",
        "produce": "ottla.cli.produce",
        "consume": "ottla.cli.consume",
        "group": "ottla.cli.group",
        "config": "ottla.cli.config",
        "cluster": "ottla.cli.cluster",
        "profile": "ottla.cli.profile",
        "log": "ottla.cli.log",
        "bench": "ottla.cli.bench",
        "pipeline": "ottla.cli.pipeline",
        "demo": "ottla.cli.demo",
    }
)


class ReaderGone(Exception):
    """Whoever read our output went away; typer would make exit code 1 of a BrokenPipeError."""


class LazyGroup(TyperGroup):
    """Finds a command by importing its module."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command named."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGone from error

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer calls it so
        """The nouns, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - typer calls it so
        """The command of a noun, or None."""
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command = typer.main.get_command(importlib.import_module(module).app)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"ottla {version('ottla')}")
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("-X", metavar="NAME=VALUE", help="A setting of the client, as security.protocol=SASL_SSL."),
    ] = None,
) -> None:
    """A commit log that speaks Kafka's protocol: `ottla server` starts one, the rest talk to any Kafka broker."""
    if settings:
        from ottla.cli.connection import SETTINGS_VARIABLE

        os.environ[SETTINGS_VARIABLE] = "\n".join((os.environ.get(SETTINGS_VARIABLE, ""), *settings))


def main() -> None:
    """The `ottla` program."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns its exit code. A person's mistake never ends in a traceback."""
    try:
        code = app(args=list(arguments), prog_name="ottla", standalone_mode=False)
        sys.stdout.flush()
    except CommandFailed as failure:
        print(f"ottla: {failure}", file=sys.stderr)
        return int(failure.code)
    except typer.exceptions.TyperException as error:
        return _wrong_usage(error)
    except (KeyboardInterrupt, typer.Abort):
        return int(ExitCode.INTERRUPTED)
    except (ReaderGone, BrokenPipeError):
        _forget_stdout()
        return int(ExitCode.BROKEN_PIPE)
    return code if isinstance(code, int) else int(ExitCode.OK)


def _wrong_usage(error: Any) -> int:
    """Usage errors show themselves; with no arguments at all the help is what was wanted."""
    error.show()
    return int(ExitCode.USAGE)


def _forget_stdout() -> None:
    """Nobody reads any more: the interpreter's last flush must not complain either."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)
