"""What the command line reports when the broker is lost, cannot be reached, or was named wrongly."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.cli_runner import Cli
from tests.support.ottla_process import OttlaProcess

pytestmark = pytest.mark.slow
WAIT_S = 40
AT_ONCE_S = 5.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OttlaProcess]:
    """A broker that a test may kill."""
    server = OttlaProcess(tmp_path / "server", options=["-o", "group.initial.rebalance.delay.ms=0"]).start()
    yield server
    if server.process is not None and server.process.poll() is None:
        server.kill()


@pytest.fixture
def cli(server: OttlaProcess, tmp_path: Path) -> Cli:
    return Cli(server.bootstrap, tmp_path)


def line_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    return process.stderr.readline().decode()


@pytest.mark.parametrize("group", [(), ("--group", "g")])
def test_a_follower_reports_a_lost_broker_at_once_and_continues_when_it_is_back(
    cli: Cli, server: OttlaProcess, group: tuple[str, ...]
) -> None:
    cli.out("topic", "create", "t")
    cli.out("produce", "t", stdin=b"one\n")
    with cli.running("consume", "t", "--follow", "--from", "start", *group) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"one\n"
        server.kill()
        began = time.monotonic()
        said = line_of(reader)
        assert time.monotonic() - began < AT_ONCE_S
        assert server.bootstrap in said
        assert "Retrying for up to 30 s" in said
        server.start()
        cli.out("produce", "t", stdin=b"two\n")
        assert reader.stdout.readline() == b"two\n"
        assert "the connection works again, after" in line_of(reader)


def test_a_follower_ends_when_the_broker_does_not_come_back(cli: Cli, server: OttlaProcess) -> None:
    cli.out("topic", "create", "t")
    cli.out("produce", "t", stdin=b"one\n")
    for group in ((), ("--group", "g")):
        with cli.running("consume", "t", "--follow", "--from", "start", "--timeout", "3", *group) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == b"one\n"
            server.kill()
            assert "Retrying for up to 3 s" in line_of(reader)
            assert reader.wait(WAIT_S) == 3
        server.start()


def test_produce_reports_a_lost_broker_at_once(cli: Cli, server: OttlaProcess) -> None:
    cli.out("topic", "create", "t")
    with cli.running("produce", "t", "--verbose", "--timeout", "20") as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write(b"one\n")
        writer.stdin.flush()
        assert writer.stdout.readline() == b"t\t0\t0\n"
        server.kill()
        writer.stdin.write(b"two\n")
        writer.stdin.flush()
        began = time.monotonic()
        assert "Retrying for up to 20 s" in line_of(writer)
        assert time.monotonic() - began < AT_ONCE_S
        server.start()
        assert writer.stdout.readline() == b"t\t0\t1\n"
        writer.stdin.close()
        assert writer.wait(WAIT_S) == 0
        writer.stdin = None
    assert cli.out("consume", "t") == b"one\ntwo\n"


def test_the_hint_fits_the_place_that_named_the_brokers(tmp_path: Path) -> None:
    cli = Cli("127.0.0.1:1", tmp_path)
    named = cli.fails("topic", "list", "--brokers", "127.0.0.1:2", code=3)
    assert "ottla server" not in named
    assert "check --brokers" in named
    assert "check OTTLA_BROKERS" in cli.fails("topic", "list", code=3)
    cli.out("profile", "set", "far", "127.0.0.1:3")
    assert "check profile far" in cli.fails("topic", "list", "--profile", "far", code=3)


def test_errors_are_json_with_format_json(cli: Cli, server: OttlaProcess) -> None:
    def error(*arguments: str, code: int) -> dict[str, object]:
        lines = cli.fails(*arguments, code=code).splitlines()
        assert len(lines) == 1, lines
        found: dict[str, object] = json.loads(lines[0])["error"]
        assert found["exit_code"] == code
        return found

    missing = error("topic", "describe", "absent", "--format", "json", code=4)
    assert missing["kind"] == "NOT_FOUND"
    assert "absent" in str(missing["message"])
    assert "ottla topic list" in str(missing["advice"])
    assert error("topic", "list", "--format=json", "--brokers", "127.0.0.1:2", code=3)["kind"] == "CANNOT_CONNECT"
    assert error("consume", "t", "-f", "json", "--from", "nonsense", code=2)["kind"] == "USAGE"
    assert "No such option" in str(error("topic", "list", "-f", "json", "--no-such-option", code=2)["message"])
    many = cli.run("config", "get", "topic/absent", "a", "--format", "json", code=4)
    assert json.loads(many.stderr)["error"]["exit_code"] == 4
    assert "Traceback" not in server.log
