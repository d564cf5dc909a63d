"""Declares the commands of `ottla` for typer, and runs one.

The module of a command is imported only when it is used, so that no command waits for the imports of others.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ottla.cli import completion
from ottla.cli.base_commands import version_line
from ottla.cli.command_group import CommandGroup
from ottla.cli.command_table import ABOUT, COMMANDS
from ottla.cli.errors import MESSAGES_AS_JSON, CommandFailed, ExitCode, OutputClosed, show_error
from ottla.core import garbage_collection


class LazyGroup(CommandGroup):
    """A group of commands whose modules are imported at their first use."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command of the arguments."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise OutputClosed from error

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's signature
        """List the commands in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - typer's signature
        """Import a command by its name; None if there is none."""
        found = COMMANDS.get(cmd_name)
        if found is None:
            return None
        with garbage_collection.paused():
            command = typer.main.get_command(importlib.import_module(found.module).app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - typer's signature
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in COMMANDS.items()])


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(version_line())
        raise typer.Exit


@app.callback(help=ABOUT)
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "-X",
            metavar="NAME=VALUE",
            help="A client setting, such as security.protocol=SASL_SSL.",
            autocompletion=completion.client_settings,
        ),
    ] = None,
) -> None:
    """Read the options before the command."""
    if settings:
        from ottla.cli.connection import SETTINGS_VARIABLE

        os.environ[SETTINGS_VARIABLE] = "\n".join((os.environ.get(SETTINGS_VARIABLE, ""), *settings))


def run(arguments: Sequence[str]) -> object:
    """Run a command line and return the exit code of its command, if that has one. Raises CommandFailed."""
    try:
        return app(args=list(arguments), prog_name="ottla", standalone_mode=False)
    except typer.exceptions.TyperException as error:
        return _usage_error(error)
    except typer.Abort:
        return ExitCode.INTERRUPTED


def _usage_error(error: Any) -> int:
    """Print a usage error; without any arguments it prints the help."""
    if getattr(error, "option_name", "") == "-X":
        error.message += ". Write it before the command: ottla -X NAME=VALUE topic list"
    message = error.format_message()
    if MESSAGES_AS_JSON.get() and message:
        show_error(CommandFailed(message, code=ExitCode.USAGE))
    else:
        error.show()
    return int(ExitCode.USAGE)
