"""Runs the broker as a process: reads its settings, starts it, serves, and stops it cleanly.

One of the three places that catch all remaining errors: here they become one line and an exit code.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ottla.broker import config as configuration
from ottla.broker import descriptor_limits, endpoints
from ottla.broker.broker import Broker
from ottla.broker.config import BrokerConfig
from ottla.broker.open_storage import NoUsableDirectory, log_directories
from ottla.coordination.membership import BrokerIdInUse
from ottla.core import collector
from ottla.core.clock import SystemClock
from ottla.core.errors import KafkaError
from ottla.core.files import SystemFiles
from ottla.core.settings import InvalidSettings
from ottla.net.server import Endpoint
from ottla.storage.directories.log_directory import DirectoryInUse, ForeignDirectory
from ottla.storage.directories.log_manager import DuplicateLog

log = logging.getLogger(__name__)

OK, FAILED, WRONG_SETTINGS = 0, 1, 2


class CannotStart(Exception):
    """Reports in one line why the broker does not start."""


def run(
    *,
    config_file: Path | None = None,
    options: Mapping[str, str] | None = None,
    port: int | None = None,
    data: Path | None = None,
    say: Callable[[str], None] = print,
) -> int:
    """Serve until a signal. Returns the exit code: 0 after a clean stop, 2 for wrong settings, 1 for the rest."""
    _log_to_stderr()
    if not __debug__:
        _complain("python -O takes the asserts out that guard the log (docs/decisions/0006): start without it")
        return FAILED
    try:
        config = _read_config(config_file, dict(options or {}), port, data)
        return _serve(config, say)
    except InvalidSettings as error:
        for problem in error.problems:
            _complain(problem)
        return WRONG_SETTINGS
    except CannotStart as error:
        _complain(error)
        return FAILED


def _complain(trouble: object) -> None:
    sys.stderr.write(f"ottla: {trouble}\n")


def _log_to_stderr() -> None:
    logging.basicConfig(
        level=os.environ.get("OTTLA_LOG_LEVEL", "INFO").upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def _read_config(file: Path | None, options: dict[str, str], port: int | None, data: Path | None) -> BrokerConfig:
    if port is not None and "listeners" not in options:
        options |= endpoints.given_port(port)
    if data is not None:
        options["log.dirs"] = str(data)
    try:
        config, warnings = configuration.read(file=file, environment=os.environ, options=options)
    except (OSError, UnicodeDecodeError) as error:
        raise CannotStart(f"cannot read the configuration {file}: {error}") from error
    for warning in warnings:
        log.warning("%s", warning)
    endpoints.to_listen_at(config.net)  # invalid listeners are invalid settings: report them before anything is opened
    return config


def _serve(config: BrokerConfig, say: Callable[[str], None]) -> int:
    try:
        paths = log_directories(config)
        config = configuration.of_directories(config, paths)
        import uvloop

        return uvloop.run(_main(config, paths, say))
    except DirectoryInUse as error:
        raise CannotStart(f"{error}: stop it, or give --data another directory") from error
    except (ForeignDirectory, DuplicateLog, NoUsableDirectory, BrokerIdInUse) as error:
        raise CannotStart(str(error)) from error
    except KafkaError as error:
        raise CannotStart(error.message) from error
    except OSError as error:
        raise CannotStart(_explain(error, paths[0])) from error


def _explain(error: OSError, path: Path) -> str:
    """Describe an error of the operating system in one line, with the next step."""
    where = error.filename or path
    match error.errno:
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"no permission to write {where}: give --data a directory of your own"
        case errno.ENOSPC | errno.EDQUOT:
            return f"the disk of {path} is full: free some space, or give --data another directory"
        case errno.EADDRINUSE:
            return f"{error.strerror or error}: another program listens there; give --port another port, or 0 for any"
        case errno.EMFILE | errno.ENFILE:
            return "too many open files: raise the limit (ulimit -n)"
        case errno.ENOTDIR | errno.EEXIST:
            return f"{where} is not a directory: give --data a directory"
        case _:
            return f"{error.strerror or error}: {where}" if error.filename else str(error)


async def _main(config: BrokerConfig, paths: Sequence[Path], say: Callable[[str], None]) -> int:
    loop = asyncio.get_running_loop()
    stop, lost = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    limits = descriptor_limits.divide(descriptor_limits.raise_limit(), segments_max=config.server.segments_open_max)

    def all_lost() -> None:
        lost.set()
        stop.set()

    broker = Broker(
        config, paths, clock=SystemClock(), files=SystemFiles(kept_open_max=limits.segments), descriptors=limits,
        on_all_lost=all_lost,
    )  # fmt: skip
    try:
        opened = await broker.start()
    except BaseException:
        await broker.stop()
        raise
    gc.collect()
    collector.exclude_present_objects()  # objects of the start-up live on
    collector.set_thresholds()
    say(_ready_line(opened, config, paths))
    sys.stdout.flush()
    await stop.wait()
    log.info("stopping")
    await broker.stop()
    if lost.is_set():
        _complain("no log directory can be used any more, so the broker has stopped; see the log above")
        return FAILED
    log.info("stopped: everything is on the disk")
    return OK


def _ready_line(opened: list[Endpoint], config: BrokerConfig, paths: Sequence[Path]) -> str:
    where = ", ".join(f"{each.host or '*'}:{each.port}" for each in opened)
    data = ",".join(map(str, paths))
    return f"ottla ready: {where} node {config.server.node_id} data {data} in {_seconds_since_start():.2f} s"


def _seconds_since_start() -> float:
    """Seconds since this process began, interpreter and imports included."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - began
    except (OSError, ValueError, AttributeError):
        return time.process_time()
