"""Answers the requests for the states of share partitions (KIP-932), each share partition separately."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ottla.broker.requests.request import Request
from ottla.core.errors import KafkaError
from ottla.share_coordinator.records import SharePartitionKey

TopicT = TypeVar("TopicT")
PartitionT = TypeVar("PartitionT")

WORK = 3
"""Units of work of one partition."""


async def answer_each(
    request: Request,
    body: Any,
    topic_result: Callable[..., TopicT],
    partition_result: Callable[..., PartitionT],
    answer: Callable[[SharePartitionKey, Any], Awaitable[PartitionT]],
) -> list[TopicT]:
    """Return the results of all topics. A KafkaError that `answer` raises is the answer for its share partition."""
    each_of = request.services.slices.each
    results = []
    async for topic in each_of(body.topics):
        answers = []
        async for asked in each_of(topic.partitions, WORK):
            key = SharePartitionKey(body.group_id, topic.topic_id, asked.partition)
            try:
                answers.append(await answer(key, asked))
            except KafkaError as error:
                answers.append(
                    partition_result(partition=key.partition, error_code=error.code, error_message=error.message)
                )
        results.append(topic_result(topic_id=topic.topic_id, partitions=answers))
    return results
