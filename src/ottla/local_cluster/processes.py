"""Starts and stops the processes of a local cluster. None outlives the command that started it, even after SIGKILL.

On macOS ZooKeeper does after SIGKILL: that system sends no signal to a child whose parent ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LOG_TAIL = 4096


class ChildProcess:
    """One process in a session of its own: Ctrl-C in the terminal reaches the parent only, which stops its children."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str], log_file: Path, *, ends_with_parent: bool) -> ChildProcess:
        """Start a process whose standard error is appended to a file. Its standard input stays open until we end.

        `ends_with_parent` asks the system to send SIGTERM when we end, for a program that ignores its standard input.
        """
        with log_file.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=log if ends_with_parent else asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_parent if ends_with_parent else None,
            )
        return cls(process)

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Return whether it has not ended."""
        return self._process.returncode is None

    async def first_line(self) -> str:
        """Return the first line of standard output; empty if it ends without one."""
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode(errors="replace").strip()

    async def wait(self) -> int:
        """Wait for the end and return the exit code; negative: the signal that ended it."""
        return await self._process.wait()

    async def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        if self.is_running:
            self._process.kill()
        await self._process.wait()

    async def stop(self, within_seconds: float) -> bool:
        """Send SIGTERM; SIGKILL if it does not end in time. Returns whether it ended by itself."""
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(within_seconds):
                await self._process.wait()
        except TimeoutError:
            await self.kill()
            return False
        return True


def _end_with_parent() -> None:
    """Run in the child before the program starts."""
    with contextlib.suppress(AttributeError):  # macOS has no prctl
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def last_message(log_file: Path) -> str:
    """Return the last line of a log."""
    try:
        with log_file.open("rb") as file:
            file.seek(max(0, log_file.stat().st_size - _LOG_TAIL))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].removeprefix("ottla: ") if lines else ""


def free_port() -> int:
    """Return a TCP port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
