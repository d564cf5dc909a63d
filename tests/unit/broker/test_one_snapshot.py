"""A response is made from one snapshot of the cluster, however long it takes to make it."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, cast

import pytest

from ottla.broker.config import read
from ottla.broker.requests.elements import Each, InParts, collect, collect_awaited, complete, repeated
from ottla.broker.requests.request import Request
from ottla.metadata_store.cluster_view import BrokerInfo, ClusterView, PartitionView, TopicView
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.metadata_store.znodes import Endpoint
from ottla.testing.requests import answer_to, request_to
from ottla.wire.generated import describe_configs, describe_topic_partitions, metadata
from tests.support.requests import bare_services

NOTHING = cast("Any", None)
TOPICS = [f"topic-{number}" for number in range(400)]


def view_led_by(node_id: int) -> ClusterView:
    """The snapshot of a cluster whose only live broker leads every partition."""
    broker = BrokerInfo(node_id, {"PLAINTEXT": Endpoint("host", 9092)}, None, 0, {})
    partition = PartitionView(0, node_id, node_id, (node_id,), (node_id,), 0)
    return ClusterView(brokers={node_id: broker}).with_topics(
        {name: TopicView(name, uuid.UUID(int=number + 1), (partition,), {}, 0, 0) for number, name in enumerate(TOPICS)}
    )


class ChangingCluster:
    """Services of a broker whose cluster changes in a later turn of the loop."""

    def __init__(self, before: ClusterView, after: ClusterView, *, turns: int = 1) -> None:
        self.cluster = MetadataCache(NOTHING)
        self.cluster.current = before
        self._after, self._turns = after, turns
        self.services = bare_services(
            config=read(file=None, environment={}, options={"auto.create.topics.enable": "false"})[0],
            cluster=self.cluster,
        )

    async def change(self) -> None:
        for _ in range(self._turns):
            await asyncio.sleep(0)
        self.cluster.current = self._after

    async def answer(self, module: str, version: int, body: Any) -> Any:
        """Answer a request; the cluster changes meanwhile."""
        change = asyncio.ensure_future(self.change())
        answer = await answer_to(request_to(self.services, version), module, body)
        await change
        return answer


@pytest.mark.parametrize("turns", range(1, 9))
@pytest.mark.parametrize("is_of_all", [True, False], ids=["all", "named"])
async def test_each_leader_of_a_metadata_response_is_a_broker_of_the_response(is_of_all: bool, turns: int) -> None:
    cluster = ChangingCluster(view_led_by(1), view_led_by(2), turns=turns)
    named = [metadata.MetadataRequestTopic(name=name) for name in TOPICS]

    response = await cluster.answer("metadata", 12, metadata.MetadataRequest(topics=None if is_of_all else named))

    (broker,) = response.brokers
    partitions = [partition for topic in response.topics for partition in topic.partitions]
    assert {(each.leader_id, each.leader_epoch) for each in partitions} == {(broker.node_id, broker.node_id)}
    assert len(partitions) == len(TOPICS)


@pytest.mark.parametrize("turns", range(1, 9))
async def test_topics_that_are_deleted_meanwhile_are_all_described_or_all_unknown(turns: int) -> None:
    cluster = ChangingCluster(view_led_by(1), ClusterView(), turns=turns)
    resources = [
        describe_configs.DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=["x"])
        for name in TOPICS
    ]
    configs = await cluster.answer("describe_configs", 4, describe_configs.DescribeConfigsRequest(resources=resources))
    assert len({result.error_code for result in configs.results}) == 1


@pytest.mark.parametrize("turns", range(1, 9))
@pytest.mark.parametrize("is_of_all", [True, False], ids=["all", "named"])
async def test_each_leader_of_a_page_of_topics_is_of_one_snapshot(is_of_all: bool, turns: int) -> None:
    cluster = ChangingCluster(view_led_by(1), view_led_by(2), turns=turns)
    named = [describe_topic_partitions.TopicRequest(name=name) for name in TOPICS]
    request = describe_topic_partitions.DescribeTopicPartitionsRequest(
        topics=[] if is_of_all else named, response_partition_limit=399
    )

    response = await cluster.answer("describe_topic_partitions", 0, request)

    partitions = [partition for topic in response.topics for partition in topic.partitions]
    assert len({partition.leader_id for partition in partitions}) == 1
    assert ([topic.name for topic in response.topics], response.next_cursor.topic_name) == (
        sorted(TOPICS)[:399],
        sorted(TOPICS)[399],
    )


# ---- The loop over elements


def request() -> Request:
    return request_to(ChangingCluster(view_led_by(1), view_led_by(1)).services, 0)


def upper(_request: Request, element: str, _view: ClusterView) -> str:
    return element.upper()


async def test_elements_with_equal_keys_are_one_the_last_in_the_place_of_the_first() -> None:
    answers = await collect(request(), Each(["a1", "b1", "a2"], upper, key=lambda element: element[0]))
    assert answers == ["A2", "B1"]


async def test_an_element_without_an_answer_is_left_out() -> None:
    def odd(_request: Request, element: int, _view: ClusterView) -> int | None:
        return element if element % 2 else None

    assert await collect(request(), Each(range(5), odd)) == [1, 3]


async def test_repeated_elements_are_found_across_parts() -> None:
    twice: set[str] = set()
    seen: set[str] = set()
    for names in (["a", "b"], ["b", "c", "c"]):
        await collect(request(), repeated(names, twice, seen))
    assert twice == {"b", "c"}


async def test_an_answer_in_parts_is_complete_before_the_next_element_begins() -> None:
    def one(_request: Request, element: str, _view: ClusterView) -> InParts[list[str]]:
        letters: list[str] = []
        return InParts(letters, Each(element, upper, into=letters), Each("!", upper, into=letters))

    answers: list[list[str]] = []
    await collect(request(), Each(["ab", "c"], one, into=answers))
    assert answers == [["A", "B", "!"], ["C", "!"]]


async def test_elements_that_wait_are_answered_in_turn_from_one_snapshot() -> None:
    cluster = ChangingCluster(view_led_by(1), view_led_by(2))
    begun: list[str] = []

    async def one(_request: Request, element: str, view: ClusterView) -> InParts[list[object]]:
        begun.append(element)
        await cluster.change()
        assert begun[-1] == element, "the next one has not begun"
        letters: list[object] = [*view.brokers]
        return InParts(letters, Each[str, object](element, upper, into=letters))

    of_letters: list[list[object]] = await collect_awaited(
        request_to(cluster.services, 0), ["a", "b", "a"], one, key=str
    )

    assert of_letters == [[1, "A"], [1, "B"]]


async def test_elements_that_wait_together_are_begun_up_to_their_work() -> None:
    begun: list[str] = []
    before: dict[str, int] = {}

    async def one(_request: Request, element: str, _view: ClusterView) -> str:
        begun.append(element)
        await asyncio.sleep(0)
        before[element] = len(begun)
        return element.upper()

    answers = await collect_awaited(request(), ["a", "b", "long", "c"], one, work=len, together=2)

    assert answers == ["A", "B", "LONG", "C"]
    assert before == {"a": 2, "b": 2, "long": 3, "c": 4}


async def test_a_long_loop_lets_the_event_loop_turn() -> None:
    asker = request()
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count_turns())
    names: list[str] = []
    in_parts = InParts(names, Each([str(number) for number in range(5000)], upper, into=names, work=10))
    in_parts.view = ClusterView()
    await asker.services.slices.run(complete(asker, in_parts))
    counting.cancel()
    assert turns >= 5000 * 10 // 500
