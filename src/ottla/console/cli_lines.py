"""Writes the command lines of `ottla` that do what a page shows or does."""

from __future__ import annotations

import shlex


def line(*words: str | int) -> str:
    """Return a command line with its words quoted for a shell.

    >>> line("topic", "describe", "my topic")
    "ottla topic describe 'my topic'"
    """
    return shlex.join(["ottla", *map(str, words)])


def options(name: str, values: list[str]) -> list[str]:
    """Repeat an option for each of its values.

    >>> options("-t", ["a", "b"])
    ['-t', 'a', '-t', 'b']
    """
    return [word for value in values for word in (name, value)]
