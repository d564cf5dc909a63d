"""Brokers that know each other by certificates, as processes: they replicate, fail over, and ask the controller."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from kazoo.client import KazooClient

from ottla.metadata_store import znodes
from tests.processes.cli_runner import Cli
from tests.support.certificates import Certificates
from tests.support.processes import descendants, until
from tests.support.up_process import UpProcess
from tests.support.workers_process import WorkersProcess

pytestmark = [pytest.mark.slow, pytest.mark.external, pytest.mark.xdist_group("cluster")]

PARTITIONS, REPLICAS = 3, 3


@pytest.fixture
def up(tmp_path: Path) -> Iterator[UpProcess]:
    running = UpProcess(tmp_path / "cluster", is_secured=True).start()
    try:
        yield running
    finally:
        if running.process is not None and running.process.poll() is None:
            running.stop()


def admin_of(up: UpProcess) -> dict[str, Any]:
    """The settings of the administrator's client."""
    password = (up.directory / "users").read_text().partition("=")[2].strip()
    return {
        "bootstrap.servers": up.bootstrap,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "admin",
        "sasl.password": password,
        "ssl.ca.location": str(up.directory / "certs" / "ca.pem"),
    }


class Sending:
    """Produces numbered records to all partitions in turn, in a thread, and keeps what was acknowledged."""

    def __init__(self, client: dict[str, Any], topic: str) -> None:
        settings = {**client, "enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 60_000}
        self._producer, self._topic = Producer(settings), topic
        self.acknowledged: list[bytes] = []
        self.failed: list[Any] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._over.is_set():
            value = b"%d" % number
            self._producer.produce(self._topic, value, partition=number % PARTITIONS, on_delivery=self._delivered)
            number += 1
            self._producer.poll(0.005)
        self._producer.flush(60)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.append(message.value())
        else:
            self.failed.append(error)

    def goes_on(self) -> None:
        """Wait until records are acknowledged that were not yet."""
        before = len(self.acknowledged)
        until(lambda: len(self.acknowledged) > before + 10 * PARTITIONS, what="acknowledged records", timeout_s=60)

    def end(self) -> list[bytes]:
        self._over.set()
        self._thread.join()
        assert not self.failed
        return self.acknowledged


def in_sync(client: dict[str, Any], topic: str) -> list[int]:
    """How many replicas of each partition are in sync."""
    partitions = AdminClient(client).list_topics(topic, timeout=20).topics[topic].partitions
    return [len(partition.isrs) for _, partition in sorted(partitions.items())]


def read_all(client: dict[str, Any], topic: str, count: int) -> list[bytes]:
    consumer = Consumer({**client, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes] = []
    try:
        while len(values) < count:
            found = consumer.consume(1000, timeout=30)
            assert found, f"{len(values)} of {count} records"
            values += [message.value() or b"" for message in found]
    finally:
        consumer.close()
    return values


def test_brokers_with_certificates_replicate_fail_over_and_forward(up: UpProcess) -> None:
    client = admin_of(up)
    for node, port in zip(up.nodes, up.ports, strict=True):  # two of the three ask the controller
        admin = AdminClient({**client, "bootstrap.servers": f"127.0.0.1:{port}"})
        admin.create_topics([NewTopic(f"by-{node}", 1, REPLICAS)])[f"by-{node}"].result(30)
    admin.create_topics([NewTopic("orders", PARTITIONS, REPLICAS)])["orders"].result(30)
    sending = Sending(client, "orders")
    try:
        for node in up.nodes:  # each leads a partition, and one is the controller
            sending.goes_on()
            up.kill(node)
            sending.goes_on()
            up.start_broker(node)
            until(lambda: in_sync(client, "orders") == [REPLICAS] * PARTITIONS, what="all in sync", timeout_s=60)
    finally:
        acknowledged = sending.end()
    assert sorted(read_all(client, "orders", len(acknowledged)), key=int) == sorted(acknowledged, key=int)
    until(
        lambda: all(len({up.content(node, "orders", index) for node in up.nodes}) == 1 for index in range(PARTITIONS)),
        what="equal replicas",
        timeout_s=60,
    )


def brokers_listener(up: UpProcess, node: int) -> tuple[str, int]:
    """Where a broker listens for brokers: it is in ZooKeeper, which serves those that have a certificate."""
    own, trusted = str(up.directory / "certs" / "broker.pem"), str(up.directory / "certs" / "ca.pem")
    address = up.rows()["zookeeper"]["address"]
    zookeeper = KazooClient(address, use_ssl=True, ca=trusted, certfile=own, keyfile=own)
    zookeeper.start()
    try:
        value, _ = zookeeper.get(f"/ottla{znodes.BROKER_IDS}/{node}")
    finally:
        zookeeper.stop()
        zookeeper.close()
    endpoint = znodes.decode_broker(node, value).endpoints["BROKERS"]
    return endpoint.host, endpoint.port


def test_who_is_no_broker_may_not_act_as_one(up: UpProcess, tmp_path: Path) -> None:
    admin = AdminClient(admin_of(up))
    admin.create_topics([NewTopic("orders", 1, REPLICAS)])["orders"].result(30)
    host, port = brokers_listener(up, 1)
    trusted, own = up.directory / "certs" / "ca.pem", up.directory / "certs" / "client.pem"
    context = ssl.create_default_context(cafile=str(trusted))
    with (
        socket.create_connection((host, port), timeout=20) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
        context.wrap_socket(plain, server_hostname=host) as stream,
    ):
        stream.recv(1)  # with TLS 1.3 the alert about the missing certificate comes after the handshake
    settings = {"security.protocol": "SSL", "ssl.truststore.location": str(trusted), "ssl.keystore.location": str(own)}
    options = [text for name, value in settings.items() for text in ("-X", f"{name}={value}")]
    assert b"orders" not in Cli(f"{host}:{port}", tmp_path).out(*options, "topic", "list")


def test_workers_know_each_other_by_certificates(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    identity = certificates.store("broker.pem", certificates.issue(common_name="broker"))
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SSL",
        "ssl.client.auth": "required",
        "ssl.keystore.location": str(identity),
        "ssl.truststore.location": str(certificates.trusted),
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:broker",
    }
    service = WorkersProcess(
        tmp_path / "service", workers=2, options=[text for item in settings.items() for text in ("-o", "=".join(item))]
    ).start()
    try:
        client = {
            "bootstrap.servers": service.bootstrap,
            "security.protocol": "SSL",
            "ssl.ca.location": str(certificates.trusted),
            "ssl.certificate.location": str(identity),
            "ssl.key.location": str(identity),
        }
        for number, address in enumerate(service.bootstrap.split(",")):
            admin = AdminClient({**client, "bootstrap.servers": address})
            admin.create_topics([NewTopic(f"by-{number}", PARTITIONS, 1)])[f"by-{number}"].result(30)
        sending = Sending(client, "by-0")
        try:
            sending.goes_on()
            for worker in descendants(service.pid):
                os.kill(worker, signal.SIGKILL)
                sending.goes_on()
        finally:
            acknowledged = sending.end()
        assert sorted(read_all(client, "by-0", len(acknowledged)), key=int) == sorted(acknowledged, key=int)
    finally:
        service.stop()
