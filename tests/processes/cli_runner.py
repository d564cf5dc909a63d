"""Runs the `ottla` program as a user's shell would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import cli_forks

TIMEOUT_S = 40


@dataclass(frozen=True)
class Cli:
    """The command line, pointed at one broker."""

    bootstrap: str
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTTLA_", "XDG_"))}
        return {**kept, "OTTLA_BROKERS": self.bootstrap, "HOME": str(self.home)}

    def run(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end, which must be the exit code expected, and never a traceback."""
        done = cli_forks.run(arguments, stdin=stdin, environment=self.environment, timeout_s=TIMEOUT_S)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        assert done.returncode == code, f"{arguments} ended with {done.returncode}: {done.stderr.decode()}"
        return done

    def out(self, *arguments: str, stdin: bytes = b"") -> bytes:
        """What a command prints."""
        return self.run(*arguments, stdin=stdin).stdout

    def json(self, *arguments: str) -> Any:
        """What a command prints with --format json."""
        return json.loads(self.out(*arguments, "--format", "json"))

    def fails(self, *arguments: str, code: int, stdin: bytes = b"") -> str:
        """The message of a command that must end in this exit code."""
        done = self.run(*arguments, stdin=stdin, code=code)
        return done.stderr.decode()

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """A command that goes on by itself; killed at the end if it still runs."""
        process = subprocess.Popen(
            [*program(), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()


def program() -> list[str]:
    """How to start `ottla` without a shell's search path."""
    return [sys.executable, "-c", "from ottla.cli.main import main; main()"]
