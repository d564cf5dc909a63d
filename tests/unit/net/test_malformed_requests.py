"""Malformed requests are logged once per source, and then counted."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from ottla.net.malformed_requests import INTERVAL_SECONDS, OTHERS, SOURCES_MAX, MalformedRequestLog
from ottla.net.server import Listeners
from tests.support.echo import framed, read_frame
from tests.unit.net.conftest import LOOPS

NEW = "closing the connection from"


def test_a_source_is_logged_once_and_then_counted_per_interval(caplog: pytest.LogCaptureFixture) -> None:
    log = MalformedRequestLog()
    for number in range(10_000):
        log.record("10.0.0.1", "MalformedRequest", f"request {number}", now=number / 1000)
    log.record("10.0.0.2", "MalformedRequest", "the only one", now=20.0)
    assert caplog.messages == [f"{NEW} 10.0.0.1: request 0", f"{NEW} 10.0.0.2: the only one"]
    caplog.clear()
    log.report(now=INTERVAL_SECONDS - 1)
    assert caplog.messages == []
    log.report(now=INTERVAL_SECONDS)
    assert caplog.messages == [
        "closed 9999 more connections from 10.0.0.1 in the last 60 s for malformed requests; the last: request 9999"
    ]
    caplog.clear()
    log.record("10.0.0.1", "MalformedRequest", "later", now=70.0)
    log.report(now=3 * INTERVAL_SECONDS - 1)
    assert caplog.messages == [], "the interval of a source that goes on has doubled"
    log.report(now=3 * INTERVAL_SECONDS)
    assert len(caplog.messages) == 1
    caplog.clear()
    log.report(now=7 * INTERVAL_SECONDS)
    log.record("10.0.0.1", "MalformedRequest", "again", now=8 * INTERVAL_SECONDS)
    assert caplog.messages == [f"{NEW} 10.0.0.1: again"], "a source that was quiet for an interval is new again"


def test_the_count_at_the_stop_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    log = MalformedRequestLog()
    for _ in range(3):
        log.record("10.0.0.1", "MalformedRequest", "bad", now=0.0)
    log.close(now=5.0)
    assert len(caplog.messages) == 2
    assert caplog.messages[1].startswith("closed 2 more connections from 10.0.0.1 in the last 5 s")


def test_the_number_of_sources_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    log = MalformedRequestLog()
    for number in range(3 * SOURCES_MAX):
        log.record(f"10.0.{number >> 8}.{number & 255}", "MalformedRequest", "bad", now=0.0)
    assert len(caplog.messages) == SOURCES_MAX + 1
    assert caplog.messages[-1] == f"{NEW} {OTHERS}: bad"
    log.report(now=INTERVAL_SECONDS)
    log.report(now=3 * INTERVAL_SECONDS)
    log.record("10.9.9.9", "MalformedRequest", "bad", now=200.0)
    assert caplog.messages[-1] == f"{NEW} 10.9.9.9: bad"


async def send(port: int, data: bytes) -> None:
    """Send bytes and wait until the broker closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        assert await reader.read() == b""
    except ConnectionResetError:
        pass
    writer.close()


def client_hello() -> bytes:
    """The first bytes of a TLS client."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="broker")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@LOOPS
async def test_http_and_tls_are_recognised_and_logged_once(
    listeners: Listeners, port: int, caplog: pytest.LogCaptureFixture, loop: str
) -> None:
    for _ in range(5):
        for data in (b"GET /health HTTP/1.1\r\nHost: broker\r\n\r\n", client_hello(), b"\xff" * 20):
            await send(port, data)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(framed(b"served"))
    assert await read_frame(reader) == b"served"
    writer.close()
    http = "it sent an HTTP request; listener PLAINTEXT serves the Kafka protocol. Use a Kafka client for this port."
    tls = (
        "it began a TLS handshake; listener PLAINTEXT does not use TLS. Set security.protocol=PLAINTEXT in the client."
    )
    lines = [line for line in caplog.messages if line.startswith(NEW)]
    assert lines == [
        f"{NEW} 127.0.0.1: {http}",
        f"{NEW} 127.0.0.1: {tls}",
        f"{NEW} 127.0.0.1: a frame of -1 bytes is announced; the limit is 104857600",
    ]
    await listeners.close(within_seconds=1)
    assert len([line for line in caplog.messages if "4 more connections" in line]) == 3
