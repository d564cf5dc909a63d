"""CVE-2026-24308: ZooKeeper's client wrote its settings, with secrets, to the log. Here no log of either side has any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ottla.core.settings import ConfigResourceType
from ottla.local_cluster.zookeeper_command import ZooKeeperTls
from ottla.local_cluster.zookeeper_jars import VERSION
from tests.processes.cli_runner import Cli
from tests.processes.test_zookeeper_security import broker
from tests.security.test_canary_secrets import CANARY
from tests.support.certificates import Certificates
from tests.support.real_zookeeper import RealZooKeeper
from tests.support.wire_client import Wire

FIXED = (3, 9, 5)


def test_the_server_that_is_started_has_the_fix() -> None:
    assert tuple(map(int, VERSION.split("."))) >= FIXED


def _log_everything(port: int) -> None:
    """Set the level of each of the broker's loggers, as a client may that has the right to change settings."""
    resource: dict[str, Any] = {"resource_type": ConfigResourceType.BROKER_LOGGER, "resource_name": "1"}
    with Wire(port) as client:
        asked = [{**resource, "configuration_keys": None}]
        (found,) = client.call("describe_configs", 4, resources=asked)["results"]
        names = {each["name"] for each in found["configs"]} | {"ottla.kazoo"}
        for name in sorted(names):
            level = {"name": name, "value": "TRACE", "config_operation": 0}
            asked = [{**resource, "configs": [level]}]
            client.call("incremental_alter_configs", 1, resources=asked, validate_only=False)


@pytest.mark.external
@pytest.mark.slow
def test_no_log_has_a_secret_of_a_client_of_zookeeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTTLA_LOG_LEVEL", "DEBUG")
    certificates = Certificates(tmp_path / "certificates")
    tls = ZooKeeperTls(certificates.store("zookeeper.pem"), certificates.trusted)
    zookeeper = RealZooKeeper(tmp_path / "zookeeper", tls=tls).start()
    settings = {
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.keystore.location": str(certificates.store("broker.pem")),
        "zookeeper.ssl.truststore.location": str(certificates.trusted),
        "zookeeper.ssl.keystore.type": "PEM",
        "zookeeper.ssl.truststore.type": "PEM",
        "zookeeper.ssl.keystore.password": f"{CANARY}OfKeyStore",
        "ottla.zookeeper.digest.user": "kafka",
        "ottla.zookeeper.digest.password": f"{CANARY}OfDigest",
        "password.encoder.secret": f"{CANARY}Encoder",
        "zookeeper.set.acl": "true",
    }
    server = broker(tmp_path / "broker", zookeeper.address, settings)
    try:
        server.start()
        cli = Cli(server.bootstrap, tmp_path)
        secret = tmp_path / "password"
        secret.write_text(f"{CANARY}OfUser")
        _log_everything(server.port)
        zookeeper.stop()
        zookeeper.start()  # the broker connects, and identifies itself, again
        cli.out("user", "create", "alice", "--password-file", str(secret), "--timeout", "30")
        server.restart()
        assert server.stop() == 0
    finally:
        zookeeper.stop()
    logs = {"broker": server.log, "zookeeper": zookeeper.log_file.read_text(errors="replace")}
    for name, log in logs.items():
        assert log, name
        assert CANARY not in log, name
        assert "stored_key" not in log, f"{name}: what is written for a user is as secret"
    assert "log level of root set to TRACE" in server.log
    for file in (tmp_path / "zookeeper").rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert CANARY.encode() not in content, file
