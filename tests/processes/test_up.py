"""`ottla up` as a user runs it, with its commands from another shell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from socket import create_connection, socket

import pytest

from tests.processes.cli_runner import Cli
from tests.support.processes import free_port, is_running, until
from tests.support.up_process import UpProcess

pytestmark = [pytest.mark.slow, pytest.mark.external, pytest.mark.xdist_group("cluster")]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    directory = tmp_path_factory.mktemp("up") / ("a-long-name-" * 12)  # longer than a socket's path may be
    running = UpProcess(directory, brokers=2, options=["log.retention.ms=7200000"]).start()
    try:
        yield running
    finally:
        if running.process is not None and running.process.poll() is None:
            running.stop()


def run(up: UpProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(up.command(*arguments), capture_output=True, text=True, timeout=90, check=False)


def test_status_lists_the_processes(up: UpProcess) -> None:
    done = run(up, "--status")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["PROCESS", "ADDRESS", "STATE", "PID", "LOG"]
    assert [line.split("  ")[0] for line in lines[1:]] == ["zookeeper", "broker 1", "broker 2"]
    found = json.loads(run(up, "--status", "--format", "json").stdout)["processes"]
    assert [row["address"] for row in found[1:]] == up.bootstrap.split(",")
    assert all(row["state"] == "running" and Path(row["log"]).is_file() for row in found)


def test_a_broker_is_killed_and_started_again(up: UpProcess) -> None:
    before = up.pid("broker 2")
    done = run(up, "--kill", "2")
    assert (done.returncode, done.stdout) == (0, "broker 2 was killed\n")
    assert not is_running(before)
    assert run(up, "--kill", "2").stderr == "ottla: broker 2 does not run\n"
    assert up.rows()["broker 2"]["state"] == "killed"

    done = run(up, "--start", "2")  # at once: its old session has not ended yet
    assert (done.returncode, done.stdout) == (0, f"broker 2 is ready: {up.bootstrap.split(',')[1]}\n")
    assert run(up, "--start", "2").stderr == "ottla: broker 2 runs already\n"


def test_a_broker_is_stopped_and_started_again(up: UpProcess) -> None:
    done = run(up, "--stop", "2")
    assert (done.returncode, done.stdout) == (0, "broker 2 was stopped\n")
    assert run(up, "--stop", "2").stderr == "ottla: broker 2 does not run\n"
    assert up.rows()["broker 2"]["state"] == "stopped"
    assert run(up, "--start", "2").returncode == 0


def test_mistakes_are_answered_with_the_next_step(up: UpProcess, tmp_path: Path) -> None:
    done = run(up, "--kill", "3")
    assert (done.returncode, done.stderr) == (1, "ottla: there is no broker 3: the brokers are 1, 2\n")
    done = run(up)
    assert done.returncode == 1
    assert "a cluster runs in" in done.stderr
    assert "Stop it, or give --data another directory" in done.stderr
    assert run(up, "--kill", "1", "--start", "2").returncode == 2

    other = UpProcess(tmp_path / "other")
    done = run(other, "--status")
    assert done.returncode == 4
    assert f"no cluster runs in {other.directory}\n  start it: ottla up --data {other.directory}" in done.stderr


def test_the_end_of_a_broker_is_reported_and_zookeeper_started_again(up: UpProcess) -> None:
    errors = up.directory / "up.err"
    up.signal("broker 1", signal.SIGKILL)
    until(lambda: "broker 1 was ended by SIGKILL" in errors.read_text(), what="the report")
    assert f"ottla up --data {up.directory} --start 1" in errors.read_text()
    assert up.rows()["broker 1"]["state"] == "was ended by SIGKILL"
    up.start_broker(1)

    before = up.pid("zookeeper")
    os.kill(before, signal.SIGKILL)
    until(lambda: up.rows()["zookeeper"]["pid"] not in {None, before}, what="another ZooKeeper")
    assert "ZooKeeper was ended by SIGKILL: it is started again" in errors.read_text()


def test_a_port_in_use_is_a_clear_error_and_leaves_nothing_running(tmp_path: Path) -> None:
    up = UpProcess(tmp_path / "cluster", brokers=1)
    with socket() as taken:
        up.port = free_port()
        taken.bind(("127.0.0.1", up.port))
        taken.listen()
        began = time.monotonic()
        done = run(up, "-n", "1", "--port", str(up.port))
        assert done.returncode == 1
        assert "broker 1 ended with exit code 1 at its start: " in done.stderr
        assert "the port is in use" in done.stderr
        assert time.monotonic() - began < 60
    assert not [each for each in Path("/proc").glob("[0-9]*") if _runs_in(each, up.directory)]


def _runs_in(process: Path, directory: Path) -> bool:
    try:
        return str(directory).encode() in (process / "cmdline").read_bytes()
    except OSError:
        return False


def test_sigterm_stops_all_and_a_start_goes_on(up: UpProcess) -> None:
    pids = [row["pid"] for row in up.rows().values()]
    assert up.stop() == 0
    assert not any(map(is_running, pids))
    assert not (up.directory / "up.sock").exists()
    up.start()
    assert [row["state"] for row in up.rows().values()] == ["running"] * 3


def takes_plaintext(zookeeper: str) -> bool:
    host, _, port = zookeeper.partition(":")
    with create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"srvr\n\n\n\n")  # no less than the head of a record of TLS
        try:
            return b"Mode" in connection.recv(100)
        except ConnectionError:
            return False


def test_a_secured_cluster_goes_on_secured(tmp_path: Path) -> None:
    up = UpProcess(tmp_path / "cluster", brokers=1, is_secured=True).start()
    cli = Cli(up.bootstrap, tmp_path)
    lines = (up.directory / "admin.properties").read_text().splitlines()
    options = [text for line in lines if not line.startswith("bootstrap.") for text in ("-X", line)]
    try:
        assert not takes_plaintext(up.rows()["zookeeper"]["address"])
        cli.out(*options, "topic", "create", "orders")
        assert up.stop() == 0
        up.is_secured = False
        up.start()
        assert (up.directory / "admin.properties").read_text().splitlines() == lines
        assert b"orders" in cli.out(*options, "topic", "list")
        cli.fails("topic", "list", "--timeout", "5", code=3)
    finally:
        up.stop()
    password = (up.directory / "users").read_text().partition("=")[2].strip()
    assert not [file for file in up.directory.glob("*.log") if password in file.read_text()]
