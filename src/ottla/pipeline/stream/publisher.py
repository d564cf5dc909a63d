"""Publishes rows of results to a compacted topic: the last value of a key is the row as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from ottla.client.admin import NewTopic, create_topics
from ottla.client.cluster import Cluster
from ottla.client.producer import Producer, ProducerOptions, RecordMetadata
from ottla.core.clock import SystemClock
from ottla.core.errors import TopicAlreadyExists
from ottla.pipeline.connector.range_reader import connect
from ottla.pipeline.source import Brokers
from ottla.pipeline.stream.results import Message

_UNANSWERED_MAX = 20_000
"""Records on their way at once: bounds the memory for answers."""
_CONFIG = {"cleanup.policy": "compact"}


@dataclass(frozen=True, slots=True)
class TopicPublisher:
    """An `update.Publish` to one topic, which is created unless it exists. Keys choose the partition as in Kafka."""

    brokers: Brokers
    topic: str
    partitions: int

    def __call__(self, messages: Iterable[Message]) -> None:
        """Send all of them and wait for every answer. Raises KafkaError or CannotConnect."""
        first = next(rest := iter(messages), None)
        if first is not None:
            asyncio.run(self._send(first, rest))

    async def _send(self, first: Message, rest: Iterable[Message]) -> None:
        async with await connect(self.brokers.read_options.connection) as cluster:
            await self._ensure_topic(cluster)
            options = ProducerOptions(auto_create=False)
            async with Producer(cluster, clock=SystemClock(), options=options) as producer:
                waiting: list[asyncio.Future[RecordMetadata]] = []
                for message in (first, *rest):
                    waiting.append(await producer.send(self.topic, key=message.key, value=message.value))
                    if len(waiting) >= _UNANSWERED_MAX:
                        await asyncio.gather(*waiting)
                        waiting.clear()
                await producer.flush()
                await asyncio.gather(*waiting)

    async def _ensure_topic(self, cluster: Cluster) -> None:
        ((outcome, _),) = await create_topics(cluster, [NewTopic(self.topic, self.partitions, configs=_CONFIG)])
        if outcome.error is not None and not isinstance(outcome.error, TopicAlreadyExists):
            raise outcome.error
        await cluster.retrying(lambda: cluster.topic(self.topic))  # a new topic may take a moment to be known
