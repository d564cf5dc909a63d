"""`ottla pipeline`: loads topics into tables, and fetches the jars of Spark's Kafka connector.

The pipeline's libraries are optional: every command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from typing import Annotated

import typer

from ottla.cli import pipeline_deletions, pipeline_jobs, pipeline_stages
from ottla.cli.errors import CommandFailed
from ottla.cli.options import Format, OutputFormat
from ottla.cli.pipeline_libraries import PipelineGroup

app = typer.Typer(cls=PipelineGroup, add_completion=False, no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def pipeline() -> None:
    """Topics into tables with Spark."""


class Tool(StrEnum):
    """The tool that fetches jars."""

    MAVEN = "maven"
    IVY = "ivy"


@app.command()
def jars(
    shape: Format = OutputFormat.TABLE,
    by: Annotated[
        Tool | None, typer.Option("--by", help="What fetches them; otherwise Maven where there is one, else Ivy.")
    ] = None,
    coordinates: Annotated[
        bool, typer.Option("--coordinates", help="Print the coordinates for spark.jars.packages, and fetch nothing.")
    ] = False,
) -> None:
    """Print the jars of Spark's own Kafka connector for `--jars`, fetched on first use. format("ottla") needs none."""
    import json

    from ottla.pipeline.jars import JarsNotFound, connector_jars, installed_spark

    try:
        if coordinates:
            print(installed_spark().coordinates)
            return
        found = connector_jars(
            os.environ, lambda line: print(line, file=sys.stderr), tool=None if by is None else by.value
        )
    except JarsNotFound as error:
        raise CommandFailed(str(error), advice="`--by maven` or `--by ivy` tries the other tool") from None
    if shape is OutputFormat.JSON:
        print(json.dumps({"jars": [str(file) for file in found.files], "version": found.version, "how": found.how}))
    else:
        print(f"{found.version}, by {found.how}", file=sys.stderr)
        print(found.spark_option)


pipeline_jobs.add_to(app)
pipeline_stages.add_to(app)
pipeline_deletions.add_to(app)
