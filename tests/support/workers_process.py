"""Runs `ottla server --workers N` as a process of its own, the way a user starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.processes import close_output, descendants, stop, wait_for_line

START_TIMEOUT_S = 60.0


class WorkersProcess:
    """One service with several brokers and its directory."""

    def __init__(
        self, directory: Path, *, workers: int, port: int = 0, options: Sequence[str] = (), prefix: Sequence[str] = ()
    ) -> None:
        self.directory, self.workers, self.options, self.prefix = directory, workers, tuple(options), tuple(prefix)
        self.data = directory / "data"
        self.log_file = directory / "ottla.err"
        self.process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, Any] = {}
        self._port = port

    @property
    def pid(self) -> int:
        """The process of the owner while it runs."""
        assert self.process is not None
        return self.process.pid

    @property
    def bootstrap(self) -> str:
        """The addresses of all workers."""
        return str(self.ready["bootstrap"])

    @property
    def log(self) -> str:
        """What owner and workers wrote to standard error over all starts."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def start(self) -> WorkersProcess:
        """Start it and wait until all workers serve."""
        self.directory.mkdir(parents=True, exist_ok=True)
        program = str(Path(sys.executable).with_name("ottla"))
        command = [
            *self.prefix,
            program,
            "server",
            "--workers",
            str(self.workers),
            "--data",
            str(self.data),
            "--format",
            "json",
        ]
        with self.log_file.open("ab") as errors:
            self.process = subprocess.Popen(
                [*command, "--port", str(self._port), *self.options],
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self.ready = json.loads(wait_for_line(self.process, b'"ready"', timeout_s=START_TIMEOUT_S))
        return self

    def worker_pid(self, number: int) -> int | None:
        """The process of a worker as it is now; None if it does not run."""
        assert self.process is not None
        wanted = f"node.id={number}".encode()
        return next(iter(descendants(self.process.pid, running=wanted)), None)

    def kill_worker(self, number: int) -> int:
        """Kill a worker with -9; returns the process id that it had."""
        pid = self.worker_pid(number)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return pid

    def stop(self) -> int:
        """Stop it as an operator would; its exit code."""
        assert self.process is not None
        return stop(self.process, signal.SIGTERM, timeout_s=60)

    def wait(self, timeout_s: float = 60.0) -> int:
        """Wait until it ends by itself; returns the exit code."""
        assert self.process is not None
        code = self.process.wait(timeout_s)
        close_output(self.process)
        return code

    def kill_owner(self) -> list[int]:
        """Kill the owner alone with -9; returns its workers."""
        assert self.process is not None
        workers = descendants(self.process.pid, running=b"--store-socket")
        self.process.kill()
        self.process.wait()
        close_output(self.process)
        return workers
