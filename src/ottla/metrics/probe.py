"""Produces records and reads them again, to measure what clients see: how long it takes, and whether any is lost.

A broker probes the partitions of `__ottla_probe` that it leads, by its own listener, with acks=all. Each round reads
from the record of the round before on: a record that was acknowledged and is gone a round later is lost, whatever took
it: a disk, an unclean election, a bug. The names are those of kminion's end-to-end test.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from ottla.broker.http_config import MetricsConfig
from ottla.broker.services import Services
from ottla.client.connection import Connection
from ottla.client.errors import CannotConnect
from ottla.controller.topics import CreateTopic
from ottla.core.error_codes import ErrorCode
from ottla.core.errors import KafkaError, TopicAlreadyExists, error_for
from ottla.core.histogram import Histogram
from ottla.core.ids import TopicPartition
from ottla.core.runtime import new_uuid
from ottla.records.batch import split
from ottla.records.builder import NewRecord, build_batch
from ottla.records.record_reader import read_records
from ottla.wire.apis import ApiKey
from ottla.wire.generated.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from ottla.wire.generated.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData

log = logging.getLogger(__name__)

TOPIC = "__ottla_probe"
_RETENTION = {"retention.ms": "3600000", "cleanup.policy": "delete"}
_READ_BYTES = 1 << 20
_PARTITIONS_MAX = 64
_PAUSE_S = 0.1


@dataclass(slots=True)
class Probed:
    """The records of one partition."""

    produced: int = 0
    received: int = 0
    lost: int = 0
    failed: int = 0
    in_flight: int = 0
    produce: Histogram = field(default_factory=Histogram)
    round_trip: Histogram = field(default_factory=Histogram)
    last: tuple[int, bytes] | None = None  # offset and value of the last record that was read


class Probe:
    """Runs while the broker does."""

    def __init__(self, services: Services, config: MetricsConfig) -> None:
        self._services, self._config = services, config
        self.partitions: dict[int, Probed] = {}
        self._run_id = new_uuid().bytes
        self._number = 0
        self._connection: Connection | None = None
        self._task = asyncio.get_running_loop().create_task(self._run(), name="probe")

    async def close(self) -> None:
        """End the probe."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()

    async def _run(self) -> None:
        while not self._services.stopping.is_set():
            try:
                await self.probe()
            except (KafkaError, CannotConnect, OSError) as error:
                log.warning("the probe could not reach the broker: %s", error)
            except Exception:
                log.exception("unexpected error of the probe; it goes on")
            await asyncio.sleep(self._config.probe_interval_ms / 1000)

    async def probe(self) -> None:
        """Do one round: one record for each partition that this broker leads."""
        services = self._services
        topic = services.cluster.current.topics.get(TOPIC)
        if topic is None:
            await self._create_topic()
            return
        led = [state.index for state in topic.partitions if state.leader == services.node_id]
        for index in led[:_PARTITIONS_MAX]:
            await self._probe(index, self.partitions.setdefault(index, Probed()))

    async def _create_topic(self) -> None:
        brokers = len(self._services.cluster.current.brokers)
        created = CreateTopic(TOPIC, partitions=brokers, replication_factor=min(3, brokers), configs=_RETENTION)
        try:
            await self._services.controller_channel.create_topic(created)
        except TopicAlreadyExists:
            pass

    async def _probe(self, index: int, probed: Probed) -> None:
        self._number += 1
        value = self._run_id + self._number.to_bytes(8, "big")
        now = asyncio.get_running_loop().time
        probed.produced += 1
        probed.in_flight += 1
        began = now()
        try:
            offset = await self._produce(index, value)
        except (KafkaError, CannotConnect, TimeoutError):
            probed.failed += 1
            return
        finally:
            probed.in_flight -= 1
        probed.produce.record(int((now() - began) * 1e6))
        if await self._read_until(index, probed, offset, value):
            probed.received += 1
            probed.round_trip.record(int((now() - began) * 1e6))
        else:
            self._count_lost(probed, index, offset)

    async def _read_until(self, index: int, probed: Probed, offset: int, value: bytes) -> bool:
        """Read on from the last record; return whether this one was there before the timeout."""
        now = asyncio.get_running_loop().time
        deadline = now() + self._config.probe_timeout_ms / 1000
        before, probed.last = self._kept(index, probed.last), None
        first = offset if before is None else min(before[0], offset)
        while (left_s := deadline - now()) > 0:
            try:
                records = dict(await self._fetch(index, first, left_s))
            except (KafkaError, CannotConnect, TimeoutError):
                await asyncio.sleep(min(left_s, _PAUSE_S))
                continue
            if offset not in records and not any(other > offset for other in records):
                continue
            if before is not None and records.get(before[0]) != before[1]:
                self._count_lost(probed, index, before[0])
            probed.last = (offset, value) if records.get(offset) == value else None
            return probed.last is not None
        if before is not None:
            self._count_lost(probed, index, before[0])
        return False

    def _kept(self, index: int, before: tuple[int, bytes] | None) -> tuple[int, bytes] | None:
        """Return the record of the round before, unless retention may have removed it."""
        partition = self._services.replicas.partitions.get(TopicPartition(TOPIC, index))
        if before is None or partition is None or before[0] < partition.log.log_start_offset:
            return None
        return before

    def _count_lost(self, probed: Probed, index: int, offset: int) -> None:
        probed.lost += 1
        log.error("the probe lost a record: %s-%d had acknowledged offset %d", TOPIC, index, offset)

    # ---- Requests

    async def _connect(self) -> Connection:
        if self._connection is None or not self._connection.usable:
            self._connection = await self._services.nodes.connect_to(self._services.node_id)
        return self._connection

    async def _produce(self, index: int, value: bytes) -> int:
        """Return the offset of a record that all in-sync replicas have. Raises KafkaError."""
        topic = self._services.cluster.current.topics[TOPIC]
        batch = build_batch([NewRecord(None, value, self._services.clock.wall_ms(), ())])
        timeout_ms = self._config.probe_timeout_ms
        request = ProduceRequest(
            acks=-1,
            timeout_ms=timeout_ms,
            topic_data=[
                TopicProduceData(
                    name=TOPIC,
                    topic_id=topic.topic_id,
                    partition_data=[PartitionProduceData(index=index, records=bytes(batch))],
                )
            ],
        )
        connection = await self._connect()
        response: ProduceResponse = await connection.request(ApiKey.PRODUCE, request, timeout_s=timeout_ms / 1000 + 1)
        result = response.responses[0].partition_responses[0]
        if result.error_code:
            raise error_for(result.error_code, result.error_message or "")
        return result.base_offset

    async def _fetch(self, index: int, offset: int, within_s: float) -> Sequence[tuple[int, bytes]]:
        """Return the records from an offset on, as a consumer sees them. Raises KafkaError."""
        topic = self._services.cluster.current.topics[TOPIC]
        position = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=_READ_BYTES)
        request = FetchRequest(
            max_wait_ms=int(min(within_s, 0.5) * 1000),
            min_bytes=1,
            max_bytes=_READ_BYTES,
            topics=[FetchTopic(topic=TOPIC, topic_id=topic.topic_id, partitions=[position])],
        )
        connection = await self._connect()
        response: FetchResponse = await connection.request(ApiKey.FETCH, request, timeout_s=within_s + 1)
        if response.error_code:
            raise error_for(response.error_code)
        data = response.responses[0].partitions[0]
        if data.error_code != ErrorCode.NONE:
            raise error_for(data.error_code)
        records = data.records or b""
        assert isinstance(records, bytes | bytearray | memoryview)
        view = memoryview(records)
        return [
            (record.offset, bytes(record.value or b""))
            for at, header in split(view, partial_tail=True)
            for record in read_records(view[at : at + header.size_bytes])
        ]
