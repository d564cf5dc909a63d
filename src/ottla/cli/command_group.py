"""Shows the commands of a group with their whole summaries, which typer cuts where a line ends."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

_SUMMARY_CHARS_MAX = 1000


class CommandGroup(TyperGroup):
    """A group of commands."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands; long summaries go on below."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(_SUMMARY_CHARS_MAX)) for name, command in commands if command is not None
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
