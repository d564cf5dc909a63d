"""The pipeline's modules, by name: cli and pipeline are neighbours and do not import each other (ARCHITECTURE.md)."""

from __future__ import annotations

import importlib
from typing import Any

from ottla.cli.errors import CommandFailed, ExitCode


def pipeline_module(name: str) -> Any:
    """A module of the pipeline. Raises `CommandFailed` where its libraries, which are optional, are not installed."""
    try:
        return importlib.import_module(f"ottla.pipeline.{name}")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("ottla"):
            raise
        advice = "install the pipeline's libraries: pip install 'ottla[pipeline]'"
        raise CommandFailed(
            f"the pipeline needs {error.name}, which is not installed", code=ExitCode.FAILED, advice=advice
        ) from None
