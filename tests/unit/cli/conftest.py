"""A broker in this process, and the command line run against it, without a process for each command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.main import run
from ottla.testing import Kafka, kafka


@pytest.fixture(scope="module")
def broker() -> Iterator[Kafka]:
    """One broker for the tests of a module; each uses topics and groups of its own."""
    with kafka() as k:
        yield k
    assert "Traceback" not in k.log, k.log


class CommandLine:
    """Runs commands against the broker, and returns what they print."""

    def __init__(self, capture: pytest.CaptureFixture[bytes]) -> None:
        self._capture = capture

    def out(self, *arguments: str, code: int = 0) -> str:
        """Return what a command prints on standard output; it must end with this exit code."""
        return self.both(*arguments, code=code)[0]

    def both(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        """Return what a command prints, on standard output and on standard error."""
        self._capture.readouterr()
        ended = run(arguments)
        out, err = self._capture.readouterr()
        assert ended == code, err.decode()
        return out.decode(), err.decode()

    def json(self, *arguments: str, code: int = 0) -> Any:
        """Return what a command prints with --format json."""
        return json.loads(self.out(*arguments, "--format", "json", code=code))

    def fails(self, *arguments: str, code: int) -> str:
        """Return the message of a command that must end with this exit code."""
        return self.both(*arguments, code=code)[1]


@pytest.fixture
def cli(
    broker: Kafka, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> CommandLine:
    """The command line of a user without profiles, whose cluster is the broker."""
    monkeypatch.setenv("OTTLA_BROKERS", broker.bootstrap)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return CommandLine(capsysbinary)
