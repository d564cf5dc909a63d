"""`ottla demo`: the main job, from a web access log to tables, a topic and a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ottla.cli.errors import not_found, usage_error
from ottla.cli.options import OutputFormat, parse_location
from ottla.cli.pipeline_libraries import needs_pipeline_libraries

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def demo(
    input_file: Annotated[
        Path | None,
        typer.Option(
            "--input", "-i", metavar="FILE", help="An access log in common or combined format.", parser=parse_location
        ),
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, metavar="N", help="Replay the log N times.")] = 1,
    brokers: Annotated[
        str | None,
        typer.Option(
            "--brokers", "--bootstrap", "-b", metavar="HOST:PORT,...", help="Use these instead of a broker of its own."
        ),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option("--master", metavar="URL", help="A Spark master; otherwise this machine, all its cores."),
    ] = None,
    shape: Annotated[
        OutputFormat, typer.Option("--format", "-f", help="Print the result as text for people or as JSON.")
    ] = OutputFormat.TABLE,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIR",
            help="Where tables and report go, and are kept for the next run; otherwise a new temporary directory.",
            parser=parse_location,
        ),
    ] = None,
    stay: Annotated[
        bool, typer.Option("--stay", help="Keep the demo's broker running at the end, until Ctrl-C.")
    ] = False,
    open_report: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
) -> None:
    """Load a real web access log through a broker into tables, a topic of traffic and a report, and audit them."""
    if input_file is not None and not input_file.is_file():
        raise not_found(f"{input_file} is no file")
    if stay and brokers is not None:
        raise usage_error("--stay keeps the demo's own broker; with --brokers there is none", "leave one of them out")
    with needs_pipeline_libraries("the demo"):
        from ottla.pipeline.demo import run
    form = "json" if shape is OutputFormat.JSON else "text"
    code = run(
        input_file=input_file,
        repeat=repeat,
        output=output,
        bootstrap=brokers,
        master=master,
        output_format=form,
        stay=stay,
        open_report=open_report,
    )
    raise typer.Exit(code)
