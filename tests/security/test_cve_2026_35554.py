"""CVE-2026-35554: a producer reused the buffer of a batch that had expired while its request was half sent.

What the broker then read was another batch, under the first one's topic. Here a request's bytes belong to it alone.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ottla.client.addresses import Address
from ottla.client.cluster import ClientOptions, Cluster
from ottla.client.producer import Producer, ProducerOptions
from ottla.core.clock import SystemClock
from ottla.core.errors import KafkaError
from ottla.records.batch import BatchHeader
from ottla.records.batch_faults import is_checksum_right
from ottla.records.record_reader import read_records
from ottla.wire.apis import ApiKey
from ottla.wire.generated.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from tests.unit.client.scripted_broker import HANG_UP, ScriptedBroker

LARGE = 16 << 20
"""More than the buffers of two sockets, so that the request cannot be sent as a whole before it is read."""

TOPICS = ("one", "two", "three", "four")
OPTIONS = ProducerOptions(
    idempotent=False, acks=1, linger_s=0, batch_bytes=2 * LARGE, buffer_bytes=8 * LARGE, delivery_timeout_s=0.3
)


class HalfReading(ScriptedBroker):
    """A broker that reads nothing after the first 64 KiB of a large request until the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.goes_on = asyncio.Event(), asyncio.Event()
        self.answers[ApiKey.PRODUCE] = produced

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                first = await reader.readexactly(min(length, 64 << 10))
                if length > LARGE // 2:
                    self.began.set()
                    await self.goes_on.wait()
                answer = self._answer(first + await reader.readexactly(length - len(first)))
                if answer is HANG_UP:
                    return
                if isinstance(answer, bytes):
                    writer.write(struct.pack(">i", len(answer)) + answer)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def produced(request: Any) -> ProduceResponse:
    (topic,) = request.topic_data
    result = PartitionProduceResponse(index=topic.partition_data[0].index, base_offset=0)
    return ProduceResponse(responses=[TopicProduceResponse(name=topic.name, partition_responses=[result])])


@asynccontextmanager
async def producing() -> AsyncIterator[tuple[HalfReading, Producer]]:
    broker = HalfReading()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.port = server.sockets[0].getsockname()[1]
    try:
        seeds = [Address("127.0.0.1", broker.port)]
        async with (
            await Cluster.connect(seeds, options=ClientOptions(retry_s=5)) as cluster,
            Producer(cluster, clock=SystemClock(), options=OPTIONS) as producer,
        ):
            for topic in TOPICS:
                await cluster.topic(topic)
            yield broker, producer
    finally:
        broker.goes_on.set()
        server.close()


def check_all(broker: ScriptedBroker) -> list[str]:
    """Fail if a record is under another topic than its own; return the topics of the requests."""
    requests = broker.requests(ApiKey.PRODUCE)
    for request in requests:
        (topic,) = request.topic_data
        records = bytes(topic.partition_data[0].records)
        assert is_checksum_right(records, BatchHeader(records))
        for record in read_records(records):
            assert record.key == topic.name.encode(), "it is in the wrong topic"
    return [request.topic_data[0].name for request in requests]


async def test_a_request_that_is_half_sent_when_its_batch_expires_keeps_its_bytes() -> None:
    rng = random.Random(1)
    async with producing() as (broker, producer):
        expired = await producer.send("one", key=b"one", value=rng.randbytes(LARGE), partition=0)
        await broker.began.wait()
        with pytest.raises(KafkaError):
            await expired
        assert not broker.requests(ApiKey.PRODUCE)
        later = [
            await producer.send(topic, key=topic.encode(), value=rng.randbytes(LARGE // 3), partition=0)
            for topic in TOPICS[1:]
        ]
        await asyncio.sleep(0)
        broker.goes_on.set()
        await asyncio.gather(*later, return_exceptions=True)
        while len(broker.requests(ApiKey.PRODUCE)) < 4:  # noqa: ASYNC110 - nothing announces it
            await asyncio.sleep(0.001)
        assert check_all(broker) == list(TOPICS)


async def test_a_batch_that_is_sent_again_has_its_own_bytes_although_others_were_sent_meanwhile() -> None:
    async with producing() as (broker, producer):
        failed: set[str] = set()

        def answer(request: Any) -> Any:
            name = request.topic_data[0].name
            if name == "one" and name not in failed:
                failed.add(name)
                return HANG_UP
            return produced(request)

        broker.answers[ApiKey.PRODUCE] = answer
        sent = [await producer.send(name, key=name.encode(), value=b"v", partition=0) for name in ("one", "two", "one")]
        await asyncio.gather(*sent, return_exceptions=True)
        assert check_all(broker).count("one") >= 2
