"""Brokers whose listeners have TLS, over real sockets: among themselves, to clients, and while certificates change."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from ottla.broker import config as configuration
from ottla.broker.listener_tls import ListenersTls
from ottla.client.admin import describe_cluster
from ottla.client.cluster import ClientOptions, Cluster
from ottla.client.consumer import Consumer
from ottla.client.errors import CannotConnect
from ottla.client.producer import Producer
from ottla.client.properties import client_options
from ottla.core.clock import SystemClock
from ottla.core.errors import ErrorCode
from ottla.core.ids import TopicPartition
from ottla.core.settings import AlterConfigOpType, ConfigResourceType, InvalidSettings
from ottla.testing.cluster import TestCluster
from ottla.testing.real_machine import RealMachines
from ottla.wire.generated.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.support.certificates import Certificates

PREFIX = "listener.name.plaintext."  # the name of the listener of these brokers, whose protocol is SSL
CHAIN, KEY = f"{PREFIX}ssl.keystore.certificate.chain", f"{PREFIX}ssl.keystore.key"


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "certificates")


def settings(certificates: Certificates, node_id: int) -> dict[str, str]:
    return {
        "listener.security.protocol.map": "PLAINTEXT:SSL",
        "ssl.keystore.location": str(certificates.store(f"broker-{node_id}.pem")),
        "ssl.truststore.location": str(certificates.trusted),
        "ssl.client.auth": "required",
        "password.encoder.secret": "of the test",
    }


@pytest.fixture
async def secured(certificates: Certificates, tmp_path: Path) -> AsyncIterator[TestCluster]:
    """Three brokers that want a certificate of everybody."""
    own = {node_id: settings(certificates, node_id) for node_id in (1, 2, 3)}
    async with TestCluster(RealMachines(tmp_path / "data"), own_options=own) as cluster:
        await cluster.start(3, topics={"orders": 1})
        yield cluster


def client_of(certificates: Certificates) -> ClientOptions:
    issued = certificates.issue("client@example.org", common_name="ann")
    return client_options(
        {
            "security.protocol": "SSL",
            "ssl.truststore.location": str(certificates.trusted),
            "ssl.keystore.certificate.chain": certificates.chain(issued),
            "ssl.keystore.key": certificates.key(issued),
        }
    )


async def serial_number(cluster: TestCluster, node_id: int, certificates: Certificates) -> str:
    """Return the number of the certificate that a broker shows."""
    address = cluster.machine(node_id).address
    context = certificates.client_context(certificates.issue("client@example.org"))
    _, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    found = writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
    writer.close()
    await writer.wait_closed()
    return str(found)


async def alter(cluster: TestCluster, node_id: int, changes: Mapping[str, str], *, name: str | None = None) -> str:
    """Set settings of a broker; returns the error, or nothing."""
    configs = [
        AlterableConfig(name=key, config_operation=AlterConfigOpType.SET, value=value) for key, value in changes.items()
    ]
    resource = AlterConfigsResource(
        resource_type=ConfigResourceType.BROKER, resource_name=str(node_id) if name is None else name, configs=configs
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    (answer,) = (await cluster.handlers(node_id).call("incremental_alter_configs", 1, request)).responses
    return f"{ErrorCode(answer.error_code).name}: {answer.error_message}" if answer.error_code else ""


async def test_brokers_replicate_with_certificates_and_clients_without_one_are_refused(
    secured: TestCluster, certificates: Certificates
) -> None:
    async with await Cluster.connect(secured.addresses, options=client_of(certificates)) as client:
        async with Producer(client, clock=SystemClock()) as producer:
            await asyncio.gather(*[await producer.send("orders", value=b"x" * 100_000, partition=0) for _ in range(20)])
        place = TopicPartition("orders", 0)
        async with Consumer(client, {place: 0}, end={place: 20}) as consumer:
            read = [record.value async for _, records in consumer.chunks() for record in records]
    assert read == [b"x" * 100_000] * 20
    await secured.until(lambda: secured.in_sync_replicas()["orders", 0] == {1, 2, 3})
    registered = secured.services(1).cluster.current.brokers[2]
    assert registered.endpoints.keys() == {"PLAINTEXT"}

    trusting = client_options({"security.protocol": "SSL", "ssl.truststore.location": str(certificates.trusted)})
    with pytest.raises(CannotConnect):
        async with await Cluster.connect(secured.addresses, options=trusting) as client:
            await describe_cluster(client)


async def test_certificates_are_read_again_under_load_and_no_request_is_lost(
    secured: TestCluster, certificates: Certificates
) -> None:
    before = [await serial_number(secured, node_id, certificates) for node_id in (1, 2, 3)]
    sent = 0
    async with await Cluster.connect(secured.addresses, options=client_of(certificates)) as client:
        async with Producer(client, clock=SystemClock()) as producer:
            for turn in range(6):
                if turn in {1, 3}:
                    for node_id in (1, 2, 3):
                        certificates.store(f"broker-{node_id}.pem")
                        tls = secured.services(node_id).listeners_tls
                        assert tls is not None
                        tls.reload()
                results = [await producer.send("orders", value=b"%d" % n, partition=0) for n in range(50)]
                await asyncio.gather(*results)
                sent += 50
        place = TopicPartition("orders", 0)
        async with Consumer(client, {place: 0}, end={place: sent}) as consumer:
            assert len([record async for _, records in consumer.chunks() for record in records]) == sent

    async def changed() -> bool:
        now = [await serial_number(secured, node_id, certificates) for node_id in (1, 2, 3)]
        return all(one != other for one, other in zip(before, now, strict=True))

    async with asyncio.timeout(10):
        while not await changed():
            pass
    await secured.kill(1)
    await secured.restart(1)  # its connections to the others have new handshakes
    await secured.until(lambda: secured.in_sync_replicas()["orders", 0] == {1, 2, 3})


async def test_a_key_store_that_cannot_be_used_leaves_the_old_one_and_is_logged_once(
    secured: TestCluster, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    before = await serial_number(secured, 1, certificates)
    (certificates.directory / "broker-1.pem").write_text("nonsense")
    tls = secured.services(1).listeners_tls
    assert tls is not None
    for _ in range(3):
        await tls.update()

    assert await serial_number(secured, 1, certificates) == before
    lines = [line for line in caplog.messages if "cannot be used, the old ones stay in use" in line]
    assert len(lines) == 1
    assert "neither PEM nor PKCS#12" in lines[0]


async def test_pem_text_is_set_by_a_request_and_a_bad_one_is_refused(
    secured: TestCluster, certificates: Certificates
) -> None:
    before = await serial_number(secured, 2, certificates)
    issued, other = certificates.issue(), certificates.issue()
    bad = {CHAIN: certificates.chain(issued), KEY: certificates.key(other)}
    error = await alter(secured, 2, bad)
    assert error.startswith("INVALID_REQUEST: The certificates of PLAINTEXT cannot be used")
    assert "PRIVATE KEY" not in error
    assert await serial_number(secured, 2, certificates) == before

    assert await alter(secured, 2, {CHAIN: certificates.chain(issued), KEY: certificates.key(issued)}) == ""
    async with asyncio.timeout(10):
        while await serial_number(secured, 2, certificates) == before:
            pass

    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=ConfigResourceType.BROKER, resource_name="2")]
    )
    (described,) = (await secured.handlers(2).call("describe_configs", 4, request)).results
    found = {each.name: each for each in described.configs}
    assert found[KEY].is_sensitive and found[KEY].value is None
    assert found["ssl.keystore.password"].is_sensitive


@pytest.mark.parametrize(
    ("changes", "name", "why"),
    [
        ({f"{PREFIX}ssl.keystore.location": "/etc/passwd"}, None, "cannot be changed by a request"),
        ({f"{PREFIX}ssl.truststore.location": "/etc/passwd"}, None, "cannot be changed by a request"),
        ({"ssl.client.auth": "none"}, None, "only per-listener using the listener prefix: [ssl.client.auth]"),
        ({f"{PREFIX}ssl.client.auth": "none"}, "", "Cannot update these configs at default cluster level"),
        ({"listener.name.other.ssl.client.auth": "none"}, None, "has no listener OTHER with TLS"),
        ({f"{PREFIX}ssl.client.auth": "maybe"}, None, "must be one of none, requested, required"),
        ({f"{PREFIX}ssl.engine.factory.class": "org.example.Engines"}, None, "Cannot update these configs dynamically"),
    ],
)
async def test_what_a_request_may_not_change_of_a_listener_is_refused(
    changes: dict[str, str], name: str | None, why: str, certificates: Certificates, tmp_path: Path
) -> None:
    options = settings(certificates, 1)
    async with TestCluster(RealMachines(tmp_path / "data"), options=options, has_shared_store=False) as cluster:
        await cluster.start(1)
        error = await alter(cluster, 1, changes, name=name)

    assert error.startswith("INVALID_REQUEST: ")
    assert why in error


async def test_a_location_that_is_repeated_has_its_file_read_again(certificates: Certificates, tmp_path: Path) -> None:
    options = settings(certificates, 1)
    async with TestCluster(RealMachines(tmp_path / "data"), options=options, has_shared_store=False) as cluster:
        await cluster.start(1)
        before = await serial_number(cluster, 1, certificates)
        certificates.store("broker-1.pem")

        location = {f"{PREFIX}ssl.keystore.location": options["ssl.keystore.location"]}
        assert await alter(cluster, 1, location) == ""
        async with asyncio.timeout(4):  # less than the interval of the check
            while await serial_number(cluster, 1, certificates) == before:
                pass
        assert not cluster.services(1).cluster.current.broker_configs


class FixedClock:
    """A clock that is always at one date."""

    def __init__(self, now: dt.datetime) -> None:
        self.now = now

    def monotonic(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return int(self.now.timestamp() * 1000)


@pytest.mark.parametrize(
    ("days", "level", "text"),
    [
        (-1, logging.ERROR, "has expired on 2031-05-06 07:08 UTC"),
        (29, logging.WARNING, "expires on 2031-05-06 07:08 UTC, in 29 days"),
        (31, None, ""),
    ],
)
async def test_a_certificate_that_expires_is_warned_of_in_time(
    days: int, level: int | None, text: str, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    expiry = dt.datetime(2031, 5, 6, 7, 8, tzinfo=dt.UTC)
    store = certificates.store("broker.pem", certificates.issue(not_after=expiry))
    options = {"listeners": "SSL://127.0.0.1:0", "ssl.keystore.location": str(store)}
    config, _ = configuration.read(file=None, environment={}, options=options)
    tls = ListenersTls(config, FixedClock(expiry - dt.timedelta(days=days, hours=1)))
    tls.load()

    tls._warn_of_expiry()
    tls._warn_of_expiry()

    found = [(record.levelno, record.message) for record in caplog.records]
    assert [each for each, _ in found] == ([] if level is None else [level])
    assert all(text in message for _, message in found)


def test_certificates_that_cannot_be_used_prevent_a_start_by_the_name_of_their_setting(tmp_path: Path) -> None:
    options = {
        "listeners": "ONE://127.0.0.1:0,TWO://127.0.0.1:0",
        "listener.security.protocol.map": "ONE:SSL,TWO:SASL_SSL",
        "ssl.keystore.location": str(tmp_path / "absent"),
        "listener.name.two.ssl.keystore.location": str(tmp_path / "other"),
    }
    config, _ = configuration.read(file=None, environment={}, options=options)

    with pytest.raises(InvalidSettings) as raised:
        ListenersTls(config, SystemClock()).load()

    assert [problem.key for problem in raised.value.problems] == [
        "ssl.keystore.location",
        "listener.name.two.ssl.keystore.location",
    ]


def test_clients_that_sign_in_with_sasl_need_a_certificate_only_by_the_listeners_own_setting(
    certificates: Certificates,
) -> None:
    from ottla.broker.listener_tls import tls_of_listener

    options = {"listeners": "SASL_SSL://127.0.0.1:0", "ssl.client.auth": "required"}
    config, _ = configuration.read(file=None, environment={}, options=options)
    assert tls_of_listener(config, "SASL_SSL").client_auth == "none"
    options["listener.name.sasl_ssl.ssl.client.auth"] = "required"
    config, _ = configuration.read(file=None, environment={}, options=options)
    assert tls_of_listener(config, "SASL_SSL").client_auth == "required"


async def test_who_signs_in_by_a_certificate_is_in_the_audit_log_and_who_is_refused(
    certificates: Certificates, tmp_path: Path
) -> None:
    file = tmp_path / "audit.jsonl"
    options = {**settings(certificates, 1), "ottla.audit.log.path": str(file)}
    async with TestCluster(RealMachines(tmp_path / "data"), options=options, has_shared_store=False) as cluster:
        await cluster.start(1)
        async with await Cluster.connect(cluster.addresses, options=client_of(certificates)) as client:
            await describe_cluster(client)
        trusting = client_options({"security.protocol": "SSL", "ssl.truststore.location": str(certificates.trusted)})
        with pytest.raises(CannotConnect):
            await Cluster.connect(cluster.addresses, options=trusting)

    text = file.read_text()
    assert "User:CN=ann,OU=Tests,O=Ottla" in text
    assert "peer did not return a certificate" in text
