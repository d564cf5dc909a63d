"""CVE-2026-111073: a push of metrics was bounded before its decompression only, and a small one took all memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ottla.core.error_codes import ErrorCode
from ottla.records.codecs import Codec, compress
from ottla.testing.cluster import BrokerHandlers
from tests.support.clusters import started_cluster
from tests.support.telemetry import gauge, point, pushed
from tests.support.telemetry_client import Client, subscribe

LIMIT = 1 << 20
pytestmark = [pytest.mark.simulated_time, pytest.mark.options({"ottla.client.metrics.enable": "true"})]
CODECS = [codec for codec in Codec if codec is not Codec.NONE]
each_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)


@pytest.fixture
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BrokerHandlers]:
    """One broker, whose handlers are called without a socket."""
    async with started_cluster(request, tmp_path, brokers=1, has_shared_store=False) as cluster:
        yield cluster.handlers(1)


def padded(size: int) -> bytes:
    """Return a push of so many bytes: one value, and a field that no reader knows."""
    known = pushed(gauge("g", point(1)))
    rest = size - len(known) - 5  # the field's tag, and a length of four bytes
    length = bytes([rest & 0x7F | 0x80, rest >> 7 & 0x7F | 0x80, rest >> 14 & 0x7F | 0x80, rest >> 21])
    return known + b"\x7a" + length + bytes(rest)


async def client_of(broker: BrokerHandlers) -> Client:
    await subscribe(broker, metrics="*", interval_ms="100")
    client = Client(broker)
    await client.get()
    return client


@each_codec
async def test_a_push_that_decompresses_to_the_limit_is_kept_and_one_byte_more_is_refused(
    broker: BrokerHandlers, codec: Codec
) -> None:
    for size, error in ((LIMIT, ErrorCode.NONE), (LIMIT + 1, ErrorCode.TELEMETRY_TOO_LARGE)):
        client = await client_of(broker)
        assert len(padded(size)) == size
        assert await client.push(compress(codec, padded(size)), codec) == error
        clients = broker.services.client_metrics
        assert clients is not None
        (kept,) = [each for each in clients.shown() if each.instance_id == client.instance_id]
        assert len(kept.series) == (error is ErrorCode.NONE)


@each_codec
async def test_a_bomb_takes_no_more_memory_than_the_limit(broker: BrokerHandlers, codec: Codec) -> None:
    bomb = compress(codec, bytes(LIMIT * 16))
    assert len(bomb) < LIMIT
    client = await client_of(broker)
    tracemalloc.start()
    try:
        assert await client.push(bomb, codec) == ErrorCode.TELEMETRY_TOO_LARGE
        assert tracemalloc.get_traced_memory()[1] < 3 * LIMIT
    finally:
        tracemalloc.stop()


async def test_a_push_that_is_too_large_before_decompression_is_not_decompressed(broker: BrokerHandlers) -> None:
    client = await client_of(broker)
    assert await client.push(bytes(LIMIT + 1), Codec.GZIP) == ErrorCode.TELEMETRY_TOO_LARGE


@pytest.mark.options({"ottla.client.metrics.enable": "true", "telemetry.max.bytes": "100"})
async def test_the_limit_is_a_setting_and_in_the_response_to_clients(broker: BrokerHandlers) -> None:
    client = Client(broker)
    assert (await client.get()).telemetry_max_bytes == 100
    assert await client.push(compress(Codec.GZIP, padded(1000)), Codec.GZIP) == ErrorCode.TELEMETRY_TOO_LARGE
