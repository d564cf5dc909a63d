"""Processes under test: start one, wait for a line of its output, read its memory and processor time from /proc."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class NotReady(Exception):
    """The process ended or stayed silent; the text carries what it said."""


class _Ports:
    """A range of TCP ports that other test processes leave alone until this one ends.

    It is below the range from which the kernel takes the ports of clients, and of servers that ask for port 0: a port of
    that range which is free now may be a client's when its server binds it, seconds later or after a restart.
    """

    FIRST, LAST, COUNT = 10_000, 32_000, 1_000

    def __init__(self) -> None:
        self._range = self._lock_range()
        self._next = self._range.start

    def _lock_range(self) -> range:
        directory = Path(tempfile.gettempdir()) / f"ottla-test-ports-{os.getuid()}"
        directory.mkdir(exist_ok=True)
        for first in range(self.FIRST, self.LAST, self.COUNT):
            lock = os.open(directory / str(first), os.O_CREAT | os.O_RDWR)  # open until the process ends
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
            else:
                return range(first, first + self.COUNT)
        raise AssertionError(f"other test processes hold all ranges of ports, see {directory}")

    def take(self, count: int) -> int:
        """Return the first of `count` free ports in a row; it is long until they are returned again."""
        for _ in self._range:
            if self._next + count > self._range.stop:
                self._next = self._range.start
            first = self._next
            self._next += count
            with contextlib.ExitStack() as held, contextlib.suppress(OSError):
                for port in range(first, first + count):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
                return first
        raise AssertionError(f"no {count} free ports in a row in {self._range}")


_ports = cache(_Ports)


def free_port() -> int:
    """Return a TCP port that is free now, and that no other test process takes."""
    return _ports().take(1)


def free_ports(count: int) -> int:
    """Return the first of several such ports in a row."""
    return _ports().take(count)


def wait_for_line(process: subprocess.Popen[bytes], wanted: bytes, *, timeout_s: float) -> bytes:
    """Read the process's output until a line contains `wanted`, and return that line. Raises `NotReady`."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    os.set_blocking(descriptor, False)
    said = b""
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if not selector.select(left):
                break
            piece = os.read(descriptor, 65536)
            said += piece
            for line in said.splitlines(keepends=True):
                if wanted in line and line.endswith(b"\n"):
                    return line
            if not piece:
                break
    raise NotReady(said.decode(errors="replace")[-2000:])


def is_running(pid: int) -> bool:
    """Return whether a process has not ended; a zombie has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in {"Z", "X"}


def until(condition: Callable[[], bool], *, timeout_s: float = 30.0, what: str = "the condition") -> None:
    """Wait for something of another process that nothing announces. Raises TimeoutError naming it."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come about in {timeout_s} s")
        time.sleep(0.02)


def descendants(pid: int, *, running: bytes = b"") -> list[int]:
    """All processes below one as the kernel has them now, parents first; those whose command line has `running`."""
    children: dict[int, list[int]] = {}
    commands: dict[int, bytes] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                commands[int(entry.name)] = (entry / "cmdline").read_bytes()
                children.setdefault(parent, []).append(int(entry.name))
    found, todo = [], children.get(pid, [])[:]
    while todo:
        found.append(child := todo.pop(0))
        todo += children.get(child, [])
    return [child for child in found if running in commands[child]]


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has used so far."""

    rss_bytes: int
    peak_rss_bytes: int
    cpu_s: float  # user and system time, of its finished children too
    threads: int
    descriptors: int


def usage(pid: int) -> Usage:
    """Read a process's usage. Raises FileNotFoundError when it is gone."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = sum(int(after_name[index]) for index in (11, 12, 13, 14))  # utime, stime, cutime, cstime
    return Usage(
        rss_bytes=int(status["VmRSS"].split()[0]) * 1024,
        peak_rss_bytes=int(status["VmHWM"].split()[0]) * 1024,
        cpu_s=ticks / TICKS_PER_S,
        threads=int(status["Threads"]),
        descriptors=len(list(Path(f"/proc/{pid}/fd").iterdir())),
    )


def stop(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM, *, timeout_s: float = 30.0) -> int:
    """Signal a process and wait for its end; its exit code. What does not end in time is killed and reported."""
    if process.poll() is None:
        process.send_signal(how)
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
    finally:
        close_output(process)


def close_output(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe of a process that has ended."""
    if process.stdout is not None:
        process.stdout.close()
