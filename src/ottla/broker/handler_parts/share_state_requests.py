"""Answers the requests for the states of share partitions (KIP-932), each share partition separately."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar
from uuid import UUID

from ottla.broker.requests.elements import Each, InParts, collect_awaited
from ottla.broker.requests.request import Request
from ottla.core.errors import KafkaError
from ottla.metadata_store.cluster_view import ClusterView
from ottla.share_coordinator.records import SharePartitionKey


class _Partition(Protocol):
    partition: int


AskedT = TypeVar("AskedT", bound=_Partition)
AskedT_co = TypeVar("AskedT_co", bound=_Partition, covariant=True)
ResponseT = TypeVar("ResponseT")
TopicT = TypeVar("TopicT")
PartitionT = TypeVar("PartitionT")


class _Topic(Protocol[AskedT_co]):
    topic_id: UUID

    @property
    def partitions(self) -> Sequence[AskedT_co]: ...


class _Body(Protocol[AskedT_co]):
    group_id: str

    @property
    def topics(self) -> Sequence[_Topic[AskedT_co]]: ...


WORK = 3
"""Units of work of one partition."""


async def answer_each(
    request: Request,
    body: _Body[AskedT],
    topic_result: Callable[..., TopicT],
    partition_result: Callable[..., PartitionT],
    answer: Callable[[SharePartitionKey, AskedT], Awaitable[PartitionT]],
) -> list[TopicT]:
    """Return the results of all topics. A KafkaError that `answer` raises is the answer for its share partition."""

    async def one_topic(request: Request, topic: _Topic[AskedT], view: ClusterView) -> TopicT:
        async def one(_request: Request, asked: AskedT, _view: ClusterView) -> PartitionT:
            key = SharePartitionKey(body.group_id, topic.topic_id, asked.partition)
            try:
                return await answer(key, asked)
            except KafkaError as error:
                return partition_result(partition=key.partition, error_code=error.code, error_message=error.message)

        partitions = await collect_awaited(request, topic.partitions, one, view, work=WORK)
        return topic_result(topic_id=topic.topic_id, partitions=partitions)

    return await collect_awaited(request, body.topics, one_topic)


def refuse_each(
    response: Callable[..., ResponseT], topic_result: Callable[..., TopicT], partition_result: Callable[..., PartitionT]
) -> Callable[[Request, _Body[AskedT], KafkaError], InParts[ResponseT]]:
    """Return what answers each share partition with an error."""

    def refuse(_request: Request, body: _Body[AskedT], error: KafkaError) -> InParts[ResponseT]:
        def one_topic(_request: Request, topic: _Topic[AskedT], _view: ClusterView) -> InParts[TopicT]:
            partitions: list[PartitionT] = []
            result = topic_result(topic_id=topic.topic_id, partitions=partitions)
            return InParts(result, Each(topic.partitions, one, into=partitions))

        def one(_request: Request, asked: AskedT, _view: ClusterView) -> PartitionT:
            return partition_result(partition=asked.partition, error_code=error.code, error_message=error.message)

        results: list[TopicT] = []
        return InParts(response(results=results), Each(body.topics, one_topic, into=results))

    return refuse
