"""Writes the dead letters of share groups to the topics that the groups name for them (KIP-1191).

Implements the port `DeadLetterQueues`. A dead letter of partition p goes to partition p modulo the number of partitions
of the topic, with acks=all: where another broker leads it, through Produce. A topic that does not exist is created,
where the broker's settings allow that.

A write is tried five times, with longer and longer pauses between; every attempt looks at the settings again. Of the
errors Kafka repeats only NOT_LEADER_OR_FOLLOWER, lost connections and timeouts; here every error that may pass.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from ottla.broker.remote.node_channels import REQUEST_TIMEOUT_S, BatchingQueues, NodeChannels
from ottla.controller.topics import CreateTopic
from ottla.core.clock import Clock
from ottla.core.errors import (
    InvalidConfig,
    InvalidRecord,
    KafkaError,
    LeaderNotAvailable,
    MessageTooLarge,
    NetworkException,
    RequestTimedOut,
    TopicAlreadyExists,
    error_for,
)
from ottla.core.ids import id_text
from ottla.metadata_store.cluster_view import NO_LEADER, ClusterView, TopicView
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.records.builder import build_batch
from ottla.replication.high_watermark_waiters import FutureWaiter
from ottla.replication.partition import Partition
from ottla.replication.replicas import Replicas
from ottla.share_coordinator.records import SharePartitionKey
from ottla.share_partitions.dead_letters import OneLetter, build_records, each_of, read_copies
from ottla.share_partitions.events import DeadLetters
from ottla.share_partitions.share_partition import GroupSettings
from ottla.storage.config import topic_config
from ottla.wire.apis import ApiKey
from ottla.wire.generated.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

if TYPE_CHECKING:  # imported with the first connection
    from ottla.broker.config import BrokerConfig
    from ottla.client.connection import ConnectTo

ENABLED = "errors.deadletterqueue.group.enable"
"""The setting of a topic without which it gets no dead letters."""

ATTEMPTS_MAX = 5
BACKOFF_S, BACKOFF_S_MAX, BACKOFF_JITTER = 1.0, 30.0, 0.2
"""As in Kafka: the pause after the n-th attempt is 2**n times the first number."""

LEADER_TIMEOUT_S = 5.0
"""Timeout for a topic that was just created to be in this broker's snapshot, with a leader."""

_RETRY_S = 0.05
_BATCHES_MAX = 16
"""Batches that are read and sent at the same time; others wait."""

_BATCH_BYTES_MAX = 1 << 20
"""A batch is as large at most, and no larger than the topic allows; one larger record is a batch of its own."""

_ALL_ACKS = -1
_RESERVED = "__"


class _Destination(NamedTuple):
    topic: TopicView
    partition: int
    leader: int


class _Sent(NamedTuple):
    destination: _Destination
    batch: bytes


class DeadLetterWriter:
    """Writes dead letters. Call `follow` with each new cluster snapshot, and `close` at the end."""

    def __init__(
        self,
        cluster: MetadataCache,
        replicas: Replicas,
        *,
        node_id: int,
        config: Callable[[], BrokerConfig],
        settings: Callable[[str], GroupSettings],
        create_topic: Callable[[CreateTopic], Awaitable[None]],
        clock: Clock,
        connect_to: ConnectTo,
    ) -> None:
        self._cluster, self._replicas, self._node_id = cluster, replicas, node_id
        self._config, self._settings = config, settings
        self._create_topic, self._clock = create_topic, clock
        self._channels = NodeChannels(connect_to)
        self._queues = BatchingQueues[_Sent, PartitionProduceResponse](self._exchange, _key_of)
        self._sending = asyncio.Semaphore(_BATCHES_MAX)

    def follow(self, old: ClusterView, new: ClusterView) -> None:
        """Give up the requests to brokers that are gone."""
        self._channels.follow(old, new)

    async def close(self) -> None:
        """Give up what was not sent, and close the connections."""
        await self._queues.close()
        await self._channels.close()

    # ---- Writes

    async def write(self, key: SharePartitionKey, source: Partition, letters: Sequence[DeadLetters]) -> None:
        """Write dead letters; returns once they are replicated. Raises KafkaError when that is given up.

        A batch that its topic refuses, because a copied record is too large for it, is left out; the rest is written.
        """
        left = each_of(letters)
        refusal: KafkaError | None = None
        while left:
            count, error = await self._write_batch(key, source, left)
            refusal = refusal or error
            del left[:count]
        if refusal is not None:
            raise refusal

    async def _write_batch(
        self, key: SharePartitionKey, source: Partition, letters: Sequence[OneLetter]
    ) -> tuple[int, KafkaError | None]:
        """Write as many letters as fit into a batch; returns their number, and why the topic refused them."""
        attempt = count = 0
        while True:
            attempt += 1
            try:
                destination = await self._destination(key)
                async with self._sending:
                    batch, count = await self._batch(key, source, letters, destination.topic)
                    await self._send(_Sent(destination, batch))
            except (MessageTooLarge, InvalidRecord) as error:
                return count, error
            except KafkaError as error:
                if not error.retriable or attempt == ATTEMPTS_MAX:
                    raise
                await asyncio.sleep(self._pause_s(attempt))
            else:
                return count, None

    @staticmethod
    def _pause_s(attempt: int) -> float:
        pause_s = min(BACKOFF_S * 2.0**attempt, BACKOFF_S_MAX)
        return pause_s * random.uniform(1 - BACKOFF_JITTER, 1 + BACKOFF_JITTER)

    async def _batch(
        self, key: SharePartitionKey, source: Partition, letters: Sequence[OneLetter], topic: TopicView
    ) -> tuple[bytes, int]:
        """Build a batch of as many letters as fit into it; returns their number too."""
        max_bytes = min(topic_config(self._config().log, topic.config).max_message_bytes, _BATCH_BYTES_MAX)
        copies = None
        if self._settings(key.group_id).copies_dead_letters:
            copies = await read_copies(source, letters, max_bytes=max_bytes)
        source_topic = self._cluster.current.topic_by_id.get(key.topic_id.bytes)
        records = build_records(
            letters,
            copies,
            topic=id_text(key.topic_id) if source_topic is None else source_topic.name,
            partition=key.partition,
            group_id=key.group_id,
            now_ms=self._clock.wall_ms(),
            max_bytes=max_bytes,
        )
        return bytes(build_batch(records)), len(records)

    # ---- Topics

    async def _destination(self, key: SharePartitionKey) -> _Destination:
        """Return where a group's dead letters go now; creates the topic if there is none. Raises KafkaError."""
        name = self._settings(key.group_id).dead_letter_topic
        self._check(key.group_id, name)
        if name not in self._cluster.current.topics:
            await self._create(name)
        deadline = asyncio.get_running_loop().time() + LEADER_TIMEOUT_S
        while True:
            topic = self._cluster.current.topics.get(name)
            if topic is not None and topic.partitions:
                partition = topic.partitions[key.partition % len(topic.partitions)]
                if partition.leader != NO_LEADER:
                    return _Destination(topic, partition.index, partition.leader)
            if asyncio.get_running_loop().time() > deadline:
                raise LeaderNotAvailable(f"the partition of {name} for dead letters of {key.text} has no leader")
            await asyncio.sleep(_RETRY_S)

    def _check(self, group_id: str, name: str) -> None:
        """Refuse a topic to which dead letters may not be written. Raises InvalidConfig."""
        config = self._config()
        prefix = config.share.dead_letter_topic_prefix
        if not name:
            raise InvalidConfig(f"Group {group_id} names no topic for its dead letters any more.")
        if name.startswith(_RESERVED):
            raise InvalidConfig(f"{name}: the topic for the dead letters of group {group_id} begins with __.")
        if not name.startswith(prefix):
            raise InvalidConfig(
                f"{name}: the topic for the dead letters of group {group_id} must begin with {prefix}, which is"
                " errors.deadletterqueue.topic.name.prefix."
            )
        topic = self._cluster.current.topics.get(name)
        if topic is not None and topic.config.get(ENABLED, "").strip().lower() != "true":
            raise InvalidConfig(
                f"Topic {name} takes no dead letters of group {group_id}: set errors.deadletterqueue.group.enable=true"
                " on it."
            )
        if topic is None and not config.share.dead_letter_topic_creation:
            raise InvalidConfig(
                f"Topic {name} for the dead letters of group {group_id} does not exist: create it with"
                " errors.deadletterqueue.group.enable=true, or set"
                " errors.deadletterqueue.auto.create.topics.enable=true on the brokers."
            )

    async def _create(self, name: str) -> None:
        configs: dict[str, str | None] = {ENABLED: "true", "message.timestamp.type": "CreateTime"}
        try:
            await self._create_topic(CreateTopic(name, configs=configs))
        except TopicAlreadyExists:
            return  # another write was first

    # ---- Requests

    async def _send(self, sent: _Sent) -> None:
        if sent.destination.leader == self._node_id:
            await self._append(sent)
            return
        result = await self._queues.send(sent.destination.leader, sent)
        if result.error_code:
            raise error_for(result.error_code, result.error_message or "")

    async def _append(self, sent: _Sent) -> None:
        """Append a batch to a partition that this broker leads; returns once it is replicated. Raises KafkaError."""
        destination = sent.destination
        partition = self._replicas.find(destination.topic.name, destination.partition)
        records = memoryview(bytearray(sent.batch))
        appended = partition.append_as_leader(records, acks=_ALL_ACKS, now_ms=self._clock.wall_ms())
        replicated: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        partition.waiters.add(appended.last_offset + 1, FutureWaiter(), replicated)
        try:
            await asyncio.wait_for(replicated, REQUEST_TIMEOUT_S)
        except TimeoutError:
            raise RequestTimedOut from None

    async def _exchange(self, node_id: int, batch: Sequence[_Sent]) -> Sequence[PartitionProduceResponse]:
        by_topic: dict[UUID, TopicProduceData] = {}
        for sent in batch:
            topic = sent.destination.topic
            data = by_topic.setdefault(topic.topic_id, TopicProduceData(topic_id=topic.topic_id, name=topic.name))
            data.partition_data.append(PartitionProduceData(index=sent.destination.partition, records=sent.batch))
        request = ProduceRequest(
            acks=_ALL_ACKS, timeout_ms=int(REQUEST_TIMEOUT_S * 1000), topic_data=list(by_topic.values())
        )
        response: ProduceResponse = await self._channels.request(node_id, ApiKey.PRODUCE, request)
        results = {
            (name, result.index): result
            for topic in response.responses
            for result in topic.partition_responses
            for name in (topic.topic_id, topic.name)  # by its version a response has one of them
        }
        try:
            return [
                results.get((sent.destination.topic.topic_id, sent.destination.partition))
                or results[sent.destination.topic.name, sent.destination.partition]
                for sent in batch
            ]
        except KeyError as error:
            raise NetworkException(f"broker {node_id} left {error} out of its response") from error


def _key_of(sent: _Sent) -> tuple[UUID, int]:
    return sent.destination.topic.topic_id, sent.destination.partition
