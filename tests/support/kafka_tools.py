"""Runs Kafka's command-line tools one after the other in one JVM, unmodified: a start takes longer than most tools."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
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

    def close(self) -> None:
        """End the JVM."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        close_output(self._process)
