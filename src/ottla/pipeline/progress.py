"""Progress for people: a bar per stage on a terminal, one line per finished stage anywhere else. All on stderr."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from ottla.core.clock import Clock

_NAME_WIDTH = 10


class Stage:
    """One stage under way."""

    def __init__(self, progress: Progress | None, task: TaskID | None) -> None:
        self._progress, self._task = progress, task
        self.result = ""

    def advance(self, count: int) -> None:
        """So many more are done."""
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, count)

    def expect(self, total: int) -> None:
        """How many there will be, where it turns out only now."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, total=total)

    def notify(self, text: str) -> None:
        """What is happening inside."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, note=text)

    def done(self, text: str) -> None:
        """What came of it, in a few words."""
        self.result = text


class Stages:
    """Runs the stages one after the other and remembers how long each took, in seconds."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}
        self._clock = clock

    @contextlib.contextmanager
    def stage(self, name: str, *, total: int | None = None) -> Iterator[Stage]:
        """Show a stage while it lasts; when it ends well, leave a line with its time and result."""
        began = self._clock.monotonic()
        with self._bar() as progress:
            task = progress.add_task(name.ljust(_NAME_WIDTH), total=total, note="") if progress is not None else None
            stage = Stage(progress, task)
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
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=self.console,
            transient=True,
        )
