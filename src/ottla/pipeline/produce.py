"""Produces the lines of a file to a topic as records, and counts the acknowledgements.

confluent-kafka sends where it is installed, for it is the faster client; Ottla's own otherwise. Both are idempotent and
wait for all in-sync replicas.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import importlib.util
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ottla.client.addresses import parse_addresses
from ottla.client.admin import NewTopic, create_topics
from ottla.client.audit import ProducedCounter
from ottla.client.audit_topic import ensure_audit_topic, send_counts
from ottla.client.cluster import ClientOptions, Cluster
from ottla.client.content import record_checksum
from ottla.client.partitioner import partition_for_key
from ottla.client.producer import Producer, ProducerOptions, RecordMetadata
from ottla.core.clock import SystemClock
from ottla.core.errors import TopicAlreadyExists

CLIENT_ID = "ottla-pipeline"
_GZIP_MAGIC = b"\x1f\x8b"
_POLL_EVERY = 1000
_UNANSWERED_MAX = 20_000
"""Records on their way at once with Ottla's own client: bounds the memory for futures."""
_FLUSH_TIMEOUT_S = 120.0


class Outgoing(NamedTuple):
    """A record to send, with its partition."""

    partition: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Produced:
    """Counts the records by outcome."""

    acknowledged: Mapping[int, int]
    """By partition: how many the broker said it has."""
    first_failure: str | None
    """The reason why a record was not acknowledged, if one was not."""


Progress = Callable[[int], None]
"""Called with the number of records acknowledged since the last call."""


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file without their ends. Raises OSError.

    The file is plain or gzip, by its first bytes, not its name.
    """
    with path.open("rb") as start:
        is_gzip = start.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    with gzip.open(path) if is_gzip else path.open("rb") as file:
        for line in file:
            yield line.rstrip(b"\r\n")


def client_of(line: bytes) -> bytes:
    """Return the first word of a line: the client's address, which is the record's key.

    >>> client_of(b"::1 - - [...]"), client_of(b"")
    (b'::1', b'')
    """
    return line.split(b" ", 1)[0]


def keyed(lines: Iterable[bytes], partitions: int, read: Counter[int]) -> Iterator[Outgoing]:
    """Yield records by client address, where any of Kafka's clients would put them; count the lines read in `read`."""
    choose_partition = functools.lru_cache(maxsize=1 << 16)(partition_for_key)
    for line in lines:
        key = client_of(line)
        partition = choose_partition(key, partitions)
        read[partition] += 1
        yield Outgoing(partition, key, line)


def ensure_topic(bootstrap: str, topic: str, *, partitions: int, config: Mapping[str, str]) -> int:
    """Create a topic unless it is there; returns how many partitions it has. Raises KafkaError or CannotConnect."""

    async def ask() -> int:
        async with await _connect(bootstrap) as cluster:
            new = NewTopic(topic, partitions, configs=config)
            ((created, _),) = await create_topics(cluster, [new])
            if created.error is not None and not isinstance(created.error, TopicAlreadyExists):
                raise created.error

            async def look() -> int:
                return len((await cluster.topic(topic, fresh=True)).partitions)

            return await cluster.retrying(look)  # a new topic may take a moment to be known

    return asyncio.run(ask())


def produce(
    bootstrap: str, topic: str, records: Iterable[Outgoing], progress: Progress, counter: ProducedCounter | None = None
) -> Produced:
    """Send the records and wait for every acknowledgement, which `counter` counts for an audit.

    Raises CannotConnect or KafkaError where nothing can be sent.
    """
    if importlib.util.find_spec("confluent_kafka") is not None:
        return _with_librdkafka(bootstrap, topic, records, progress, counter)
    return asyncio.run(_with_ottla(bootstrap, topic, records, progress, counter))


def report_counts(bootstrap: str, counter: ProducedCounter) -> None:
    """Report the acknowledged counts to the topic `__audit`. Raises KafkaError or CannotConnect."""

    async def send() -> None:
        async with await _connect(bootstrap) as cluster:
            await ensure_audit_topic(cluster)
            async with Producer(cluster, clock=SystemClock(), options=ProducerOptions(auto_create=False)) as producer:
                await send_counts(producer, counter.reports())

    asyncio.run(send())


def _with_librdkafka(
    bootstrap: str, topic: str, records: Iterable[Outgoing], progress: Progress, counter: ProducedCounter | None
) -> Produced:
    from confluent_kafka import Producer as LibrdkafkaProducer

    acknowledged: Counter[int] = Counter()
    failures: list[str] = []

    def answered(record: Outgoing, error: Any, message: Any) -> None:
        if error is not None:
            failures.append(str(error))
        else:
            acknowledged[message.partition()] += 1
            _count(counter, topic, record, message.partition(), message.offset(), message.timestamp()[1])
            progress(1)

    settings = {
        "bootstrap.servers": bootstrap,
        "client.id": CLIENT_ID,
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 5,
        "message.timeout.ms": int(_FLUSH_TIMEOUT_S * 1000),
        "log_level": 0,  # what matters comes as an answer
    }
    producer = LibrdkafkaProducer(settings)
    for count, record in enumerate(records, 1):
        while True:
            try:
                producer.produce(
                    topic,
                    record.value,
                    key=record.key,
                    partition=record.partition,
                    on_delivery=functools.partial(answered, record),
                )
                break
            except BufferError:  # its queue is full: let some answers in
                producer.poll(0.1)
        if count % _POLL_EVERY == 0:
            producer.poll(0)
    unanswered = producer.flush(_FLUSH_TIMEOUT_S)
    if unanswered:
        failures.append(f"{unanswered} records had no answer within {_FLUSH_TIMEOUT_S:g} s")
    return Produced(acknowledged, failures[0] if failures else None)


async def _with_ottla(
    bootstrap: str, topic: str, records: Iterable[Outgoing], progress: Progress, counter: ProducedCounter | None
) -> Produced:
    acknowledged: Counter[int] = Counter()
    failures: list[str] = []
    unanswered: list[asyncio.Future[RecordMetadata]] = []
    sent_records: list[Outgoing] = []

    async def collect_answers() -> None:
        answers = await asyncio.gather(*unanswered, return_exceptions=True)
        for record, answer in zip(sent_records, answers, strict=True):
            if isinstance(answer, BaseException):
                failures.append(str(answer))
            else:
                acknowledged[answer.partition] += 1
                _count(counter, topic, record, answer.partition, answer.offset, answer.timestamp_ms)
        progress(len(unanswered))
        unanswered.clear()
        sent_records.clear()

    async with (
        await _connect(bootstrap) as cluster,
        Producer(cluster, clock=SystemClock(), options=ProducerOptions(auto_create=False)) as producer,
    ):
        for record in records:
            sent = await producer.send(topic, key=record.key, value=record.value, partition=record.partition)
            unanswered.append(sent)
            sent_records.append(record)
            if len(unanswered) >= _UNANSWERED_MAX:
                await collect_answers()
        await collect_answers()
    return Produced(acknowledged, failures[0] if failures else None)


def _count(
    counter: ProducedCounter | None, topic: str, record: Outgoing, partition: int, offset: int, timestamp_ms: int
) -> None:
    """Count an acknowledged record, with the checksum of the content that was to be sent."""
    if counter is not None:
        checksum = record_checksum(record.key, record.value, (), timestamp_ms)
        counter.acknowledged(topic, partition, offset, timestamp_ms, checksum)


async def _connect(bootstrap: str) -> Cluster:
    return await Cluster.connect(parse_addresses(bootstrap), options=ClientOptions(client_id=CLIENT_ID))
