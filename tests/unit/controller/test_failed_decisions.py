"""Decisions and writes of the controller that fail unexpectedly: nothing is written by halves, and all else goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from ottla.controller import controller as shell
from ottla.controller import event_work
from ottla.controller.config_changes import AlterConfig, ConfigChange
from ottla.controller.controller import Controller
from ottla.controller.elections import Election
from ottla.controller.isr import ProposedIsr
from ottla.controller.reassignments import RequestedReassignment
from ottla.controller.terms import write_in_term
from ottla.controller.topics import CreatePartitions, CreateTopic
from ottla.core.errors import ErrorCode, KafkaError, NotController
from ottla.core.ids import TopicPartition
from ottla.core.settings import AlterConfigOpType
from ottla.metadata_store import znodes
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore
from tests.unit.controller.test_controller import Node

FIRST = TopicPartition("t", 0)


class LaterClock:
    """The system's clock, which the test moves."""

    def __init__(self) -> None:
        self.later_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.later_s

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class Planted:
    """Lets the decision about one kind of event fail, after it was made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kind, self.failed = "", 0
        for module, name in ((shell, "apply"), (event_work, "alter_partitions")):
            monkeypatch.setattr(module, name, self._failing(getattr(module, name)))

    def _failing(self, decide: Callable[..., Any]) -> Callable[..., Any]:
        def decide_and_fail(overlay: Any, event: Any) -> Any:
            outcome = decide(overlay, event)
            if type(event).__name__ == self.kind and getattr(event, "name", "") != "u":
                self.failed += 1
                raise AssertionError("planted")
            return outcome

        return decide_and_fail


@pytest.fixture
def clock() -> LaterClock:
    return LaterClock()


@pytest.fixture
async def node(clock: LaterClock) -> AsyncIterator[Node]:
    node = Node(EmbeddedMetadataStore())
    node.controller._clock = node.controller._failed._clock = clock
    await node.start()
    await node.controller.create_topic("t")
    yield node
    await node.stop()


async def _create(controller: Controller) -> list[Any]:
    return await controller.create_topics([CreateTopic("new"), CreateTopic("u")])


async def _add_partitions(controller: Controller) -> list[Any]:
    return await controller.create_partitions([CreatePartitions("t", 2)])


async def _delete(controller: Controller) -> list[Any]:
    return await controller.delete_topics(["t"])


async def _alter_config(controller: Controller) -> list[Any]:
    change = ConfigChange(AlterConfigOpType.SET, "k", "v")
    return await controller.alter_configs([AlterConfig(znodes.BROKERS_KIND, "<default>", [change], {}, lambda _: None)])


async def _alter_isr(controller: Controller) -> list[Any]:
    view = controller._cluster.current
    part = view.topics["t"].partitions[0]
    epoch = view.brokers[1].epoch
    proposed = ProposedIsr(view.topics["t"].topic_id, 0, part.leader_epoch, part.partition_epoch, [(1, epoch)])
    return await controller.alter_partitions(1, epoch, [proposed])


async def _elect(controller: Controller) -> list[Any]:
    return await controller.elect_leaders(Election.PREFERRED, [FIRST])


async def _reassign(controller: Controller) -> list[Any]:
    return await controller.reassign([RequestedReassignment(FIRST, (1,))])


REQUESTS: dict[str, Callable[[Controller], Awaitable[list[Any]]]] = {
    "CreateTopic": _create,
    "CreatePartitions": _add_partitions,
    "DeleteTopic": _delete,
    "AlterConfig": _alter_config,
    "AlterPartition": _alter_isr,
    "ElectLeaders": _elect,
    "Reassign": _reassign,
}


@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_decision_that_fails_writes_nothing_and_may_be_repeated(
    node: Node, clock: LaterClock, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    planted = Planted(monkeypatch)

    async def ask(node: Node) -> Any:
        try:
            return (await REQUESTS[kind](node.controller))[0]
        except KafkaError as error:
            return error

    before = node.cluster.current.topics["t"]
    epoch = node.cluster.current.controller_epoch
    planted.kind = kind
    refused = await ask(node)
    assert isinstance(refused, NotController), refused
    assert node.cluster.current.topics["t"] == before
    assert ("u" in node.cluster.current.topics) == (kind == "CreateTopic"), "the others of the request are decided"
    await ask(node)
    assert planted.failed == 1, "a repetition at once is refused without a decision"
    planted.kind = ""
    clock.later_s += 5
    outcome = await ask(node)
    assert not isinstance(outcome, NotController)
    assert node.cluster.current.controller_epoch == epoch, "the term goes on"
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert kind in errors[0].getMessage()


async def test_an_election_that_fails_is_tried_again_and_the_others_are_made(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    planted = Planted(monkeypatch)

    tree = EmbeddedMetadataStore()
    first, second = Node(tree, 1), Node(tree, 2)
    await first.start()
    await second.start()
    await first.until(lambda view: len(view.brokers) == 2)
    await first.controller.create_topic("t", assignments=[(0, [2, 1])])
    planted.kind = "BrokersGone"
    await second.stop()
    await first.until(lambda view: len(view.brokers) == 1)
    while not planted.failed:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    topic = await first.controller.create_topic("u")
    assert topic.partitions[0].leader == 1
    planted.kind = ""
    await first.until(lambda view: view.topics["t"].partitions[0].leader == 1)
    await first.stop()
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert errors
    assert "BrokersGone" in errors[0].getMessage()
    assert sum(record.exc_info is not None for record in errors) == 1


async def test_a_write_that_fails_unexpectedly_ends_the_term_and_the_next_goes_on(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing = [True]

    async def write_and_fail(*arguments: Any) -> Any:
        written = await write_in_term(*arguments)
        if failing.pop():
            raise AssertionError("planted")
        failing.append(False)
        return written

    epoch = node.cluster.current.controller_epoch
    monkeypatch.setattr(shell, "write_in_term", write_and_fail)
    failing.append(True)
    with pytest.raises(NotController):
        await node.controller.create_topic("v")
    failing[:] = [False]
    await node.until(lambda view: view.controller_epoch == epoch + 1)
    while not node.controller.is_active:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    outcomes = await node.controller.create_topics([CreateTopic("v"), CreateTopic("w")])
    assert [getattr(each, "code", ErrorCode.NONE) for each in outcomes] == [
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.NONE,
    ], "what was written before the failure is there"
    assert [record.levelname for record in caplog.records].count("ERROR") == 1


async def test_a_change_of_the_cluster_that_the_controller_cannot_follow_is_read_again(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    term = node.controller._term
    assert term is not None
    index = term.index
    term.index = None  # type: ignore[assignment]
    await node.controller.create_topic("v")
    while not term.has_taken_over or term.index is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert type(term.index) is type(index)
    assert (await node.controller.create_topic("w")).partitions[0].leader == 1
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
