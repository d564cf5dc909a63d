"""Runs the broker as a process: reads its settings, starts it, serves, and stops it cleanly.

Errors of settings, disks, ports and the metadata store become one line and an exit code. Any other error at the start
is a bug of ours, and ends the process with its traceback.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ottla.broker import config as configuration
from ottla.broker import listeners as endpoints
from ottla.broker.broker import Broker
from ottla.broker.config import BrokerConfig
from ottla.broker.process.log_output import LogOutput
from ottla.broker.process.signals import handle_signals
from ottla.broker.startup import descriptor_limits
from ottla.broker.startup.cluster_store import store_opener, worker_store_opener, zookeeper_of
from ottla.broker.startup.open_storage import NoUsableDirectory, OpenStore, log_directories
from ottla.broker.startup.readiness import Ready, ReadyFile, ReadyWorker, notify, seconds_since_start
from ottla.core import garbage_collection
from ottla.core.clock import SystemClock
from ottla.core.errors import KafkaError
from ottla.core.files import SystemFiles
from ottla.core.settings import InvalidSettings, SettingProblem
from ottla.metadata_store.broker_registration import BrokerIdInUse
from ottla.metadata_store.store import SessionLost
from ottla.metadata_store.znodes import MalformedNode
from ottla.storage.directories.log_directory import DirectoryInUse, ForeignDirectory
from ottla.storage.directories.log_manager import DuplicateLog

if TYPE_CHECKING:  # imported for --workers only, and with the HTTP listener
    from ottla.broker.process.companion import Companion
    from ottla.broker.process.workers import WorkerOptions

T = TypeVar("T")
log = logging.getLogger(__name__)

OK, FAILED, WRONG_SETTINGS = 0, 1, 2
_COST_OF_ASYNCIO = (
    "the event loop is asyncio's, which takes more processor time for small requests; the extra `standard` has uvloop"
)


class CannotStart(Exception):
    """Reports in one line why the broker does not start."""


class ProcessOptions(NamedTuple):
    """The options of the process, as opposed to the settings of the broker."""

    log_file: Path | None = None  # standard error without one
    ready_file: Path | None = None
    is_ready_json: bool = False
    workers: int = 0  # so many brokers as processes of their own
    store_socket: Path | None = None  # of a worker: where its owner serves the metadata store
    initial_users: Mapping[str, str] = MappingProxyType({})  # passwords by user: see startup/initial_users.py
    make_companion: Callable[[BrokerConfig], Companion | None] = lambda _: None  # raises InvalidSettings


def run(
    *,
    config_file: Path | None = None,
    options: Mapping[str, str] | None = None,
    port: int | None = None,
    data: Path | None = None,
    is_dev: bool = False,
    process: ProcessOptions | None = None,
    print_line: Callable[[str], None] = print,
) -> int:
    """Serve until a signal. Returns the exit code: 0 after a clean stop, 2 for wrong settings, 1 for the rest."""
    process = process or ProcessOptions()
    try:
        output = LogOutput(process.log_file)
    except OSError as error:
        _complain(f"cannot write the log file {process.log_file}: {error.strerror}")
        return FAILED
    output.install()
    if not __debug__:
        _complain("python -O takes the asserts out that guard the log (docs/design/requests.md): start without it")
        return FAILED
    try:
        given = dict(options or {})
        config, paths = _read_config(config_file, given, port, data, is_dev=is_dev, workers=process.workers)
        output.use_format(config.events.log_format)
        if is_dev:
            set_by_dev = ", ".join(f"{key}={value}" for key, value in configuration.settings_of_dev(config).items())
            log.info("--dev sets %s", set_by_dev or "nothing: other sources set everything")
        if process.workers:
            from ottla.broker.process.workers import WorkerOptions

            worker_options = WorkerOptions(config_file, given, is_dev, process.log_file)
            return _serve(_main_of_workers(config, paths, worker_options, process, output, print_line), paths)
        return _serve(_main(config, paths, process, output, print_line), paths)
    except InvalidSettings as error:
        for problem in error.problems:
            _complain(problem, output)
        return WRONG_SETTINGS
    except CannotStart as error:
        _complain(error, output)
        return FAILED


def check(
    *,
    config_file: Path | None = None,
    options: Mapping[str, str] | None = None,
    port: int | None = None,
    data: Path | None = None,
    is_dev: bool = False,
    is_json: bool = False,
    print_line: Callable[[str], None] = print,
) -> int:
    """Validate the settings and the directories, and start nothing. Returns the exit code that `run` would."""
    from ottla.broker.startup.start_check import StartCheck

    result = StartCheck()
    LogOutput().install()
    try:
        config, paths = _read_config(
            config_file, dict(options or {}), port, data, is_dev=is_dev, warn=result.warnings.append
        )
        result.check_directories(config, paths)
    except InvalidSettings as error:
        result.invalid_settings += map(str, error.problems)
    except CannotStart as error:
        result.problems.append(str(error))
    print_line(result.json() if is_json else result.text())
    return WRONG_SETTINGS if result.invalid_settings else FAILED if result.problems else OK


def _complain(trouble: object, output: LogOutput | None = None) -> None:
    sys.stderr.write(f"ottla: {trouble}\n")
    if output is not None and output.path is not None:
        log.error("%s", trouble)


def _read_config(
    file: Path | None,
    options: dict[str, str],
    port: int | None,
    data: Path | None,
    *,
    is_dev: bool,
    workers: int = 0,
    warn: Callable[[str], None] = lambda warning: log.warning("%s", warning),
) -> tuple[BrokerConfig, list[Path]]:
    """Read the settings, and the directories that they name. Raises InvalidSettings or CannotStart."""
    if port is not None and "listeners" not in options:
        options |= endpoints.given_port(port)
    if data is not None:
        options["log.dirs"] = str(data)
    try:
        config, warnings = configuration.read(
            file=file, environment=os.environ, options=options, is_dev=is_dev, is_process=True
        )
    except (OSError, UnicodeDecodeError) as error:
        raise CannotStart(f"cannot read the configuration {file}: {error}") from error
    except InvalidSettings as error:
        for warning in error.warnings:
            warn(warning)
        raise
    for warning in warnings:
        warn(warning)
    # Invalid listeners are invalid settings: report them before anything is opened.
    if config.http.listener:
        from ottla.broker.http_endpoint import http_address

        http_address(config)
    is_in_zookeeper = zookeeper_of(config) is not None
    if workers:
        from ottla.broker.process.workers import check_listeners, of_first_worker

        endpoints.check_advertised(of_first_worker(config).net)
        check_listeners(config.net.listeners, workers)
        if is_in_zookeeper:
            problem = "--workers share a metadata store of their own. Set one of the two"
            raise InvalidSettings([SettingProblem("zookeeper.connect", config.zookeeper.connect, problem)])
    else:
        endpoints.check_advertised(config.net)
    try:
        paths = log_directories(config)
    except NoUsableDirectory as error:
        raise CannotStart(str(error)) from error
    return configuration.of_directories(config, paths), paths


def _run_on_loop(main: Coroutine[Any, Any, int]) -> int:
    """Run on uvloop, or on asyncio's own loop where uvloop is not installed."""
    try:
        import uvloop
    except ImportError as error:
        log.info("uvloop cannot be imported (%s): %s", error, _COST_OF_ASYNCIO)
        return asyncio.run(main)
    return uvloop.run(main)


def _serve(main: Coroutine[Any, Any, int], paths: Sequence[Path]) -> int:
    try:
        return _run_on_loop(main)
    except DirectoryInUse as error:
        raise CannotStart(f"{error}: stop it, or give --data another directory") from error
    except (ForeignDirectory, DuplicateLog, NoUsableDirectory, BrokerIdInUse) as error:
        raise CannotStart(str(error)) from error
    except MalformedNode as error:
        raise CannotStart(f"a node of the metadata store is malformed, restore its value: {error}") from error
    except KafkaError as error:
        raise CannotStart(error.message) from error
    except SessionLost as error:
        text = "the session with the metadata store was lost while the broker started: start it again"
        raise CannotStart(text) from error
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
            return f"{error.strerror or error}: the port is in use; give --port another one, or 0 for any"
        case errno.EMFILE | errno.ENFILE:
            return "too many open files: raise the limit (ulimit -n)"
        case errno.ENOTDIR | errno.EEXIST:
            return f"{where} is not a directory: give --data a directory"
        case _:
            return f"{error.strerror or error}: {where}" if error.filename else str(error)


def _store_opener(config: BrokerConfig, paths: Sequence[Path], process: ProcessOptions) -> OpenStore | None:
    if process.store_socket is not None:
        return worker_store_opener(process.store_socket, config.server.node_id)
    return store_opener(config, paths)


async def _main_of_workers(
    config: BrokerConfig,
    paths: Sequence[Path],
    options: WorkerOptions,
    process: ProcessOptions,
    output: LogOutput,
    print_line: Callable[[str], None],
) -> int:
    """Run the owner of several brokers."""
    from ottla.broker.process.workers import Owner, WorkerFailed

    stop = asyncio.Event()
    owner = Owner(config, paths, process.workers, options, process.initial_users)
    handle_signals(output, stop=stop.set, state=owner.state, reopened=owner.reopen_logs)
    ready_file = None if process.ready_file is None else ReadyFile(process.ready_file)
    try:
        if ready_file is not None:
            ready_file.remove()
        workers = await _unless_stopped(owner.start(), stop)
        if workers is None:
            await owner.stop()
            return OK
        ready = Ready(
            [listener for worker_ready in workers for listener in worker_ready.listeners],
            config.server.node_id,
            workers[0].cluster_id,
            paths,
            seconds_since_start(),
            [ReadyWorker(worker_ready.node_id, worker_ready.pid, worker_ready.bootstrap) for worker_ready in workers],
        )
        if ready_file is not None:
            ready_file.write(ready)
    except WorkerFailed as error:
        await owner.stop()
        return error.exit_code or FAILED
    except BaseException:
        await owner.stop()
        raise
    print_line(ready.json() if process.is_ready_json else ready.line())
    sys.stdout.flush()
    notify(os.environ, READY="1", STATUS=ready.line())
    await stop.wait()
    log.info("stopping the workers")
    notify(os.environ, STOPPING="1", STATUS="stopping")
    if ready_file is not None:
        ready_file.remove()
    await owner.stop()
    log.info("stopped: everything is on the disk")
    return OK


async def _unless_stopped(work: Coroutine[Any, Any, list[T]], stop: asyncio.Event) -> list[T] | None:
    """Return the result of the work, or None if the process was asked to stop before."""
    starting, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        return starting.result() if starting.done() else None
    finally:
        starting.cancel()
        stopping.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)


async def _main(
    config: BrokerConfig,
    paths: Sequence[Path],
    process: ProcessOptions,
    output: LogOutput,
    print_line: Callable[[str], None],
) -> int:
    stop, lost = asyncio.Event(), asyncio.Event()
    limits = descriptor_limits.divide(descriptor_limits.raise_limit(), segments_max=config.server.segments_open_max)

    def all_lost() -> None:
        lost.set()
        stop.set()

    companion = process.make_companion(config)
    broker = Broker(
        config,
        paths,
        clock=SystemClock(),
        files=SystemFiles(open_files_max=limits.segments),
        descriptors=limits,
        on_all_lost=all_lost,
        open_store=_store_opener(config, paths, process),
        initial_users=process.initial_users,
        accounting=None if companion is None else companion.accounting,
    )
    handle_signals(output, stop=stop.set, state=lambda: _state(broker))
    if companion is None:
        return await _run_broker(broker, config, paths, process, output, print_line, stop, lost)
    companion.start(broker)
    try:
        return await _run_broker(broker, config, paths, process, output, print_line, stop, lost)
    finally:
        await companion.stop()


def _state(broker: Broker) -> dict[str, int]:
    """Count what the broker holds; an operator's signal logs it."""
    services, listeners = broker.services, broker.listeners
    if services is None or listeners is None:
        return {"starting": 1}
    topics = services.cluster.current.topics
    return {
        "connections": len(listeners.connections),
        "requests in progress": sum(bool(connection.answering) for connection in listeners.connections),
        "delayed responses": len(services.delayed_operations),
        "topics": len(topics),
        "partitions": sum(len(topic.partitions) for topic in topics.values()),
        "partitions served": len(services.replicas.partitions),
        "late transactions": broker.late_transactions,
        "open files": len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else -1,  # noqa: PTH112, PTH208
    }


async def _run_broker(
    broker: Broker,
    config: BrokerConfig,
    paths: Sequence[Path],
    process: ProcessOptions,
    output: LogOutput,
    print_line: Callable[[str], None],
    stop: asyncio.Event,
    lost: asyncio.Event,
) -> int:
    """Start the broker, report that it serves, and stop it when it is asked for."""
    ready_file = None if process.ready_file is None else ReadyFile(process.ready_file)
    try:
        if ready_file is not None:
            ready_file.remove()
        with garbage_collection.paused():
            opened = await _unless_stopped(broker.start(), stop)
        if opened is None:
            await broker.stop()
            return _stopped("stopped before the broker was ready", lost, output)
        ready = Ready(opened, config.server.node_id, broker.cluster_id, paths, seconds_since_start())
        if ready_file is not None:
            ready_file.write(ready)
    except BaseException:
        await broker.stop()
        raise
    print_line(ready.json() if process.is_ready_json else ready.line())
    sys.stdout.flush()
    notify(os.environ, READY="1", STATUS=ready.line())
    garbage_collection.take_over()  # after the start: its objects live on
    await stop.wait()
    log.info("stopping")
    notify(os.environ, STOPPING="1", STATUS="stopping")
    if ready_file is not None:
        ready_file.remove()
    await broker.stop()
    return _stopped("stopped: everything is on the disk", lost, output)


def _stopped(text: str, lost: asyncio.Event, output: LogOutput) -> int:
    """Report the end of the broker; returns the exit code."""
    if lost.is_set():
        _complain("no log directory can be used any more, so the broker has stopped; see the log above", output)
        return FAILED
    log.info("%s", text)
    return OK
