"""Brokers that authenticate with a real ZooKeeper, by a digest and with TLS, and the rights of the nodes they create."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.handlers.threading import KazooTimeoutError

from ottla.local_cluster.zookeeper_command import ZooKeeperTls
from tests.support.certificates import Certificates
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import NotReady
from tests.support.real_zookeeper import RealZooKeeper, running_zookeeper

pytestmark = [pytest.mark.external, pytest.mark.slow]

SECRET = "digest-secret"


def broker(directory: Path, connect: str, settings: dict[str, str]) -> OttlaProcess:
    found = {"zookeeper.connect": connect, "zookeeper.connection.timeout.ms": "8000", **settings}
    return OttlaProcess(directory, options=[word for key, value in found.items() for word in ("-o", f"{key}={value}")])


@contextmanager
def stranger(address: str, *, timeout: float = 15, **tls: Any) -> Iterator[KazooClient]:
    """A client of ZooKeeper with no identity, or another one."""
    client = KazooClient(address, **tls)
    client.start(timeout)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def rights(client: KazooClient, path: str) -> set[tuple[str, bool]]:
    """Who has rights to a node: the scheme, and whether for more than reading."""
    acls, _ = client.get_acls(path)
    return {(acl.id.scheme, acl.acl_list != ["READ"]) for acl in acls}


def check_nodes(address: str, scheme: str, **tls: Any) -> None:
    """Everybody may read what is not secret, and only the creator may change anything."""
    with stranger(address, **tls) as client:
        assert rights(client, "/brokers/topics") == {(scheme, True), ("world", False)}
        assert client.get("/cluster/id")
        with pytest.raises(NoAuthError):
            client.set("/brokers/topics", b"")
        with pytest.raises(NoAuthError):
            client.create("/brokers/topics/forged", b"")
        for path in ("/config/users", "/config/brokers"):
            with pytest.raises(NoAuthError):
                client.get(path)


def test_the_nodes_of_a_broker_with_a_digest_are_its_own(tmp_path: Path) -> None:
    identity = {"ottla.zookeeper.digest.user": "kafka", "ottla.zookeeper.digest.password": SECRET}
    with running_zookeeper(tmp_path / "zookeeper") as zookeeper:
        server = broker(tmp_path / "broker", zookeeper.address, {**identity, "zookeeper.set.acl": "true"}).start()
        check_nodes(zookeeper.address, "digest")
        server.restart()
        assert server.stop() == 0
        assert SECRET not in server.log + zookeeper.log_file.read_text()


def test_the_rights_of_nodes_need_an_identity(tmp_path: Path) -> None:
    server = broker(tmp_path / "broker", "127.0.0.1:1", {"zookeeper.set.acl": "true"})
    with pytest.raises(NotReady):
        server.start()
    server.wait()
    assert "needs an identity in ZooKeeper" in server.log


def with_tls(directory: Path, certificates: Certificates) -> RealZooKeeper:
    tls = ZooKeeperTls(certificates.store("zookeeper.pem"), certificates.trusted)
    return RealZooKeeper(directory, tls=tls).start()


def test_a_broker_connects_with_tls_and_its_certificate_is_its_identity(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    zookeeper = with_tls(tmp_path / "zookeeper", certificates)
    identity = certificates.store("broker.pem", certificates.issue(common_name="broker"))
    settings = {
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.keystore.location": str(identity),
        "zookeeper.ssl.truststore.location": str(certificates.trusted),
        "zookeeper.set.acl": "true",
    }
    try:
        server = broker(tmp_path / "broker", zookeeper.address, settings).start()
        other_identity = certificates.store("other.pem", certificates.issue(common_name="other"))
        check_nodes(
            zookeeper.address,
            "x509",
            use_ssl=True,
            ca=str(certificates.trusted),
            certfile=str(other_identity),
            keyfile=str(other_identity),
        )
        with pytest.raises(KazooTimeoutError), stranger(zookeeper.address, timeout=1):
            pytest.fail("ZooKeeper took a connection without TLS")
        assert server.stop() == 0

        other = tmp_path / "another.pem"
        other.write_bytes(certificates.other.cert_pem.bytes())
        distrusting = {**settings, "zookeeper.ssl.truststore.location": str(other)}
        refused = broker(tmp_path / "refused", zookeeper.address, distrusting)
        with pytest.raises(NotReady):
            refused.start()
        refused.wait()
        assert "no ZooKeeper server of" in refused.log
    finally:
        zookeeper.kill()
