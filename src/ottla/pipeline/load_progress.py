"""What a job tells people while it runs: bars on a terminal, nothing elsewhere but what must be known. On stderr."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console

from ottla.core.clock import Clock
from ottla.pipeline.loading.commit_protocol import LoadResult
from ottla.pipeline.progress import Stage, Stages
from ottla.pipeline.reporting.values import size_text


@dataclass(slots=True)
class Teller:
    """Says what happens. `quiet` leaves only warnings."""

    clock: Clock
    quiet: bool = False
    console: Console = field(default_factory=lambda: Console(stderr=True))
    stages: Stages | None = None
    """Where a line is left for every stage, whoever looks; None: only bars, and only on a terminal."""

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """A stage while it lasts: shown to who looks at a terminal, and only then."""
        if self.stages is not None:
            with self.stages.stage(name) as stage:
                yield stage
            return
        if self.quiet or not self.console.is_terminal:
            yield Stage(None, None)
            return
        with Stages(self.console, self.clock).stage(name) as stage:
            yield stage

    def notify(self, text: str) -> None:
        """Something that takes long, to who waits for it."""
        if not self.quiet and self.console.is_terminal:
            self._print(text, "")

    def warn(self, text: str) -> None:
        """Something that is seen in any case."""
        self._print(text, "yellow")

    def _print(self, text: str, style: str) -> None:
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


@dataclass(slots=True)
class LoadWatcher:
    """A load on a stage's bar: records, bytes, records per second, and how far the table is behind. A `run.Watcher`."""

    teller: Teller
    stage: Stage
    _topic: str = ""
    _offsets: int = 0
    _shown: int = 0
    _began: float = 0.0

    def begins(self, topic: str, offsets: int) -> None:
        """A commit's work begins."""
        self._topic, self._offsets, self._shown = topic, offsets, 0
        self._began = self.teller.clock.monotonic()
        self.stage.expect(offsets)

    def reading(self, records: int, value_bytes: int) -> None:
        """Told every half second."""
        self.stage.advance(max(0, records - self._shown))
        self._shown = max(records, self._shown)
        seconds = max(self.teller.clock.monotonic() - self._began, 0.001)
        lag = max(0, self._offsets - records)
        rate = f"{records / seconds:,.0f}/s"
        self.stage.notify(f"{self._topic}  {size_text(value_bytes)}  {rate}  lag {lag:,}")

    def committed(self, topic: str, result: LoadResult, lag: int) -> None:
        """A commit happened."""
        self.stage.notify(f"{topic}  {result.rows:,} rows committed  lag {lag:,}")

    def warns(self, text: str) -> None:
        """Seen in any case."""
        self.teller.warn(text)
