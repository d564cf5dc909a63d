"""`ottla server --memory` as a test in another language starts it: brokers in memory, and a control API beside them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.processes import close_output, free_port, stop, wait_for_line

OTTLA = Path(sys.executable).with_name("ottla")


class Server(NamedTuple):
    process: subprocess.Popen[bytes]
    ready: dict[str, Any]

    def get(self, path: str, token: str | None = None) -> Any:
        control = self.ready["control"]
        request = urllib.request.Request(control["url"] + path)
        request.add_header("Authorization", f"Bearer {token or control['token']}")
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)


def _start(*options: str, directory: Path, stdin: int | None = None, **environment: str) -> Server:
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(
            [OTTLA, "server", "--memory", "--port", "0", "--format", "json", *options],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=directory,
            env={**os.environ, **environment},
        )
    return Server(process, json.loads(wait_for_line(process, b'"ready"', timeout_s=30)))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = _start(directory=tmp_path)
    yield started
    if started.process.poll() is None:
        stop(started.process, signal.SIGTERM)


def _refused(*options: str) -> str:
    done = subprocess.run([OTTLA, "server", *options], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    return done.stderr


def test_it_serves_clients_and_the_control_api_until_it_is_stopped(server: Server, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": server.ready["bootstrap"]})
    assert list(admin.list_topics(timeout=10).brokers) == [1]
    cluster = server.get("/cluster")
    assert (cluster["bootstrap"], cluster["brokers"]) == (server.ready["bootstrap"], server.ready["brokers"])
    assert server.get("/openapi.json")["openapi"] == "3.1.0"
    assert server.ready["seconds"] > 0
    assert stop(server.process, signal.SIGTERM) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"log"}
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_the_token_is_random_unless_it_is_given(server: Server, tmp_path: Path) -> None:
    assert len(server.ready["control"]["token"]) == 48
    with pytest.raises(urllib.error.HTTPError, match="401"):
        server.get("/cluster", "another")
    given = _start(directory=tmp_path, OTTLA_CONTROL_TOKEN="of-the-environment")
    assert given.get("/cluster", "of-the-environment")
    stop(given.process, signal.SIGTERM)
    given = _start("--control-token", "of-the-option", directory=tmp_path, OTTLA_CONTROL_TOKEN="of-the-environment")
    assert given.get("/cluster", "of-the-option")
    stop(given.process, signal.SIGTERM)


def test_it_has_so_many_brokers_and_the_settings_that_are_given(tmp_path: Path) -> None:
    started = _start("-n", "3", "-o", "log.retention.ms=5000", directory=tmp_path)
    assert list(started.ready["brokers"]) == ["1", "2", "3"]
    admin = AdminClient({"bootstrap.servers": started.ready["bootstrap"]})
    assert len(admin.list_topics(timeout=10).brokers) == 3
    stop(started.process, signal.SIGTERM)


def test_it_ends_with_the_program_that_has_started_it(tmp_path: Path) -> None:
    started = _start("--while-stdin-open", directory=tmp_path, stdin=subprocess.PIPE)
    assert started.process.stdin is not None
    started.process.stdin.close()
    assert started.process.wait(30) == 0
    close_output(started.process)


def test_the_line_for_people_has_the_address_and_the_random_token(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [OTTLA, "server", "--memory", "-p", "0", "--control-port", str(free_port())],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
    )
    line = wait_for_line(process, b"ottla ready:", timeout_s=30).decode()
    form = (
        r"ottla ready: 127\.0\.0\.1:\d+ in memory in \d\.\d\d s, control http://127\.0\.0\.1:\d+ token [0-9a-f]{48}\n"
    )
    assert re.fullmatch(form, line), line
    stop(process, signal.SIGINT)


def test_options_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    assert "--memory and --data contradict each other" in _refused("--memory", "--data", str(tmp_path))
    assert "--memory and --workers contradict each other" in _refused("--memory", "--workers", "2")
    assert "--control-port is for brokers in memory" in _refused("--control-port", "0")
    assert "--brokers is for brokers in memory" in _refused("-n", "2")


def test_wrong_settings_and_taken_ports_are_one_line(server: Server) -> None:
    assert "log.segment.bytes" in _refused("--memory", "-p", "0", "-o", "log.segment.bytes=x")
    assert "listeners: use port=" in _refused("--memory", "-p", "0", "-o", "listeners=PLAINTEXT://127.0.0.1:0")
    port = server.ready["bootstrap"].rpartition(":")[2]
    done = subprocess.run(
        [OTTLA, "server", "--memory", "-p", port], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert "give --port another one" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_with_files_has_no_control_api(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [OTTLA, "server", "--port", "0", "--data", tmp_path, "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert "control" not in json.loads(wait_for_line(process, b'"ready"', timeout_s=30))
    stop(process, signal.SIGTERM)
