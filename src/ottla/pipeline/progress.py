"""Shows progress: a bar per stage on a terminal, one line per finished stage anywhere else. All on stderr."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from ottla.core.clock import Clock

_NAME_WIDTH = 10


class StageProgress:
    """Shows the progress of one stage."""

    def __init__(self, console: Console, progress: Progress | None = None, task: TaskID | None = None) -> None:
        self._console, self._progress, self._task = console, progress, task
        self.result = ""

    def advance(self, count: int) -> None:
        """Add to the number that is done."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, count)

    def expect(self, count: int) -> None:
        """Note that so many more are to be done."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, total=self._progress.tasks[0].completed + count)

    def warn(self, text: str) -> None:
        """Print a warning, on a terminal or not."""
        _print(self._console, text, "yellow")

    def note(self, text: str) -> None:
        """Show the state of the stage beside its bar."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, note=text)

    def done(self, text: str) -> None:
        """Show the result in a few words."""
        self.result = text


class Stages:
    """Runs the stages one after the other and remembers how long each took, in seconds."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}
        self._clock = clock

    @contextlib.contextmanager
    def stage(self, name: str, *, total: int | None = None) -> Iterator[StageProgress]:
        """Show a stage while it lasts; when it ends well, leave a line with its time and result."""
        began = self._clock.monotonic()
        with self._bar() as progress:
            task = progress.add_task(name.ljust(_NAME_WIDTH), total=total, note="") if progress is not None else None
            stage = StageProgress(self.console, progress, task)
            yield stage
        self.seconds[name] = self._clock.monotonic() - began
        line = f"{name.ljust(_NAME_WIDTH)} {self.seconds[name]:6.1f} s  {stage.result}"
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _bar(self) -> contextlib.AbstractContextManager[Any]:
        if not self.console.is_terminal:
            return contextlib.nullcontext()
        return Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}"),
            _RateColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            transient=True,
        )


class _RateColumn(ProgressColumn):
    """Shows how many are done per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s")


@dataclass(slots=True)
class ProgressReporter:
    """Reports the stages of a job: bars on a terminal, and warnings everywhere. `quiet` leaves only warnings."""

    clock: Clock
    quiet: bool = False
    console: Console = field(default_factory=lambda: Console(stderr=True))
    stages: Stages | None = None
    """Prints a line per stage, on a terminal or not. None: only bars, and only on a terminal."""

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[StageProgress]:
        """Show a stage while it runs."""
        if self.stages is not None:
            with self.stages.stage(name) as stage:
                yield stage
            return
        if self.quiet or not self.console.is_terminal:
            yield StageProgress(self.console)
            return
        with Stages(self.console, self.clock).stage(name) as stage:
            yield stage

    def notify(self, text: str) -> None:
        """Print what takes long, on a terminal only."""
        if not self.quiet and self.console.is_terminal:
            _print(self.console, text, "")

    def warn(self, text: str) -> None:
        """Print a warning, on a terminal or not."""
        _print(self.console, text, "yellow")


def _print(console: Console, text: str, style: str) -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
