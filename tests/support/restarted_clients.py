"""Unmodified clients that produce and consume while the brokers of their cluster are killed and started again."""

# mypy: disable-error-code="arg-type"
# confluent-kafka ships types for its core only.

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from confluent_kafka import Consumer, KafkaError, Message, Producer

from tests.support.jvm import SHORT_RUN, java
from tests.support.processes import close_output

ROOT = Path(__file__).parents[2]
JAVA_PROGRAM = Path(__file__).parent / "java" / "ProduceAndConsume.java"
GO_PROGRAM = ROOT / "tests" / "compat" / "go_client"
GO_BUILD = ("-gcflags=all=-N -l", "-ldflags=-s -w")
"""Options of `go build`: without cgo and optimizations it takes 30 s of processor time for the client, once."""
SEND_PAUSE_S = 0.01
END_S = 120.0
REPORT = re.compile(r"acknowledged (\d+) read (\d+)")


class RestartedClient(Protocol):
    """A client that sends `name-0`, `name-1` and so on, and reads the whole topic in a group."""

    name: str

    def counts(self) -> tuple[int, int]:
        """Return how many records were acknowledged and read so far. Raises AssertionError if the client has ended."""
        ...

    def finish(self) -> int:
        """Stop it; returns how many records it sent, all of them acknowledged."""
        ...

    def close(self) -> None:
        """End it in any case."""
        ...


class LibrdkafkaClient:
    """confluent-kafka's producer and consumer, in threads of this process."""

    def __init__(self, name: str, bootstrap: str, topic: str) -> None:
        self.name = name
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": name, "auto.offset.reset": "earliest", "log_level": 0}
        )
        self._consumer.subscribe([topic])
        self._acknowledged = self._read = self._sent = 0
        self._failures: list[str] = []
        self._is_stopping = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._produce, self._consume)]
        for thread in self._threads:
            thread.start()

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self._acknowledged += 1
        else:
            self._failures.append(str(error))

    def _produce(self) -> None:
        while not self._is_stopping.is_set():
            self._producer.produce(self._topic, f"{self.name}-{self._sent}".encode(), on_delivery=self._delivered)
            self._sent += 1
            self._producer.poll(0)
            time.sleep(SEND_PAUSE_S)

    def _consume(self) -> None:
        while not self._is_stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self._read += 1
        self._consumer.close()

    def counts(self) -> tuple[int, int]:
        assert not self._failures, f"{self.name}: {self._failures[0]}"
        return self._acknowledged, self._read

    def finish(self) -> int:
        self.close()
        self._producer.flush(END_S)
        acknowledged, _ = self.counts()
        assert acknowledged == self._sent, f"{self.name}: {acknowledged} of {self._sent} records were acknowledged"
        return acknowledged

    def close(self) -> None:
        self._is_stopping.set()
        for thread in self._threads:
            thread.join(END_S)


class ProgramClient:
    """A program that reports what it has done, and ends when its standard input is closed."""

    def __init__(self, name: str, command: Sequence[str], errors: Path) -> None:
        self.name = name
        self._errors = errors
        with errors.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self._last = (0, 0)
        self._reader = threading.Thread(target=self._follow, daemon=True)
        self._reader.start()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if reported := REPORT.match(line.decode(errors="replace")):
                self._last = int(reported[1]), int(reported[2])

    def counts(self) -> tuple[int, int]:
        code = self._process.poll()
        assert code is None, f"{self.name} ended with code {code}: {self._errors.read_text()[-2000:]}"
        return self._last

    def finish(self) -> int:
        self.counts()
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.wait(END_S)
        self._reader.join(END_S)
        assert code == 0, f"{self.name} ended with code {code}: {self._errors.read_text()[-2000:]}"
        return self._last[0]

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._reader.join(END_S)
        if self._process.stdin is not None:
            self._process.stdin.close()
        close_output(self._process)


def java_command(jars: Path) -> list[str]:
    """Return the command of the program with Kafka's own client, without its arguments."""
    options = ["-Xmx128M", *SHORT_RUN, "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", f"{jars}/*"]
    return [str(java()), *options, str(JAVA_PROGRAM)]


class NoGo(Exception):
    """Reports that there is no Go on this machine."""


def go_program() -> Path:
    """Return the program with franz-go's client, built unless it is there. Raises `NoGo` and SubprocessError."""
    return build_go(GO_PROGRAM, ROOT / "build" / "go_client" / "go_client", *GO_BUILD)


def build_go(source: Path, program: Path, *flags: str) -> Path:
    """Build a program, unless it is there. Raises `NoGo` and SubprocessError."""
    go = shutil.which("go")
    if go is None:
        raise NoGo("there is no Go here")
    done = subprocess.run(
        [go, "build", *flags, "-o", str(program), "."],
        cwd=source,
        env={**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        raise subprocess.SubprocessError(f"go build: {done.stderr.strip()}")
    return program
