"""Handles the signals of the broker process. None of them ends it uncleanly, other than SIGKILL.

SIGTERM, SIGINT: stop cleanly. SIGHUP: reopen the log file; without --log-file stop cleanly, because the terminal was
closed, or continue if SIGHUP was ignored at the start (`nohup`). SIGQUIT: write the stack of every thread to the log,
also while the event loop is blocked. SIGUSR1, SIGUSR2: log the state of the broker.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import signal
from collections import Counter
from collections.abc import Callable, Mapping

from ottla.broker.process.log_output import LogOutput

log = logging.getLogger(__name__)


def handle_signals(
    output: LogOutput,
    *,
    stop: Callable[[], None],
    state: Callable[[], Mapping[str, object]],
    reopened: Callable[[], None] = lambda: None,
) -> None:
    """Install the handlers on the running event loop; `state` returns what SIGUSR1 logs.

    `reopened` is called after SIGHUP has reopened the log file.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    if output.path is not None:
        loop.add_signal_handler(signal.SIGHUP, _reopen, output, reopened)
    elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, stop)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        loop.add_signal_handler(number, _log_state, state)
    _dump_threads_on_quit(output)


def _reopen(output: LogOutput, reopened: Callable[[], None]) -> None:
    log.info("SIGHUP: reopening the log file")
    output.reopen()
    _dump_threads_on_quit(output)
    log.info("the log file is reopened")
    reopened()


def _dump_threads_on_quit(output: LogOutput) -> None:
    faulthandler.register(signal.SIGQUIT, file=output.stream, all_threads=True, chain=False)


def _log_state(state: Callable[[], Mapping[str, object]]) -> None:
    """Log the broker's numbers and what its tasks wait for, in one line each."""
    log.info("state: %s", ", ".join(f"{name} {value}" for name, value in state().items()))
    waiting = Counter(_where(task) for task in asyncio.all_tasks())
    for where, count in waiting.most_common():
        log.info("state: %d tasks at %s", count, where)


def _where(task: asyncio.Task[object]) -> str:
    """Return the name of a task's coroutine and the line where it waits."""
    name = getattr(task.get_coro(), "__qualname__", task.get_name())
    frames = task.get_stack(limit=1)
    return f"{name}:{frames[0].f_lineno}" if frames else name
