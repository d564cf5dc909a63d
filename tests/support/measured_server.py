"""Runs a broker whose event loop measures the processor time of each of its turns.

    python -m tests.support.measured_server [--without-collector] DIRECTORY [NAME=VALUE ...]

Prints the ports, then answers each line on standard input with a line of JSON: the longest turn since the last answer,
in ms of the loop's own thread (other processes of the machine do not count), the error that was logged last, if any,
and to the line `held` what the broker holds. Without the garbage collector only reference counts free memory.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from ottla.broker import config
from ottla.broker.broker import Broker
from ottla.broker.requests.request import Request
from ottla.core import garbage_collection
from ottla.core.clock import SystemClock
from ottla.core.files import SystemFiles
from ottla.net.connection import PendingResponse, ServerConnection
from ottla.net.tls import TlsStream
from ottla.security.sasl.sign_in import SignIn

HELD = "held"


class MeasuredLoop(asyncio.SelectorEventLoop):
    """Remembers the processor time of its longest turn."""

    worst_s = 0.0

    def _run_once(self) -> None:
        began = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.worst_s = max(self.worst_s, time.thread_time() - began)


class LastError(logging.Handler):
    """Remembers the last logged error: a handler that fails at once would hold the loop for no time."""

    message = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.message = self.format(record).replace("\n", " | ")


async def main(directory: Path, options: dict[str, str]) -> None:
    """Serve until standard input ends."""
    given, _ = config.read(
        file=None, environment={}, options={"listeners": "PLAINTEXT://127.0.0.1:0", "node.id": "1", **options}
    )
    broker = Broker(given, [directory], clock=SystemClock(), files=SystemFiles())
    loop: Any = asyncio.get_running_loop()
    over = asyncio.Event()
    errors = LastError(logging.ERROR)
    logging.getLogger().addHandler(errors)

    def on_line() -> None:
        line = sys.stdin.readline()
        if not line:
            loop.remove_reader(sys.stdin.fileno())
            over.set()
            return
        answer: dict[str, Any] = {"turn_ms": loop.worst_s * 1000, "error": errors.message}
        if line.strip() == HELD:  # looking at all objects makes a long turn by itself
            answer["held"] = held(broker)
        say(json.dumps(answer))
        loop.worst_s, errors.message = 0.0, ""

    try:
        endpoints = await broker.start()
        if gc.isenabled():
            garbage_collection.take_over()
        say(" ".join(str(endpoint.port) for endpoint in endpoints))
        loop.add_reader(sys.stdin.fileno(), on_line)
        await over.wait()
    finally:
        await broker.stop()


def held(broker: Any) -> dict[str, int]:
    """Count what belongs to clients."""
    listeners, services, driver = broker._listeners, broker.services, broker._driver
    objects = Counter(type(each) for each in gc.get_objects())
    return {
        "connections": len(listeners.connections),
        **{
            f"{kind.__name__} objects": objects[kind]
            for kind in (ServerConnection, TlsStream, SignIn, Request, PendingResponse)
        },
        "buffers": sum(connection._buffer is not listeners._shared.bytes for connection in listeners.connections),
        "bytes of requests": listeners._budget.used_bytes,
        "bytes of requests before the sign-in": getattr(listeners._sign_in_budget, "used_bytes", 0),
        "bytes of decoded requests": driver._decoded.used_bytes,
        "bytes of batches": services.record_validation.held_bytes,
        "requests": len(driver._tasks),
        "delayed responses": sum(not each.is_completed for _, _, each in services.delayed_operations._heap),
        "tasks": len(asyncio.all_tasks()),
        "handshakes": listeners.unfinished_handshakes,
        "ends of sessions": 0 if services.sign_ins is None else len(services.sign_ins._expiries),
        "addresses": len(listeners.limits._per_host),
    }


def say(line: str) -> None:
    """Write a line to the parent process."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--without-collector"]
    if len(arguments) < len(sys.argv) - 1:
        gc.disable()
    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        runner.run(main(Path(arguments[0]), dict(option.split("=", 1) for option in arguments[1:])))
