"""Starts a broker for `ottla server`, whose complete command lines are read here without typer.

`cli/server.py` declares the options of `OPTIONS` for typer, which prints the help, completes, and explains what is
wrong; `cli/base_commands.py` does so where typer is not installed. Why typer is not loaded: docs/design/startup.md.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from getpass import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.cli.errors import usage_error
from ottla.core import garbage_collection

if TYPE_CHECKING:  # imported once the command line is read
    from ottla.broker.config import BrokerConfig
    from ottla.broker.process.companion import Companion

COMMAND = "server"
HELP = """Start a broker.

Without options it listens on 127.0.0.1:9092. The value of a setting comes from the first of: the options of this
command, environment variables (OTTLA_LOG_SEGMENT_BYTES for log.segment.bytes), the --config file, the default
(docs/configuration.md). --dev changes only defaults. Signals, logs and running it as a service: docs/operating.md.

With --memory nothing is read from files or the environment, and nothing is written: docs/control-api.md.
"""
STDIN = 0
PORT_MAX = 65535
PORT_DEFAULT = 9092
WORKERS_MAX = 64
BROKERS_MAX = 9
_CHUNK = 4096


class ReadyFormat(StrEnum):
    """The format of the ready line, and of the result of --check."""

    TEXT = "text"
    JSON = "json"


class ServerOptions(NamedTuple):
    """The options of `ottla server`."""

    port: int | None = None
    host: str | None = None
    data: Path | None = None
    config: Path | None = None
    option: tuple[str, ...] = ()
    dev: bool = False
    check: bool = False
    log_file: Path | None = None
    ready_file: Path | None = None
    shape: ReadyFormat = ReadyFormat.TEXT
    while_stdin_open: bool = False
    workers: int = 1
    memory: bool = False
    brokers: int = 1
    control_port: int | None = None
    control_token: str | None = None
    store_socket: Path | None = None
    insecure_listeners: bool = False
    init_user: str | None = None
    init_password_file: Path | None = None
    console: bool = False


def _number(text: str, least: int, most: int) -> int:
    """Return a number within limits. Raises ValueError."""
    if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
        raise ValueError(text)
    return int(text)


class ServerOption(NamedTuple):
    """An option of the command line: the field of `ServerOptions` that it sets, and what the help says of it."""

    field: str
    names: tuple[str, ...]
    metavar: str  # empty: a flag
    help: str  # empty: not shown
    convert: Callable[[str], Any] = str


OPTIONS = (
    ServerOption(
        "port",
        ("--port", "-p"),
        "PORT",
        "Port to listen on; 0 picks a free one.",
        lambda text: _number(text, 0, PORT_MAX),
    ),
    ServerOption("host", ("--host",), "HOST", "Address to listen on. Default: 127.0.0.1."),
    ServerOption("data", ("--data",), "DIR", "The data directory (log.dirs).", Path),
    ServerOption("config", ("--config", "-c"), "FILE", "A server.properties with Kafka's names.", Path),
    ServerOption("option", ("--option", "-o"), "NAME=VALUE", "One setting; may be repeated."),
    ServerOption(
        "dev", ("--dev",), "", "Defaults for one developer: groups start at once, topics are created on first use."
    ),
    ServerOption("check", ("--check",), "", "Validate settings and directories, start nothing. Exit code 0 if valid."),
    ServerOption("log_file", ("--log-file",), "FILE", "Log to this file; SIGHUP reopens it. Default: stderr.", Path),
    ServerOption("ready_file", ("--ready-file",), "FILE", "A JSON file that exists while the broker serves.", Path),
    ServerOption(
        "shape",
        ("--format", "-f"),
        "<text|json>",
        "Print the ready line as text, or as JSON for programs.",
        ReadyFormat,
    ),
    ServerOption(
        "while_stdin_open", ("--while-stdin-open",), "", "Stop when standard input is closed, or its writer has ended."
    ),
    ServerOption(
        "workers",
        ("--workers", "-w"),
        "N",
        "Run N brokers, each a process with a port of its own, to use the machine's cores.",
        lambda text: _number(text, 1, WORKERS_MAX),
    ),
    ServerOption(
        "memory", ("--memory",), "", "Keep all files in memory, and serve a control API for tests of clients."
    ),
    ServerOption(
        "brokers",
        ("--brokers", "-n"),
        "N",
        "With --memory: so many brokers.",
        lambda text: _number(text, 1, BROKERS_MAX),
    ),
    ServerOption(
        "control_port",
        ("--control-port",),
        "PORT",
        "With --memory: the port of the control API. Default: a free one.",
        lambda text: _number(text, 0, PORT_MAX),
    ),
    ServerOption(
        "control_token",
        ("--control-token",),
        "TOKEN",
        "With --memory: the token of the control API. Default: OTTLA_CONTROL_TOKEN, or a random one.",
    ),
    ServerOption(
        "insecure_listeners",
        ("--insecure-listeners",),
        "",
        "Let listeners without TLS and SASL have other addresses than loopback.",
    ),
    ServerOption("store_socket", ("--store-socket",), "FILE", "", Path),
    ServerOption(
        "init_user",
        ("--init-user",),
        "NAME",
        "Give this user SCRAM credentials unless it has some: the first one. Its password is read from standard input.",
    ),
    ServerOption(
        "init_password_file",
        ("--init-password-file",),
        "FILE",
        "With --init-user: read the password from this file.",
        Path,
    ),
    ServerOption("console", ("--console",), "", "Serve the web console too, at ottla.http.listener or 127.0.0.1:8080."),
)
_BY_NAME = {name: option for option in OPTIONS for name in option.names}


class NotRead(ValueError):
    """Reports a word of a command line that is not read without typer."""


def read(arguments: Sequence[str]) -> ServerOptions:
    """Read a complete command line. Raises NotRead for any other, and for rare spellings: those are for typer.

    >>> read(["-p", "9092", "--data=/srv/ottla"]) == ServerOptions(port=9092, data=Path("/srv/ottla"))
    True
    """
    found: dict[str, Any] = {}
    settings: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        option = _BY_NAME.get(name)
        if option is None or (equals and not option.metavar):
            raise NotRead(f"unknown option {word}")
        if not option.metavar:
            found[option.field] = True
            continue
        if not equals:
            value = next(words, "")
        if not value or value.startswith("-"):
            raise NotRead(f"{name} needs a value: {option.metavar}")
        if option.field == "option":
            settings.append(value)
            continue
        try:
            found[option.field] = option.convert(value)
        except ValueError:
            raise NotRead(f"{name} {value} is not valid: {option.metavar} is expected") from None
    return ServerOptions(**found, option=tuple(settings))


def start(given: ServerOptions) -> int:
    """Run a broker until it is stopped, or check its settings; returns the exit code. Raises CommandFailed."""
    options = parse_options(given.option)
    if given.memory:
        return _start_in_memory(given, options)
    for name in ("brokers", "control_port", "control_token"):
        if getattr(given, name) != getattr(ServerOptions(), name):
            raise usage_error(f"--{name.replace('_', '-')} is for brokers in memory", "add --memory")
    if given.host is not None:
        if "listeners" in options:
            raise usage_error("--host and -o listeners=... contradict each other", "use one of them")
        host = f"[{given.host}]" if ":" in given.host else given.host
        options["listeners"] = f"PLAINTEXT://{host}:{PORT_DEFAULT if given.port is None else given.port}"

    if given.insecure_listeners:
        options["ottla.allow.insecure.listeners"] = "true"

    with garbage_collection.paused():
        from ottla.broker.process import server

    is_json = given.shape is ReadyFormat.JSON
    initial_users = _initial_users(given)
    if given.check:
        return server.check(
            config_file=given.config,
            options=options,
            port=given.port,
            data=given.data,
            is_dev=given.dev,
            is_json=is_json,
        )
    if given.while_stdin_open:
        threading.Thread(target=_stop_at_end_of, args=(STDIN,), daemon=True).start()  # noqa: TID251  # of a command, never simulated
    process = server.ProcessOptions(
        given.log_file,
        given.ready_file,
        is_json,
        given.workers if given.workers > 1 else 0,
        given.store_socket,
        initial_users,
        _make_console if given.console else _make_companion,
    )
    return server.run(
        config_file=given.config, options=options, port=given.port, data=given.data, is_dev=given.dev, process=process
    )


def _make_companion(config: BrokerConfig) -> Companion | None:
    """Return what serves metrics and health where the settings ask for it. Raises InvalidSettings."""
    if not (config.http.listener or config.metrics.otlp_endpoint):
        return None
    try:
        with garbage_collection.paused():
            from ottla.metrics.companion import BrokerCompanion

            if config.metrics.otlp_endpoint:
                import ottla.metrics.otlp  # noqa: F401
    except ModuleNotFoundError as error:
        from ottla.core.settings import InvalidSettings, SettingProblem

        is_otlp = (error.name or "").startswith("opentelemetry")
        key, text = "ottla.http.listener", config.http.listener
        if is_otlp or not text:
            key, text = "ottla.metrics.otlp.endpoint", config.metrics.otlp_endpoint
        extras = "extras metrics and otlp" if is_otlp else "extra metrics"
        problem = f"{error.name} is not installed: it needs the {extras} (docs/installation.md)"
        raise InvalidSettings([SettingProblem(key, text, problem)]) from error
    return BrokerCompanion(config)


def _make_console(config: BrokerConfig) -> Companion:
    """Return what serves the console, metrics and health. Raises InvalidSettings."""
    try:
        with garbage_collection.paused():
            from ottla.cli.server_console import ConsoleCompanion
    except ModuleNotFoundError as error:
        raise usage_error(
            f"{error.name} is not installed", "pip install '.[console]' in a clone, or 'FILE.whl[console]'"
        ) from error
    return ConsoleCompanion(config)


def _initial_users(given: ServerOptions) -> dict[str, str]:
    """Return the password of the first user. It is never an argument: those can be seen by all of a machine."""
    if given.init_user is None:
        if given.init_password_file is not None:
            raise usage_error("--init-password-file has no user", "add --init-user NAME")
        return {}
    if given.init_password_file is not None:
        try:
            text = given.init_password_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise usage_error(f"--init-password-file {given.init_password_file} cannot be read: {error}") from None
    elif given.while_stdin_open:
        raise usage_error("--init-user and --while-stdin-open both read standard input", "add --init-password-file")
    elif sys.stdin.isatty():
        text = getpass(f"Password of {given.init_user}: ")
    else:
        text = sys.stdin.readline()
    password = text.rstrip("\r\n")
    if not password:
        raise usage_error(f"the password of {given.init_user} is empty")
    return {given.init_user: password}


def _start_in_memory(given: ServerOptions, options: dict[str, str]) -> int:
    """Run brokers in memory, for tests of clients."""
    for name in (
        "host",
        "data",
        "config",
        "dev",
        "check",
        "ready_file",
        "workers",
        "store_socket",
        "insecure_listeners",
        "init_user",
        "console",
    ):
        if getattr(given, name) != getattr(ServerOptions(), name):
            raise usage_error(f"--memory and --{name.replace('_', '-')} contradict each other", "use one of them")
    with garbage_collection.paused():
        from ottla.testing.kit import memory_server

    if given.control_port is not None and not memory_server.has_library():
        raise usage_error(
            "the control API needs one more library", "pip install '.[testing]' in a clone, or 'FILE.whl[testing]'"
        )
    if given.while_stdin_open:
        threading.Thread(target=_stop_at_end_of, args=(STDIN,), daemon=True).start()  # noqa: TID251  # of a command, never simulated
    port = PORT_DEFAULT if given.port is None else given.port
    is_json = given.shape is ReadyFormat.JSON
    process = memory_server.MemoryOptions(
        port, given.brokers, options, given.control_port, given.control_token, given.log_file, is_json
    )
    return memory_server.run(process)


def _stop_at_end_of(descriptor: int) -> None:
    """Send SIGTERM to this process when the other end of a pipe is closed.

    A process that starts a broker gives it a pipe for standard input: when that process ends, even by SIGKILL, the
    system closes the pipe. (Read by descriptor: a thread blocked in `sys.stdin` would hold its lock while the
    interpreter shuts down.)
    """
    with contextlib.suppress(OSError):
        while os.read(descriptor, _CHUNK):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def parse_options(texts: Iterable[str]) -> dict[str, str]:
    """Parse `name=value` texts; the last value of a name wins. Raises `CommandFailed`.

    >>> parse_options(["log.segment.bytes=1048576", "a=b=c"])
    {'log.segment.bytes': '1048576', 'a': 'b=c'}
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise usage_error(f"-o {text}: write name=value, such as -o log.segment.bytes=1048576")
        found[name.strip()] = value.strip()
    return found
