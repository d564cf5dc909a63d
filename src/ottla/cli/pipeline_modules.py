"""The pipeline's modules, by name: cli and pipeline are neighbours and do not import each other (ARCHITECTURE.md)."""

from __future__ import annotations

import importlib
from typing import Any

from ottla.cli.failures import Exit, Failure


def pipeline_module(name: str) -> Any:
    """A module of the pipeline. Raises `Failure` where its libraries, which are optional, are not installed."""
    try:
        return importlib.import_module(f"ottla.pipeline.{name}")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("ottla"):
            raise
        advice = "install the pipeline's libraries: pip install 'ottla[pipeline]'"
        raise Failure(
            f"the pipeline needs {error.name}, which is not installed", code=Exit.FAILED, advice=advice
        ) from None
