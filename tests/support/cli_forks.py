"""Runs `ottla` commands as processes forked from one that has imported it: the imports take longer than most commands.

    python -m tests.support.cli_forks FD

reads one request for each command from the socket FD: JSON, with the descriptors of the command's standard
streams and of a socket. On that socket it answers with the process id and, at the end, with the return code.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import Lock

ROOT = Path(__file__).resolve().parents[2]
REQUEST_BYTES_MAX = 1 << 20


def run(
    arguments: tuple[str, ...], *, stdin: bytes, environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[bytes]:
    """Run one command to its end. Raises TimeoutExpired, and kills it, when that takes too long."""
    ours, theirs = socket.socketpair()
    pipes = [os.pipe() for _ in range(3)]
    (stdin_end, to_stdin), (from_stdout, stdout_end), (from_stderr, stderr_end) = pipes
    request = json.dumps({"arguments": arguments, "environment": dict(environment), "directory": str(Path.cwd())})
    with ours, ThreadPoolExecutor(3) as streams:
        with theirs:
            _server().send(request, [stdin_end, stdout_end, stderr_end, theirs.fileno()])
        for descriptor in (stdin_end, stdout_end, stderr_end):
            os.close(descriptor)
        streams.submit(_write, to_stdin, stdin)
        outputs = [streams.submit(_read, descriptor) for descriptor in (from_stdout, from_stderr)]
        answers = ours.makefile("r")
        pid = int(answers.readline())
        if not select.select([ours], [], [], timeout_s)[0]:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(arguments, timeout_s)
        code = int(answers.readline())
        stdout, stderr = (output.result() for output in outputs)
    return subprocess.CompletedProcess(arguments, code, stdout, stderr)


def _write(descriptor: int, content: bytes) -> None:
    try:
        with open(descriptor, "wb") as stream:
            stream.write(content)
    except BrokenPipeError:
        pass  # the command ended before it read all


def _read(descriptor: int) -> bytes:
    with open(descriptor, "rb") as stream:
        return stream.read()


class _Server:
    """The process that forks, and our end of its socket."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = Lock()
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("OTTLA_", "XDG_"))}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.cli_forks", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=variables,
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.close)

    def send(self, request: str, descriptors: list[int]) -> None:
        with self._lock:
            socket.send_fds(self._socket, [request.encode()], descriptors)

    def close(self) -> None:
        self._socket.close()
        self._process.wait(30)


@cache
def _server() -> _Server:
    return _Server()


def serve(requests: socket.socket) -> None:
    """Fork a process for each request, until the other end is closed; return in each of these processes alone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no call waits for them
    while True:
        content, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 4)
        if not content:
            os._exit(0)
        if os.fork() == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
    requests.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    command = os.fork()
    if command:
        _report_the_end(command, descriptors)
    request = json.loads(content)
    for target, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, target)
    for descriptor in descriptors:
        os.close(descriptor)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[1:] = request["arguments"]


def _report_the_end(command: int, descriptors: list[int]) -> None:
    """Answer with the return code of a command, once it ended, and exit."""
    with socket.socket(fileno=descriptors[3]) as answers:
        for descriptor in descriptors[:3]:
            os.close(descriptor)
        answers.sendall(f"{command}\n".encode())
        answers.sendall(f"{os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    import importlib

    from ottla.cli import commands  # noqa: F401 - imported by all commands
    from ottla.cli.command_table import COMMANDS
    from ottla.cli.main import main

    for command in COMMANDS.values():
        importlib.import_module(command.module)
    serve(socket.socket(fileno=int(sys.argv[1])))
    main()
