"""Options that many commands share, declared once."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class OutputFormat(StrEnum):
    """How a list is printed."""

    TABLE = "table"
    JSON = "json"


Brokers = Annotated[
    str | None,
    typer.Option(
        "--brokers",
        "-b",
        metavar="HOST:PORT,...",
        help="Brokers to ask. Otherwise --profile, OTTLA_BROKERS, the profile in use, 127.0.0.1:9092.",
    ),
]
Profile = Annotated[
    str | None, typer.Option("--profile", metavar="NAME", help="A named cluster (see `ottla profile`).")
]
Format = Annotated[OutputFormat, typer.Option("--format", "-f", help="Print a table for people or JSON for programs.")]
Timeout = Annotated[float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="How long one request may take.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
