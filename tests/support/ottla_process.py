"""`ottla server` as a process of its own, the way a user starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ottla.broker import config
from tests.support.processes import close_output, free_port, stop, wait_for_line

START_TIMEOUT_S = 20.0
READY = re.compile(
    rb"ottla ready: (?P<host>\S+?):(?P<port>\d+)(?:, \S+)* node (?P<node>\d+) data (?P<data>.+) in (?P<took>[\d.]+) s"
)


class OttlaProcess:
    """One server and its directory. `start` and `stop` or `kill` alternate; the port stays the same."""

    def __init__(self, directory: Path, *, options: Sequence[str] = (), prefix: Sequence[str] = ()) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.options, self.prefix = tuple(options), tuple(prefix)
        self.port = free_port()
        self.log_file = directory / "ottla.err"
        self.process: subprocess.Popen[bytes] | None = None
        self.ready_line = ""
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def bootstrap(self) -> str:
        """host:port for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id while it runs."""
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> str:
        """What it wrote to standard error over all its starts."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def command(self) -> list[str]:
        """The command line it is started with."""
        program = str(Path(sys.executable).with_name("ottla"))
        options = [
            f"{option.partition('=')[0]}=${{env:{_variable(number)}}}" if _is_secret(option) else option
            for number, option in enumerate(self.options)
        ]
        return [*self.prefix, program, "server", "--port", str(self.port), "--data", str(self.data), *options]

    @property
    def secrets(self) -> dict[str, str]:
        """The variables with the options that are secret: anybody may read the command line of a process."""
        return {
            _variable(number): option.partition("=")[2]
            for number, option in enumerate(self.options)
            if _is_secret(option)
        }

    def start(
        self, *, before_exec: Callable[[], None] | None = None, timeout_s: float = START_TIMEOUT_S
    ) -> OttlaProcess:
        """Start it and wait for the ready line. Raises `NotReady` with what it said instead."""
        with self.log_file.open("ab") as errors:
            self.process = subprocess.Popen(
                self.command(),
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.secrets},
                preexec_fn=before_exec,  # noqa: PLW1509 - limits of the child; the parent has no other threads that matter
            )
        line = wait_for_line(self.process, b"ottla ready:", timeout_s=timeout_s)
        found = READY.search(line)
        assert found, f"the ready line has another form: {line!r}"
        self.port, self.ready_line = int(found["port"]), line.decode().strip()
        return self

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Stop it as an operator would; its exit code."""
        assert self.process is not None
        return stop(self.process, how)

    def wait(self, timeout_s: float = 30.0) -> int:
        """Wait until it ends by itself; returns the exit code."""
        assert self.process is not None
        code = self.process.wait(timeout_s)
        close_output(self.process)
        return code

    def kill(self) -> None:
        """Kill it with -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        close_output(self.process)

    def restart(self) -> OttlaProcess:
        """Stop it cleanly, if it still runs, and start it again on the same port and directory."""
        if self.process is not None and self.process.poll() is None:
            self.stop()
        return self.start()

    def assert_log_is_clean(self) -> None:
        """Nothing unexpected was logged: no traceback and no error line."""
        assert "Traceback" not in self.log, self.log[-4000:]


class ConfiguredOttla(OttlaProcess):
    """Ottla with a file of settings, which has its listeners: the first of them is at `port`."""

    @property
    def properties(self) -> Path:
        return self.directory / "server.properties"

    def command(self) -> list[str]:
        program = str(Path(sys.executable).with_name("ottla"))
        return [program, "server", "--data", str(self.data), "--config", str(self.properties)]


def _is_secret(option: str) -> bool:
    key, assigns, value = option.partition("=")
    return bool(assigns) and config.is_secret(key) and not value.startswith("${")


def _variable(number: int) -> str:
    return f"OPTION_{number}"
