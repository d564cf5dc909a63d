"""Reports missing libraries of the pipeline, which are optional, as a failed command with advice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ottla.cli.command_group import CommandGroup
from ottla.cli.errors import CommandFailed


@contextlib.contextmanager
def needs_pipeline_libraries(what: str) -> Iterator[None]:
    """Raise `CommandFailed` if an import inside fails because a library of `ottla[pipeline]` is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("ottla"):
            raise
        advice = "install the pipeline's libraries: pip install '.[pipeline]' in a clone, or 'FILE.whl[pipeline]'"
        raise CommandFailed(f"{what} needs {error.name}, which is not installed", advice=advice) from None


class PipelineGroup(CommandGroup):
    """The commands of `ottla pipeline`; each imports what it needs of the pipeline when it runs."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Raises `CommandFailed` if a library is missing."""
        with needs_pipeline_libraries("the pipeline"):
            return super().invoke(ctx)
