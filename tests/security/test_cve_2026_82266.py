"""CVE-2026-82266: an administrative API listened at 0.0.0.0 by default and needed no sign-in.

Here nothing listens by default but the broker, all defaults are loopback, and faults are not part of a server with files.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from ottla.testing.kit.control_api.operations import OPERATIONS
from tests.support.listening import listening_addresses
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import stop, wait_for_line

OTTLA = str(Path(sys.executable).with_name("ottla"))
SERVED_AT = re.compile(r"served at (http://\S+)")


def test_a_server_listens_for_nothing_but_clients_unless_asked(tmp_path: Path) -> None:
    server = OttlaProcess(tmp_path).start()
    try:
        assert [(str(host), port) for host, port in listening_addresses(server.pid)] == [("127.0.0.1", server.port)]
    finally:
        server.stop()


@pytest.mark.parametrize("options", [("--console",), ("--memory",)])
def test_what_listens_for_http_by_default_is_on_loopback(tmp_path: Path, options: tuple[str, ...]) -> None:
    data = () if "--memory" in options else ("--data", str(tmp_path / "data"))
    free = () if "--memory" in options else ("-o", "ottla.http.listener=127.0.0.1:0")
    command = [OTTLA, "server", "--port", "0", *data, *free, "--format", "json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        wait_for_line(process, b'"ready"', timeout_s=30)
        found = listening_addresses(process.pid)
        assert len(found) >= 2
        assert all(host.is_loopback for host, _ in found)
    finally:
        stop(process, signal.SIGTERM)


def test_the_addresses_that_are_defaults_are_loopback() -> None:
    from ottla.cli import console, server_console
    from ottla.testing.kit import memory_server

    defaults = console.console.__defaults__
    assert defaults is not None
    assert defaults[0].startswith("127.0.0.1:")
    assert server_console.LISTENER_DEFAULT.startswith("127.0.0.1:")
    assert memory_server._HOST == "127.0.0.1"


def _status(url: str, method: str, token: str) -> int:
    request = urllib.request.Request(url, method=method, data=b"{}" if method == "POST" else None)
    request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_server_with_files_has_no_operation_of_the_control_api(tmp_path: Path) -> None:
    options = ("-o", "ottla.http.listener=127.0.0.1:0", "-o", "ottla.http.token=s3")
    server = OttlaProcess(tmp_path, options=options).start()
    try:
        (url,) = SERVED_AT.findall(server.log)
        assert _status(f"{url}/metrics", "GET", "s3") == 200
        assert len(OPERATIONS) > 20
        for each in OPERATIONS:
            path = re.sub(r"{\w+}", "1", each.path)
            assert _status(url + path, each.method, "s3") in {404, 405}, each.path
        assert "control" not in json.dumps(server.ready_line)
    finally:
        server.stop()
