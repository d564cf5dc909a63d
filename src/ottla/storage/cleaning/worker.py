"""Runs compaction in a process of its own: outside the broker's loop and interpreter lock, and with less priority.

    python -m ottla.storage.cleaning.worker

It knows nothing of the broker but what comes through its standard input (`worker_messages.py`). Killed at any moment
it costs nothing: the names of its files belong to the current pass alone.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from typing import Any, BinaryIO

from ottla.core.clock import SystemClock
from ottla.core.files import SystemFiles
from ottla.storage.cleaning.cleaner import run_pass
from ottla.storage.cleaning.cleaning_plan import CleanedGroup, CleaningPlan
from ottla.storage.cleaning.errors import described, failure_of
from ottla.storage.cleaning.throttler import Throttler
from ottla.storage.cleaning.worker_messages import LENGTH, framed

NICENESS = 10
Inbox = queue.SimpleQueue[dict[str, Any]]


def main() -> None:
    """Serve passes until the broker's end of the pipe closes."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # of a terminal or a process group: the broker ends its worker itself
    os.nice(NICENESS)
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, inbox), daemon=True).start()
    while True:
        message = inbox.get()
        for answer in _answers(CleaningPlan.from_json(message["clean"]), inbox):
            sys.stdout.buffer.write(framed(answer))
            sys.stdout.buffer.flush()


def _listen(source: BinaryIO, inbox: Inbox) -> None:
    """Hand on messages; the end of the broker, in whatever way it came, is the end of this process."""
    import json

    while len(head := source.read(LENGTH.size)) == LENGTH.size:
        inbox.put(json.loads(source.read(LENGTH.unpack(head)[0])))
    os._exit(0)


def _answers(plan: CleaningPlan, inbox: Inbox) -> Any:
    clock = SystemClock()
    throttle = Throttler(plan.io_bytes_per_second, clock=clock, sleep=time.sleep)
    try:
        for step in run_pass(plan, SystemFiles(), clock=clock, throttle=throttle):
            if isinstance(step, CleanedGroup):
                yield {"group": step.to_json()}
                assert "next" in inbox.get()
            else:
                yield {"done": step.to_json()}
    except Exception as error:  # noqa: BLE001 - whatever it is, the broker must hear of it and the next log have its turn
        yield {"failed": {"kind": failure_of(error).value, "why": described(error)}}


if __name__ == "__main__":
    main()
