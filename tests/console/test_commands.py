"""`ottla console` and `ottla server --console` as processes, and the options that they refuse."""

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import httpx
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
        (["--https-proxy"], "everybody who reaches"),
        (["--users", "/nonexistent/users"], "--users"),
    ],
)
def test_what_would_expose_the_cluster_is_refused(arguments: list[str], reason: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert reason in result.stderr


def test_the_console_of_a_broker_is_served_until_it_is_stopped(ottla_server: OttlaProcess) -> None:
    words = [sys.executable, "-m", "ottla", "console", "--listen", "127.0.0.1:0", "-b", ottla_server.bootstrap]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
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


def test_a_user_of_the_brokers_signs_in_and_has_the_rights_of_that_user(tmp_path: Path) -> None:
    listeners = "listeners=SASL_PLAINTEXT://127.0.0.1:0"
    password = tmp_path / "password"
    password.write_text("first secret")
    log = tmp_path / "log"
    words = ["--data", str(tmp_path / "data"), "-o", listeners, "-o", "ottla.http.listener=127.0.0.1:0", "--console"]
    words += ["-o", "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"]
    words += ["--init-user", "alice", "--init-password-file", str(password), "--log-file", str(log)]
    command = [sys.executable, "-m", "ottla", "server", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
        try:
            assert broker.stdout is not None
            assert broker.stdout.readline()
            url = re.findall(r"served at (http://\S+)", log.read_text())[0]
            with httpx.Client(base_url=url, headers={"accept": "text/html"}) as client:
                assert client.get("/topics").headers["location"] == "/sign-in"
                for secret, status in (("wrong", 401), ("first secret", 303)):
                    token = client.get("/sign-in").text.split('name="csrf" value="')[1].split('"')[0]
                    fields = {"csrf": token, "user": "alice", "password": secret}
                    assert client.post("/sign-in", data=fields).status_code == status
                assert client.get("/topics").status_code == 200
                assert "ACLs are not shown" in client.get("/acls").text  # she may not describe the cluster
        finally:
            broker.terminate()
            broker.wait(30)
