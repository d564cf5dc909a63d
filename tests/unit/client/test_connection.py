"""A connection to brokers of different versions and behaviours."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl

import pytest
import trustme

from ottla.client.addresses import Address, parse_addresses
from ottla.client.cluster import ClientOptions, Cluster
from ottla.client.connection import Connection, open_connection
from ottla.client.errors import CannotConnect
from ottla.core.errors import NetworkException, NotLeaderOrFollower, RequestTimedOut, UnsupportedVersion
from ottla.wire.apis import ApiKey
from ottla.wire.generated.metadata import MetadataRequest, MetadataRequestTopic
from tests.unit.client.scripted_broker import HANG_UP, SILENCE, ScriptedBroker, scripted_broker


async def _open(broker: ScriptedBroker) -> Connection:
    return await open_connection(Address("127.0.0.1", broker.port), client_id="test", timeout_s=5)


async def test_the_newest_common_version_is_used() -> None:
    async with scripted_broker() as broker:
        connection = await _open(broker)
        await connection.request(ApiKey.METADATA, MetadataRequest(), timeout_s=5)
        assert broker.seen[-1][1] == 12
        await connection.request(ApiKey.METADATA, MetadataRequest(), timeout_s=5, at_most=4)
        assert broker.seen[-1][1] == 4
        with pytest.raises(UnsupportedVersion, match="does not serve list_groups"):
            connection.version_for(ApiKey.LIST_GROUPS)
        with pytest.raises(UnsupportedVersion, match="versions 4 to 12"):
            connection.version_for(ApiKey.FETCH, at_most=3)
        await connection.close()


@pytest.mark.parametrize("known", [0, 2, 3])
async def test_api_versions_is_retried_in_the_version_of_an_older_broker(known: int) -> None:
    async with scripted_broker() as broker:
        broker.api_versions_known = known
        connection = await _open(broker)
        assert [version for key, version, _ in broker.seen if key == ApiKey.API_VERSIONS] == [5, known]
        assert connection.versions[ApiKey.FETCH] == (4, 12)
        await connection.close()


async def test_pipelined_requests_each_get_their_own_response() -> None:
    async with scripted_broker() as broker:
        connection = await _open(broker)
        names = [f"topic-{n}" for n in range(50)]
        asked = (
            connection.request(ApiKey.METADATA, MetadataRequest(topics=[MetadataRequestTopic(name=name)]), timeout_s=5)
            for name in names
        )
        answers = await asyncio.gather(*asked)
        assert [answer.topics[0].name for answer in answers] == names
        assert broker.connections == 1
        await connection.close()


async def test_a_request_timeout_names_the_broker_and_the_api() -> None:
    async with scripted_broker() as broker:
        connection = await _open(broker)
        broker.answers[ApiKey.METADATA] = lambda _: SILENCE
        with pytest.raises(RequestTimedOut, match=rf"127.0.0.1:{broker.port} did not answer metadata within 0.05 s"):
            await connection.request(ApiKey.METADATA, MetadataRequest(), timeout_s=0.05)
        assert not connection.usable
        await connection.close()


async def test_all_pending_requests_fail_when_the_broker_closes_the_connection() -> None:
    async with scripted_broker() as broker:
        connection = await _open(broker)
        broker.answers[ApiKey.METADATA] = lambda _: HANG_UP
        asked = (connection.request(ApiKey.METADATA, MetadataRequest(), timeout_s=5) for _ in range(3))
        errors = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(error) for error in errors} == {NetworkException}
        await connection.close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is an HTTP server and does not speak Kafka's protocol; check the port"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "requires TLS; set security.protocol to SSL or SASL_SSL"),
        (b"220 mail.example ESMTP\r\n", "does not speak Kafka's protocol; check the port"),
        (b"", "closed the connection; check the port and security.protocol"),
    ],
)
async def test_a_peer_of_another_protocol_is_recognised_by_its_first_bytes(answer: bytes, message: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read(10)
            writer.write(answer)
            writer.write_eof()
            await reader.read()
        finally:  # the test may end first
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    with pytest.raises(CannotConnect, match=message):
        await open_connection(address, client_id="test", timeout_s=5)
    server.close()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_connection_ends_although_its_peer_reads_nothing(is_cancelled: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepts, and reads nothing
        address = Address("127.0.0.1", listener.getsockname()[1])
        connection = Connection(address, await asyncio.open_connection(*listener.getsockname()), client_id="test")
        connection.versions = {ApiKey.METADATA: (4, 4)}
        topics = [MetadataRequestTopic(name="x" * 32_000) for _ in range(1000)]
        asking = asyncio.create_task(connection.request(ApiKey.METADATA, MetadataRequest(topics=topics), timeout_s=60))
        await asyncio.sleep(0)
        assert connection._streams[1].transport.get_write_buffer_size(), "more than the kernel takes"
        closing = asyncio.create_task(connection.close())
        if is_cancelled:
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            connection._streams[1].transport.abort()
        else:
            await closing
        with pytest.raises(NetworkException):
            await asking


async def test_a_tls_port_that_closes_without_an_alert_is_recognised() -> None:
    """OpenSSL sends no alert for a first record that is not of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
    address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
    with pytest.raises(CannotConnect, match=r"requires TLS; set security\.protocol to SSL or SASL_SSL"):
        await open_connection(address, client_id="test", timeout_s=5)
    server.close()


async def test_connect_tries_the_next_address_and_names_all_if_none_answers() -> None:
    async with scripted_broker() as broker:
        seeds = parse_addresses(f"127.0.0.1:1,127.0.0.1:{broker.port}")
        async with await Cluster.connect(seeds) as cluster:
            assert cluster.info.cluster_id == "scripted"
    with pytest.raises(CannotConnect, match=r"127.0.0.1:1: connection refused.*127.0.0.1:2: connection refused"):
        await Cluster.connect(parse_addresses("127.0.0.1:1,127.0.0.1:2"))


async def test_retries_stop_at_the_deadline_and_at_errors_that_are_not_retriable() -> None:
    async with scripted_broker() as broker:
        options = ClientOptions(retry_s=0.2)
        seeds = parse_addresses(f"127.0.0.1:{broker.port}")
        async with await Cluster.connect(seeds, options=options, rng=random.Random(1)) as cluster:
            attempts = 0

            async def fails() -> None:
                nonlocal attempts
                attempts += 1
                raise NotLeaderOrFollower

            with pytest.raises(NotLeaderOrFollower):
                await cluster.retrying(fails)
            assert 2 <= attempts <= 5

            async def is_refused() -> None:
                nonlocal attempts
                attempts += 1
                raise UnsupportedVersion

            attempts = 0
            with pytest.raises(UnsupportedVersion):
                await cluster.retrying(is_refused)
            assert attempts == 1


@pytest.mark.parametrize(
    "text", ["", ",", "a b", "a:", "a:x", "a:0", "a:65536", "::1", "[::1", "[::1]x", "http://a:1", ":9092"]
)
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"address"):
        parse_addresses(text)
