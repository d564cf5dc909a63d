"""Secrets that are given to a broker in every possible way are in none of its outputs.

A real process gets them by its file, by config providers, by its environment and by AlterConfigs. Then everything that
goes out of it is searched: its log at DEBUG, responses and errors, the audit log, its files, its command line and the
names of its threads, dumps of its state and of its threads, and the output of checks and of failed starts.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.core.errors import ErrorCode
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import descendants
from tests.support.wire_client import Wire
from tests.support.workers_process import WorkersProcess

CANARY = "canary0secret"
"""Each secret begins so, and goes on with the way in which it was given."""

TOPIC, BROKER = 2, 4
SET = 0


class Given:
    """The file, the secrets and the environment of a broker, and all that was seen to come out of it."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        for directory in ("secrets", "server"):
            (path / directory).mkdir()
        (path / "secrets" / "file").write_text(f"password={CANARY}ByFile\n")
        (path / "secrets" / "token").write_text(f"{CANARY}ByDirectory\n")
        self.config = path / "secrets" / "server.properties"  # not among the files that are searched
        self.audit = path / "server" / "audit.log"
        self.write(f"password.encoder.secret={CANARY}Encoder")
        monkeypatch.setenv("CANARY", f"{CANARY}ByEnvironment")
        monkeypatch.setenv("OTTLA_SSL_KEYSTORE_KEY", f"{CANARY}ByVariableOfOttla")
        monkeypatch.setenv("OTTLA_LOG_LEVEL", "DEBUG")
        self.seen: list[str] = []

    def write(self, *more: str) -> None:
        secrets = self.path / "secrets"
        lines = [
            f"ssl.key.password=${{file:{secrets}/file:password}}",
            f"ssl.keystore.password=${{directory:{secrets}:token}}",
            f"delegation.token.secret.key={CANARY}Plain",
            "broker.rack=${env:CANARY}",
            f"ottla.audit.log.path={self.audit}",
            *more,
        ]
        self.config.write_text("\n".join(lines) + "\n")

    @property
    def options(self) -> tuple[str, ...]:
        return ("--config", str(self.config), "-o", "ssl.truststore.password=${env:CANARY}")

    def note(self, *texts: object) -> None:
        self.seen += [str(text) for text in texts]

    def check(self) -> None:
        """Fail if a secret is in anything that was seen, or in any file below the server's directory."""
        forms = (CANARY.encode(), CANARY.encode("utf-16-le"), base64.b64encode(CANARY.encode()).rstrip(b"="))
        assert len(self.seen) > 10
        for text in self.seen:
            assert CANARY not in text, text
        files = [file for file in (self.path / "server").rglob("*") if file.is_file()]
        assert files
        for file in files:
            content = file.read_bytes()
            assert not [form for form in forms if form in content], file


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Given:
    return Given(tmp_path, monkeypatch)


@pytest.fixture
def server(given: Given) -> Iterator[OttlaProcess]:
    server = OttlaProcess(given.path / "server", options=given.options).start()
    yield server
    if server.process is not None and server.process.poll() is None:
        server.stop()


def _alter(client: Wire, kind: int, name: str, **settings: str) -> list[dict[str, Any]]:
    configs = [
        {"name": key.replace("_", "."), "value": value, "config_operation": SET} for key, value in settings.items()
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    answer = client.call("incremental_alter_configs", 1, resources=[resource], validate_only=False)
    return list(answer["responses"])


def _describe(client: Wire) -> dict[str, Any]:
    resources = [{"resource_type": BROKER, "resource_name": name, "configuration_keys": None} for name in ("1", "")] + [
        {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": None}
    ]
    return client.call("describe_configs", 4, resources=resources, include_synonyms=True, include_documentation=True)


def _names_of(pid: int) -> Iterator[str]:
    """Yield what other users of the machine can read of a process: its command line, and the names of its threads."""
    process = Path(f"/proc/{pid}")
    yield process.joinpath("cmdline").read_bytes().decode(errors="replace")
    for task in process.joinpath("task").iterdir():
        yield task.joinpath("comm").read_text()


def _bundle(given: Given, server: OttlaProcess) -> Iterator[str]:
    """Yield what `ottla bundle` packs, by a client with a secret of its own, and what it prints."""
    log, file = given.path / "broker.log", given.path / "bundle.tar.gz"
    log.write_text(f"{server.log}sasl.jaas.config=org.x.Y required password={CANARY}InLog;\n")
    program = str(Path(sys.executable).with_name("ottla"))
    command = [program, "bundle", str(file), "--brokers", f"127.0.0.1:{server.port}", "--log", str(log)]
    environment = {**os.environ, "OTTLA_HTTP_TOKEN": f"{CANARY}OfClient"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    yield done.stdout + done.stderr
    with tarfile.open(file) as archive:
        names = archive.getnames()
        yield from (archive.extractfile(name).read().decode() for name in names)  # type: ignore[union-attr]
    assert {"bundle/settings/broker-1.json", "bundle/health.json", "bundle/logs/0-broker.log"} <= set(names)
    assert file.stat().st_mode & 0o777 == 0o600


def test_no_output_of_a_broker_has_a_secret(given: Given, server: OttlaProcess) -> None:
    with Wire(server.port) as client:
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        client.call("create_topics", 7, topics=[topic], timeout_ms=10_000, validate_only=False)
        secrets = {
            "custom_password": f"{CANARY}ByRequest",
            "custom_jaas_config": f"org.x.Y required password={CANARY}ByRequest;",
        }
        (altered,) = _alter(client, BROKER, "1", **secrets)
        assert altered["error_code"] == ErrorCode.NONE
        refused = [
            *_alter(client, BROKER, "", **secrets),
            *_alter(client, BROKER, "1", ssl_key_password=f"{CANARY}ByRequest"),
            *_alter(client, BROKER, "1", listener_name_plaintext_ssl_key_password=f"{CANARY}ByRequest"),
            *_alter(client, BROKER, "1", ssl_keystore_key=f"{CANARY}ByRequest", log_retention_ms="-7"),
            *_alter(client, BROKER, "1", password_encoder_secret=f"{CANARY}ByRequest"),
            *_alter(client, BROKER, "7", **secrets),
            *_alter(client, TOPIC, "t", **secrets),
        ]
        assert all(each["error_code"] for each in refused)
        described = _describe(client)
        shown = {each["name"]: each for result in described["results"] for each in result["configs"]}
        for name in ("ssl.key.password", "ssl.keystore.password", "password.encoder.secret", "custom.jaas.config"):
            assert (shown[name]["value"], shown[name]["is_sensitive"]) == (None, True)
        assert (shown["broker.rack"]["value"], shown["broker.rack"]["is_sensitive"]) == (None, True)
        token = client.call("describe_delegation_token", 3, owners=None)
        given.note(altered, refused, described, token)
        given.note(*_names_of(server.pid))
        given.note(*_bundle(given, server))
        os.kill(server.pid, signal.SIGUSR1)
        os.kill(server.pid, signal.SIGQUIT)
        _describe(client)  # after the signals were handled
    assert server.stop() == 0
    server.start()  # reads the secrets of the requests again
    with Wire(server.port) as client:
        given.note(_describe(client))
    given.note(server.ready_line, server.log)
    server.kill()
    assert "Thread 0x" in server.log and "state:" in server.log
    assert '"event":"changed"' in given.audit.read_text()
    given.check()


def test_a_crash_of_a_broker_shows_no_secret(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONFAULTHANDLER", "1")
    server = OttlaProcess(given.path / "server", options=given.options).start()
    os.kill(server.pid, signal.SIGABRT)
    server.wait()
    assert "Fatal Python error: Aborted" in server.log
    given.note(server.log, *[""] * 10)
    given.check()


@pytest.mark.parametrize(
    "wrong",
    [
        f"num.partitions={CANARY}Wrong",
        "log.retention.ms=${env:CANARY}",
        f"ssl.key.pasword={CANARY}Misspelled",
        "ssl.truststore.location=${file:/no/such/file:password}",
        "ssl.principal.mapping.rules=${vault:/secret:password}",
        f"password.encoder.iterations=5\nzookeeper.connect=${{env:CANARY}}:x\nsasl.jaas.config={CANARY}Jaas",
    ],
)
def test_checks_and_failed_starts_show_no_secret(given: Given, wrong: str) -> None:
    given.write(wrong)
    program = str(Path(sys.executable).with_name("ottla"))
    command = [program, "server", "--data", str(given.path / "server" / "data"), "--port", "0", *given.options]
    for more in ((), ("--check",), ("--check", "--format", "json")):
        done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2, done.stderr
        secret = wrong.startswith("num.partitions=")  # which is no secret by its name: the operator wrote it there
        given.note(
            *(text.replace(f"num.partitions={CANARY}", "") if secret else text for text in (done.stdout, done.stderr))
        )
    given.note(*[""] * 10)
    (given.path / "server" / "empty").write_text("")
    given.check()


def test_a_secret_on_the_command_line_is_refused_with_advice(given: Given) -> None:
    program = str(Path(sys.executable).with_name("ottla"))
    command = [program, "server", "--port", "0", "-o", f"ssl.key.password={CANARY}ByOption"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "${env:VARIABLE}" in done.stderr and CANARY not in done.stdout + done.stderr


def test_workers_get_their_secrets_without_their_command_lines(given: Given) -> None:
    server = WorkersProcess(given.path / "server", workers=2, options=given.options)
    try:
        server.start()
        workers = descendants(server.pid)
        assert len(workers) == 2
        for pid in (server.pid, *workers):
            given.note(*_names_of(pid))
    finally:
        server.stop()
    given.note(server.log, *[""] * 10)
    given.check()
