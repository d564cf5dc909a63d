"""`ottla console` and `ottla server --console` as processes, and the options that they refuse."""

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support.ottla_process import OttlaProcess

pytestmark = pytest.mark.slow


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "ottla", "console", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--listen", "0.0.0.0:0"], "everybody who reaches"),
        (["--listen", "0.0.0.0:0", "--sasl"], "passwords would be readable"),
        (["--listen", "https://0.0.0.0:0", "--sasl"], "--certificate"),
        (["--listen", "nowhere"], "--listen nowhere"),
        (["--allow-changes", "--read-only"], "contradict"),
        (["--behind-https-proxy"], "everybody who reaches"),
        (["--users", "/nonexistent/users"], "--users"),
    ],
)
def test_what_would_expose_the_cluster_is_refused(arguments: list[str], reason: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert reason in result.stderr


def test_the_console_of_a_broker_is_served_until_it_is_stopped(ottla_server: OttlaProcess) -> None:
    words = [sys.executable, "-m", "ottla", "console", "--listen", "127.0.0.1:0", "-b", ottla_server.bootstrap]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = re.findall(r"http://\S+", process.stdout.readline())[0]
        with urllib.request.urlopen(url) as response:
            assert "Brokers by rack" in response.read().decode()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_a_broker_serves_its_own_console_beside_health(tmp_path: Path) -> None:
    server = OttlaProcess(tmp_path / "broker", options=("--console", "-o", "ottla.http.listener=127.0.0.1:0")).start()
    try:
        (url,) = set(re.findall(r"served at (http://\S+)", server.log))
        with urllib.request.urlopen(f"{url}/readyz") as response:
            assert response.status == 200
        with urllib.request.urlopen(f"{url}/topics") as response:
            assert "There are no topics yet" in response.read().decode()
    finally:
        assert server.stop() == 0
    server.assert_log_is_clean()
