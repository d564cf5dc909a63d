"""Declares the options that several commands share."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ottla.cli import completion
from ottla.cli.errors import usage_error
from ottla.core.quantities import in_unit_of, parse_duration_ms
from ottla.pipeline.locations import UnsupportedLocation, local_path

_TIMEOUT_S_MIN = 0.1


class OutputFormat(StrEnum):
    """The format of a command's output."""

    TABLE = "table"
    JSON = "json"


Brokers = Annotated[
    str | None,
    typer.Option(
        "--brokers",
        "-b",
        metavar="HOST:PORT,...",
        help="Brokers to connect to. Default: --profile, OTTLA_BROKERS, the profile in use, 127.0.0.1:9092.",
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile", metavar="NAME", help="A named cluster (see `ottla profile`).", autocompletion=completion.profiles
    ),
]
Format = Annotated[OutputFormat, typer.Option("--format", "-f", help="Print a table, or JSON for programs.")]


def parse_seconds(text: str) -> float:
    """Parse a number of seconds, or a duration with a unit. Raises `typer.BadParameter`.

    >>> parse_seconds("1.5"), parse_seconds("500ms"), parse_seconds("2m")
    (1.5, 0.5, 120.0)
    """
    duration_ms = parse_duration_ms(str(text))
    try:
        seconds = float(text) if duration_ms is None else duration_ms / 1000
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a duration: write seconds, or 500ms, 30s, 1m") from None
    if not _TIMEOUT_S_MIN <= seconds < math.inf:
        raise typer.BadParameter(f"{text} is not a timeout: write at least {_TIMEOUT_S_MIN} seconds")
    return seconds


def parse_setting(text: str, *, example: str, option: str = "") -> tuple[str, str]:
    """Parse `name=value`; a duration or size is converted to the unit of the setting. Raises `CommandFailed`.

    >>> parse_setting("retention.ms=1h", example="")
    ('retention.ms', '3600000')
    """
    name, equals, value = text.partition("=")
    shown = f"{option} {text}".strip()
    if not equals or not name.strip():
        raise usage_error(f"{shown}: write NAME=VALUE, such as {example}")
    try:
        return name.strip(), in_unit_of(name.strip("+- "), value)
    except ValueError as error:
        raise usage_error(f"{shown}: {error}") from None


Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        parser=parse_seconds,
        metavar="SECONDS",
        help="Timeout of one request, and of its retries: 30, 500ms, 1m.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Delete everything that a pattern selects.")]


def parse_location(text: str | Path) -> Path:
    """Convert the path or file:// URI of an option to a path. Raises typer.BadParameter for another scheme."""
    try:
        return local_path(str(text))
    except UnsupportedLocation as error:
        raise typer.BadParameter(str(error)) from None
