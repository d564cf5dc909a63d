"""Shows numbers that change: on a terminal in place, elsewhere one text after the other."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Self, TypeVar

import typer

from ottla.cli.options import parse_seconds

if TYPE_CHECKING:
    from rich.live import Live

T = TypeVar("T")
INTERVAL_S = 2.0
Interval = Annotated[
    float,
    typer.Option(
        "--interval", "-i", parser=parse_seconds, metavar="SECONDS", help="Time between two samples: 2, 500ms."
    ),
]
Count = Annotated[int | None, typer.Option("--count", "-n", min=1, metavar="N", help="Stop after this many samples.")]
Once = Annotated[bool, typer.Option("--once", help="Stop after one sample.")]


class Screen:
    """Shows lines in place of those before, if standard output is a terminal; otherwise prints them."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()
        self._live: Live | None = None

    @property
    def has_keys(self) -> bool:
        """Return whether keys can be pressed."""
        return self.is_terminal and sys.stdin.isatty()

    @property
    def width(self) -> int | None:
        """Return the width of the terminal; None if there is none."""
        return shutil.get_terminal_size().columns if self.is_terminal else None

    @property
    def height(self) -> int | None:
        """Return the number of lines of the terminal; None if there is none."""
        return shutil.get_terminal_size().lines if self.is_terminal else None

    def __enter__(self) -> Self:
        if self.is_terminal:
            from rich.live import Live

            self._live = Live(auto_refresh=False, screen=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, lines: Sequence[str]) -> None:
        """Show these lines; on a terminal those that fit."""
        if self._live is None:
            print("\n".join(lines), flush=True)
            return
        from rich.text import Text

        self._live.update(Text("\n".join(lines[: self.height])), refresh=True)


@contextlib.contextmanager
def keys(pressed: Callable[[str], None]) -> Iterator[None]:
    """Call a function for each key that is pressed, if the command has a terminal on both sides; needs a loop."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield
        return
    import termios
    import tty

    descriptor, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)

    def read() -> None:
        for key in os.read(descriptor, 64).decode("ascii", "ignore"):
            pressed(key)

    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


async def samples(take: Callable[[], Awaitable[T]], interval_s: float, count: int | None) -> AsyncIterator[T]:
    """Yield what `take` returns, once in each interval, so many times or without end."""
    loop = asyncio.get_running_loop()
    taken, next_at = 0, loop.time()
    while count is None or taken < count:
        await asyncio.sleep(max(0.0, next_at - loop.time()))
        next_at = max(next_at, loop.time() - interval_s) + interval_s
        yield await take()
        taken += 1
