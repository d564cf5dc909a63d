"""The plain form on systems that lack what Linux has, and with the base installation alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.processes.cli_runner import Cli
from tests.support.linux_names import NAMES, prefix_without
from tests.support.ottla_process import OttlaProcess
from tests.support.workers_process import WorkersProcess

pytestmark = [pytest.mark.slow]
OPTIONAL = ("uvloop", "typer", "rich", "re2")
LINES = b"".join(b"line %d\n" % n for n in range(2_000))


@pytest.fixture
def macos(tmp_path: Path) -> tuple[str, ...]:
    """What starts a server as on macOS, with the base installation."""
    return prefix_without(tmp_path / "macos", *OPTIONAL)


def read_all(cli: Cli, topic: str) -> list[bytes]:
    return sorted(cli.out("consume", topic, "--from", "start", "--count", "2000").splitlines())


def test_a_broker_serves_and_restarts_without_the_names_of_linux(tmp_path: Path, macos: tuple[str, ...]) -> None:
    server = OttlaProcess(tmp_path / "broker", prefix=macos).start()
    try:
        cli = Cli(server.bootstrap, tmp_path)
        cli.run("topic", "create", "first")
        cli.run("produce", "first", stdin=LINES)
        assert read_all(cli, "first") == sorted(LINES.splitlines())
        server.restart()
        assert read_all(cli, "first") == sorted(LINES.splitlines())
    finally:
        assert server.stop() == 0
    server.assert_log_is_clean()
    assert server.log.count("uvloop cannot be imported") == 2
    assert "the event loop is asyncio's" in server.log


def test_workers_share_a_store_without_the_names_of_linux(tmp_path: Path, macos: tuple[str, ...]) -> None:
    """Their socket has an address of its own there, also for a long path."""
    service = WorkersProcess(tmp_path / ("long" * 25), workers=2, prefix=macos)
    service.start()
    try:
        cli = Cli(service.bootstrap, tmp_path)
        cli.run("topic", "create", "shared", "--partitions", "2")
        cli.run("produce", "shared", stdin=LINES)
        assert read_all(cli, "shared") == sorted(LINES.splitlines())
    finally:
        assert service.stop() == 0
    assert "Traceback" not in service.log, service.log[-4000:]


def test_the_names_that_are_removed_exist_here() -> None:
    """So that a wrong one is noticed."""
    missing = [name for name in NAMES["os"].split() if not hasattr(os, name)]
    assert not missing
