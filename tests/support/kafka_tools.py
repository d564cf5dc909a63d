"""Runs Kafka's command-line tools one after the other in one JVM, unmodified: a start takes longer than most tools."""

from __future__ import annotations

import atexit
import base64
import subprocess
import tempfile
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from tests.support.jvm import java
from tests.support.processes import close_output
from tests.support.real_kafka import short_run

PROGRAM = Path(__file__).parent / "java" / "Tools.java"


class Ended(NamedTuple):
    """How a tool ended, and what it wrote."""

    code: int
    output: str


class KafkaTools:
    """The JVM."""

    def __init__(self, jars: Path, log: Path) -> None:
        command = [str(java()), "-Xmx256M", *short_run(jars), "-cp", f"{jars}/*", str(PROGRAM)]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)

    def run(self, tool: str, *arguments: str, stdin: str = "") -> Ended:
        """Run a tool by the name of its class."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        fields = (base64.b64encode(field.encode()) for field in (tool, stdin, *arguments))
        self._process.stdin.write(b" ".join(fields) + b"\n")
        self._process.stdin.flush()
        code, _, output = self._process.stdout.readline().strip().partition(b" ")
        assert code, f"the JVM ended with {tool} {' '.join(arguments)}"
        return Ended(int(code), base64.b64decode(output).decode())

    def kill(self) -> None:
        """Kill the JVM, whatever it does."""
        assert self._process.stdin is not None
        self._process.kill()
        self._process.stdin.close()
        self._process.wait()
        close_output(self._process)

    def close(self) -> None:
        """End the JVM."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        close_output(self._process)


_running: dict[Path, KafkaTools] = {}
"""A JVM for each directory of jars, until this process ends."""
_one_at_a_time = Lock()


def run_tool(jars: Path, tool: str, *arguments: str, stdin: str = "") -> str:
    """Run a main class of the jars as its script would; its output. Raises AssertionError with it on failure."""
    with _one_at_a_time:
        tools = _running.pop(jars, None) or _started(jars)
        try:
            ended = tools.run(tool, *arguments, stdin=stdin)
        except BaseException:
            tools.kill()  # it may be in the middle of a command
            raise
        _running[jars] = tools
    assert ended.code == 0, f"{tool} {' '.join(arguments)} exited {ended.code}:\n{ended.output}"
    return ended.output


def _started(jars: Path) -> KafkaTools:
    with tempfile.NamedTemporaryFile(prefix="kafka-tools-") as log:
        tools = KafkaTools(jars, Path(log.name))
    atexit.register(tools.kill)
    return tools
