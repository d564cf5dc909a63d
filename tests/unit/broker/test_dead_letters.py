"""Dead letter queues of share groups against a whole broker in this process: what goes there, where to, and when not."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from ottla.broker.internal_topic_creation import create_if_absent
from ottla.broker.remote import dead_letters as writing
from ottla.core.errors import ErrorCode, NetworkException
from ottla.core.ids import SHARE_STATE_TOPIC
from ottla.records.builder import NewRecord, build_batch
from ottla.records.codecs import Codec
from ottla.records.record_reader import Record, read_columns
from ottla.replication.partition import Partition
from ottla.share_coordinator.records import SharePartitionKey
from ottla.share_coordinator.states import RecordState
from ottla.share_partitions.machine import EXHAUSTED, REJECTED
from ottla.testing.cluster import BrokerHandlers, TestCluster
from ottla.wire.generated import create_topics, incremental_alter_configs
from tests.support.async_tests import setup_of
from tests.support.waiting import until
from tests.unit.broker.test_share_fetch import ACCEPT, GAP, OPTIONS, REJECT, RELEASE, ShareClient, acquired

GROUP, TOPIC, BROKER = 32, 2, 4
QUEUE = "dlq.team"
CREATING = {**OPTIONS, "errors.deadletterqueue.auto.create.topics.enable": "true", "num.partitions": "2"}

pytestmark = [pytest.mark.simulated_time, pytest.mark.options(CREATING)]
AT_MS = 1_700_000_000_000
ALONE = {"share.coordinator.state.topic.replication.factor": "1", "share.coordinator.state.topic.min.isr": "1"}


class Team:
    """A broker with a topic of three partitions, whose last one a share group with a dead letter queue consumes."""

    PARTITION = 2

    def __init__(self, server: BrokerHandlers) -> None:
        self.server, self.services = server, server.services
        self.topic_id = self.services.cluster.current.topics["t"].topic_id
        self.partition = self.services.replicas.find("t", self.PARTITION)
        self.key = SharePartitionKey("team", self.topic_id, self.PARTITION)

    def client(self, name: str = "ada") -> ShareClient:
        return ShareClient(self.server, self.topic_id, name, partition=self.PARTITION)

    def produce(self, *records: NewRecord, codec: int = Codec.NONE) -> None:
        batch = memoryview(bytearray(build_batch(records, codec=codec)))
        self.partition.append_as_leader(batch, acks=-1, now_ms=AT_MS)

    async def configure(self, settings: Mapping[str, str | None]) -> None:
        """Set settings of the group's dead letter queue; None deletes one."""
        await alter(self.server, GROUP, "team", {f"errors.deadletterqueue.{k}": v for k, v in settings.items()})

    def is_done(self, count: int) -> Callable[[], bool]:
        """Return whether the first so many records are done, durably."""

        def done() -> bool:
            state = self.services.coordinators.share_states.summary(self.key).state
            return state is not None and state.start_offset + state.delivery_complete_count >= count

        return done

    def letters(self, topic: str = QUEUE, partition: int = 0) -> list[Record]:
        return records_of(self.services.replicas.find(topic, partition))


def records_of(partition: Partition) -> list[Record]:
    """Return all records of a partition."""
    found = partition.read(0, max_bytes=1 << 20, committed_only=False, at_least_one=True)
    if found.region is None:
        return []
    read = read_columns(found.region.read())
    rows = zip(read.offsets, read.timestamps_ms, read.keys, read.values, read.headers, strict=True)
    return [Record(*row) for row in rows]


async def alter(server: BrokerHandlers, kind: int, name: str, settings: Mapping[str, str | None]) -> int:
    configs = [
        incremental_alter_configs.AlterableConfig(name=key, config_operation=int(value is None), value=value)
        for key, value in settings.items()
    ]
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    answer = await server.call(
        "incremental_alter_configs", 1, incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
    )
    return int(answer.responses[0].error_code)


async def create(server: BrokerHandlers, name: str, partitions: int, **configs: str) -> None:
    wanted = [
        create_topics.CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
    ]
    topic = create_topics.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=wanted)
    answer = await server.call("create_topics", 7, create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
    assert answer.topics[0].error_code == 0, answer


Scenario = Callable[[Team], Awaitable[None]]


async def started_team(server: BrokerHandlers, settings: Mapping[str, str]) -> Team:
    """Create the topic of a team, and the state of its share partition."""
    await create(server, "t", 3)
    await create_if_absent(server.services, SHARE_STATE_TOPIC)
    await server.services.coordinators.share_states.led.wait_until_loaded()
    team = Team(server)
    await server.services.coordinators.share_states.initialize(team.key, 0, 0)
    await team.configure({"topic.name": QUEUE, **settings})
    return team


@pytest.fixture
async def team(request: pytest.FixtureRequest, broker: BrokerHandlers) -> Team:
    return await started_team(broker, setup_of(request).get("settings", {}))


def named(record: Record) -> dict[str, str]:
    """Return the headers by the end of their names."""
    return {name.removeprefix("__dlq.errors."): (value or b"").decode() for name, value in record.headers}


def ten() -> list[NewRecord]:
    return [NewRecord(b"key%d" % n, b"value%d" % n, AT_MS + n, (("own", b"x"),)) for n in range(10)]


async def test_rejected_records_go_to_the_dead_letter_queue_and_are_archived(team: Team) -> None:
    team.produce(*ten())
    ada = team.client()
    assert acquired(await ada.fetch()) == [(0, 9, 1)]
    assert await ada.acknowledge(0, 5, ACCEPT, REJECT, REJECT, ACCEPT, GAP, REJECT) == ErrorCode.NONE
    await until(team.is_done(6))
    letters = team.letters()
    assert [named(one) for one in letters] == [
        {
            "topic": "t",
            "partition": "2",
            "offset": str(offset),
            "group": "team",
            "delivery.count": "1",
            "message": REJECTED,
        }
        for offset in (1, 2, 5)
    ]
    assert {(one.key, one.value) for one in letters} == {(None, None)}
    topic = team.services.cluster.current.topics[QUEUE]
    assert len(topic.partitions) == 2
    assert topic.config == {"errors.deadletterqueue.group.enable": "true", "message.timestamp.type": "CreateTime"}
    assert team.letters(partition=1) == [], "partition 2 goes to partition 2 modulo 2"


@pytest.mark.options({"group.share.delivery.count.limit": "2"})
async def test_a_record_that_is_released_after_its_last_delivery_goes_to_the_dead_letter_queue(team: Team) -> None:
    team.produce(NewRecord(b"k", b"v", AT_MS))
    ada, bob = team.client("ada"), team.client("bob")
    assert acquired(await ada.fetch()) == [(0, 0, 1)]
    assert await ada.acknowledge(0, 0, RELEASE) == ErrorCode.NONE
    assert acquired(await bob.fetch()) == [(0, 0, 2)]
    await bob.fetch(epoch=-1)  # its session ends, which releases the record
    await until(team.is_done(1))
    (letter,) = team.letters()
    assert (named(letter)["message"], named(letter)["delivery.count"]) == (EXHAUSTED, "2")


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.setup(settings={"copy.record.enable": "true"})
async def test_with_copies_a_dead_letter_has_the_key_and_the_value(team: Team, codec: int) -> None:
    team.produce(*ten(), codec=codec)
    team.produce(NewRecord(None, b"", AT_MS), NewRecord(b"", None, AT_MS))
    ada = team.client()
    await ada.fetch()
    assert await ada.acknowledge(3, 11, REJECT) == ErrorCode.NONE
    await until(lambda: len(team.letters()) == 9 if QUEUE in team.services.cluster.current.topics else False)
    expected = [(b"key%d" % n, b"value%d" % n) for n in range(3, 10)] + [(None, b""), (b"", None)]
    assert [(one.key, one.value) for one in team.letters()] == expected
    assert "own" not in named(team.letters()[0]), "as in Kafka the record's own headers are not copied"


@pytest.mark.setup(settings={"copy.record.enable": "true"})
async def test_more_dead_letters_than_fit_into_a_batch_are_written_in_several(team: Team) -> None:
    await create(team.server, QUEUE, 1, errors_deadletterqueue_group_enable="true", max_message_bytes="2000")
    team.produce(*[NewRecord(b"k", b"v" * 500, AT_MS) for _ in range(10)])
    ada = team.client()
    await ada.fetch()
    assert await ada.acknowledge(0, 9, REJECT) == ErrorCode.NONE
    await until(team.is_done(10))
    assert [named(one)["offset"] for one in team.letters()] == [str(n) for n in range(10)]


@pytest.mark.setup(settings={"copy.record.enable": "true"})
async def test_a_copy_that_is_too_large_for_the_queue_leaves_the_others_whole(
    team: Team, caplog: pytest.LogCaptureFixture
) -> None:
    await create(team.server, QUEUE, 1, errors_deadletterqueue_group_enable="true", max_message_bytes="2000")
    team.produce(NewRecord(b"a", b"1", AT_MS), NewRecord(b"b", b"2" * 3000, AT_MS), NewRecord(b"c", b"3", AT_MS))
    ada = team.client()
    await ada.fetch()
    assert await ada.acknowledge(0, 2, REJECT) == ErrorCode.NONE
    await until(team.is_done(3))
    assert [one.key for one in team.letters()] == [b"a", b"c"]
    (message,) = [line.getMessage() for line in caplog.records if "dead letter queue" in line.getMessage()]
    assert "records of t-2 that group team archived are not all in its dead letter queue" in message


@pytest.mark.parametrize(
    ("name", "of_topic", "why"),
    [
        pytest.param(
            "dlq.team",
            None,
            "does not exist",
            marks=pytest.mark.options({"errors.deadletterqueue.auto.create.topics.enable": "false"}),
        ),
        ("other", None, "must begin with dlq."),
        ("dlq.team", {}, "takes no dead letters"),
        ("dlq.te/am", None, "te/am"),
    ],
)
async def test_what_may_not_be_written_is_archived_and_logged(
    broker: BrokerHandlers, caplog: pytest.LogCaptureFixture, name: str, of_topic: dict[str, str] | None, why: str
) -> None:
    team = await started_team(broker, {"topic.name": name})
    if of_topic is not None:
        await create(team.server, name, 1, **of_topic)
    team.produce(*ten())
    ada = team.client()
    await ada.fetch()
    assert await ada.acknowledge(0, 9, REJECT) == ErrorCode.NONE
    await until(team.is_done(10))
    (message,) = [line.getMessage() for line in caplog.records if line.levelno == logging.ERROR]
    assert why in message
    assert "offsets 0 to 9" in message
    assert of_topic is not None or name not in team.services.cluster.current.topics


@pytest.mark.setup(settings={"topic.name": "poison-team"})
async def test_another_prefix_applies_without_a_restart(team: Team) -> None:
    await alter(team.server, BROKER, "", {"errors.deadletterqueue.topic.name.prefix": "poison-"})
    team.produce(*ten())
    ada = team.client()
    await ada.fetch()
    assert await ada.acknowledge(0, 0, REJECT) == ErrorCode.NONE
    await until(team.is_done(1))
    assert len(team.letters("poison-team")) == 1


async def test_a_group_without_a_topic_for_dead_letters_archives_at_once(team: Team) -> None:
    team.produce(*ten())
    ada = team.client()
    await ada.fetch()
    await team.configure({"topic.name": None})
    assert await ada.acknowledge(0, 9, REJECT) == ErrorCode.NONE
    assert team.is_done(10)()
    assert QUEUE not in team.services.cluster.current.topics


class Unreachable:
    """Takes the place of an append to the queue: so many fail."""

    def __init__(self, times: int, then: Any) -> None:
        self.times, self.then, self.asked = times, then, 0

    async def __call__(self, *request: Any) -> Any:
        self.asked += 1
        if self.asked <= self.times:
            raise NetworkException("cut off")
        return await self.then(*request)


@pytest.mark.parametrize(("failures", "written"), [(4, 10), (5, 0)])
async def test_a_write_is_tried_five_times(
    team: Team, monkeypatch: pytest.MonkeyPatch, failures: int, written: int
) -> None:
    monkeypatch.setattr(writing, "BACKOFF_S", 0.0)

    await create(team.server, QUEUE, 1, errors_deadletterqueue_group_enable="true")
    manager: Any = team.services.coordinators.share_partitions
    writer = manager._dead_letters
    writer._append = Unreachable(failures, writer._append)
    team.produce(*ten())
    ada = team.client()
    await ada.fetch()
    assert await ada.acknowledge(0, 9, REJECT) == ErrorCode.NONE
    await until(team.is_done(10))
    assert len(team.letters()) == written


async def test_dead_letters_that_a_stopped_broker_had_not_written_are_written_after_its_restart(
    broker: BrokerHandlers, team: Team
) -> None:
    def states(team: Team) -> list[RecordState]:
        partition = team.services.coordinators.share_partitions.find(team.key)
        assert partition is not None
        assert partition._machine is not None
        return [each.state for each in partition._machine.ranges()]

    await create(team.server, QUEUE, 1, errors_deadletterqueue_group_enable="true")
    manager: Any = team.services.coordinators.share_partitions
    manager._dead_letters._append = Unreachable(1_000, None)
    team.produce(*ten())
    ada = team.client()
    await ada.fetch()
    assert await ada.acknowledge(2, 3, REJECT) == ErrorCode.NONE
    assert await ada.acknowledge(0, 1, ACCEPT) == ErrorCode.NONE
    await ada.fetch(epoch=-1)
    assert states(team)[0] is RecordState.ARCHIVING, "it stays loaded without sessions, and holds the start"
    await broker.restart()
    await broker.services.coordinators.share_states.led.wait_until_loaded()
    team = Team(broker)
    assert acquired(await team.client().fetch(max_wait_ms=5_000)) == [(4, 9, 2)]
    await until(team.is_done(4))
    assert [(named(one)["offset"], named(one)["message"]) for one in team.letters()] == [
        ("2", REJECTED),
        ("3", REJECTED),
    ]


async def test_the_name_of_a_queue_must_not_begin_as_those_of_internal_topics(team: Team) -> None:
    setting = "errors.deadletterqueue.topic.name"
    assert await alter(team.server, GROUP, "team", {setting: "__dlq"}) == ErrorCode.INVALID_CONFIG
    assert await alter(team.server, GROUP, "team", {setting: "any/thing"}) == ErrorCode.NONE
    assert await alter(team.server, GROUP, "team", {setting: ""}) == ErrorCode.NONE


@pytest.mark.brokers(2)
@pytest.mark.options(ALONE)
async def test_dead_letters_go_to_the_broker_that_leads_the_queue(cluster: TestCluster) -> None:
    async def create_on(cluster: TestCluster, name: str, node_id: int, **configs: str) -> None:
        wanted = [create_topics.CreatableTopicConfig(name=key.replace("_", "."), value=configs[key]) for key in configs]
        placed = [create_topics.CreatableReplicaAssignment(partition_index=0, broker_ids=[node_id])]
        topic = create_topics.CreatableTopic(
            name=name, num_partitions=-1, replication_factor=-1, assignments=placed, configs=wanted
        )
        request = create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        answer = await cluster.handlers(cluster.controller).call("create_topics", 7, request)
        assert answer.topics[0].error_code == 0, answer
        await cluster.known_everywhere(name)

    await create_on(cluster, "t", 1)
    await create_on(cluster, QUEUE, 2, errors_deadletterqueue_group_enable="true")
    here = cluster.services(1)
    await create_if_absent(here, SHARE_STATE_TOPIC)
    await cluster.known_everywhere(SHARE_STATE_TOPIC)
    topic_id = here.cluster.current.topics["t"].topic_id
    key = SharePartitionKey("team", topic_id, 0)
    await here.coordinators._share_state_persister.initialize(key, 0, 0)
    names = {"errors.deadletterqueue.topic.name": QUEUE, "errors.deadletterqueue.copy.record.enable": "true"}
    assert await alter(cluster.handlers(cluster.controller), GROUP, "team", names) == ErrorCode.NONE
    await cluster.until(lambda: "team" in here.cluster.current.configs.get("groups", {}))
    partition = here.replicas.find("t", 0)
    partition.append_as_leader(memoryview(bytearray(build_batch(ten()))), acks=-1, now_ms=AT_MS)
    ada = ShareClient(cluster.handlers(1), topic_id, "ada")
    assert acquired(await ada.fetch(max_wait_ms=10_000)) == [(0, 9, 1)]
    assert await ada.acknowledge(0, 9, REJECT) == ErrorCode.NONE
    queue = cluster.services(2).replicas.find(QUEUE, 0)
    await cluster.until(lambda: queue.high_watermark == 10)
    share_partition = here.coordinators.share_partitions.find(key)
    assert share_partition is not None
    await cluster.until(lambda: not share_partition.dead_letter_writes)
    assert [one.value for one in records_of(queue)] == [b"value%d" % n for n in range(10)]
