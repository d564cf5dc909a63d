"""Declares the options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ottla.pipeline.locations import UnsupportedLocation, local_path


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
    str | None, typer.Option("--profile", metavar="NAME", help="A named cluster (see `ottla profile`).")
]
Format = Annotated[OutputFormat, typer.Option("--format", "-f", help="Print a table, or JSON for programs.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Timeout of one request.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Delete everything that a pattern selects.")]


def parse_location(text: str) -> Path:
    """Convert an option's path or file:// URI to a path. Raises typer.BadParameter for another scheme."""
    try:
        return local_path(text)
    except UnsupportedLocation as error:
        raise typer.BadParameter(str(error)) from None
