"""Shows the commands of a group with their whole summaries, and suggests one for a word that is no command."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperGroup

_SUMMARY_CHARS_MAX = 1000
_OTHER_WORDS = {
    "admin": "cluster",
    "broker": "cluster brokers",
    "brokers": "cluster brokers",
    "cluster describe": "cluster brokers",
    "cluster info": "cluster brokers",
    "cluster list": "cluster brokers",
    "cluster status": "cluster health",
    "configs": "config",
    "consumer": "consume",
    "consumer-groups": "group",
    "context": "profile",
    "get-offsets": "topic describe",
    "group consume": "consume",
    "group offsets": "group describe",
    "group reset": "group seek",
    "group reset-offsets": "group seek",
    "groups": "group",
    "health": "cluster health",
    "lag": "group lag",
    "producer": "produce",
    "reassign": "cluster reassign",
    "serve": "server",
    "start": "server",
    "tail": "consume",
    "topic add-partitions": "topic alter",
    "topic config": "topic alter",
    "topic consume": "consume",
    "topic copy": "topic clone",
    "topic produce": "produce",
    "topics": "topic",
    "transaction": "txn",
    "users": "user",
}
"""Words of other tools, below `ottla`, and the commands that do the same here."""


class CommandGroup(TyperGroup):
    """A group of commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command of the arguments; the error for one that does not exist suggests another."""
        self.suggest_commands = False
        try:
            return super().resolve_command(ctx, args)
        except typer.exceptions.TyperException as error:
            if args:
                path = " ".join(ctx.command_path.split()[1:])
                error.message = _with_suggestion(error.message, path, args[0], self.list_commands(ctx))
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands; long summaries go on below."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(_SUMMARY_CHARS_MAX)) for name, command in commands if command is not None
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def _with_suggestion(message: str, path: str, word: str, known: Iterable[str]) -> str:
    """Return the message for a word that is no command, with the command that was meant, if it can be guessed.

    >>> _with_suggestion("No such command 'describe'.", "cluster", "describe", ["brokers"])
    "No such command 'describe'. Did you mean `ottla cluster brokers`?"
    """
    other = _OTHER_WORDS.get(f"{path} {word}".strip())
    close = difflib.get_close_matches(word, list(known), n=1)
    meant = other or (f"{path} {close[0]}".strip() if close else "")
    return f"{message.rstrip('.')}. Did you mean `ottla {meant}`?" if meant else message
