"""Runs brokers in memory as a process, for tests in other languages: `ottla server --memory`.

The brokers are those of `kafka()`. They serve before the HTTP library is imported; the control API's socket listens
from the start, so that a request which comes earlier waits.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from ottla.broker.process.log_output import LogOutput
from ottla.broker.startup.readiness import seconds_since_start
from ottla.core import garbage_collection
from ottla.core.errors import KafkaError
from ottla.core.runtime import random_bytes
from ottla.core.settings import InvalidSettings
from ottla.testing.kit.kafka import Kafka, kafka

log = logging.getLogger(__name__)

OK, FAILED, WRONG_SETTINGS = 0, 1, 2
TOKEN_VARIABLE = "OTTLA_CONTROL_TOKEN"  # noqa: S105 - the name of it
_HOST = "127.0.0.1"
_TOKEN_BYTES = 24
_LIBRARY = "h11"
_EXTRA = "ottla[testing]"


class MemoryOptions(NamedTuple):
    """The options of the process."""

    port: int  # of the first broker; 0: any
    brokers: int
    options: Mapping[str, str]  # settings of the brokers
    control_port: int | None = None  # None: any free one, and no control API where its library is missing
    token: str | None = None  # None: a random one
    log_file: Path | None = None
    is_ready_json: bool = False


class _Address(NamedTuple):
    url: str
    token: str
    is_random: bool


def run(given: MemoryOptions, *, print_line: Callable[[str], None] = print) -> int:
    """Serve until a signal. Returns the exit code: 0 after a stop, 2 for wrong settings, 1 for the rest."""
    try:
        LogOutput(given.log_file).install()
    except OSError as error:
        return _complain(f"cannot write the log file {given.log_file}: {error.strerror}")
    try:
        listener = _listen(given)
    except OSError as error:
        return _complain(f"the control API cannot listen on port {given.control_port}: {error.strerror or error}")
    try:
        brokers = kafka(brokers=given.brokers, options=given.options, port=given.port)
    except ValueError as error:
        _complain(str(error))
        return WRONG_SETTINGS
    try:
        with garbage_collection.paused():
            brokers.start()
    except InvalidSettings as error:
        for problem in error.problems:
            _complain(str(problem))
        return WRONG_SETTINGS
    except OSError as error:
        return _complain(f"{error.strerror or error}: give --port another one, or 0 for any")
    except KafkaError as error:
        return _complain(error.message)
    try:
        return _serve(given, brokers, listener, print_line)
    finally:
        brokers.stop()


def _complain(problem: str) -> int:
    sys.stderr.write(f"ottla: {problem}\n")
    return FAILED


def _listen(given: MemoryOptions) -> socket.socket | None:
    """Return the listening socket of the control API; None if its library is not installed. Raises OSError."""
    if not has_library():
        return None
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((_HOST, given.control_port or 0))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def has_library() -> bool:
    """Return whether the library of the control API is installed."""
    return importlib.util.find_spec(_LIBRARY) is not None


def _serve(
    given: MemoryOptions, brokers: Kafka, listener: socket.socket | None, print_line: Callable[[str], None]
) -> int:
    control = None
    if listener is not None:
        token = given.token or os.environ.get(TOKEN_VARIABLE)
        url = f"http://{_HOST}:{listener.getsockname()[1]}"
        control = _Address(url, token or random_bytes(_TOKEN_BYTES).hex(), is_random=not token)
    ready = _json(brokers, control) if given.is_ready_json else _line(brokers, control)
    with asyncio.Runner() as runner:
        runner.run(_serve_until_stopped(brokers, listener, control, lambda: print_line(ready)))
    return OK


async def _serve_until_stopped(
    brokers: Kafka, listener: socket.socket | None, control: _Address | None, report_ready: Callable[[], None]
) -> None:
    """Report that the brokers serve once a signal stops them cleanly, and serve the control API."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    report_ready()
    sys.stdout.flush()
    if listener is None or control is None:
        await stop.wait()
        return
    with garbage_collection.paused():
        from ottla.testing.kit.control_api.operations import Control
        from ottla.testing.kit.control_api.server import serve_control_api
    with listener:
        await serve_control_api(Control(brokers), listener, control.token, stop=stop)


def _line(brokers: Kafka, control: _Address | None) -> str:
    """Format the ready line for people."""
    where = brokers.bootstrap.replace(",", ", ")
    line = f"ottla ready: {where} in memory in {seconds_since_start():.2f} s"
    if control is None:
        return f"{line}; without a control API, which needs {_EXTRA}"
    return f"{line}, control {control.url}{f' token {control.token}' if control.is_random else ''}"


def _json(brokers: Kafka, control: _Address | None) -> str:
    """Format the same for programs: one line of JSON."""
    ready = {
        "ready": True,
        "pid": os.getpid(),
        "bootstrap": brokers.bootstrap,
        "brokers": {str(node_id): address for node_id, address in brokers.brokers.items()},
        "control": None if control is None else {"url": control.url, "token": control.token},
        "seconds": round(seconds_since_start(), 3),
    }
    return json.dumps(ready)
