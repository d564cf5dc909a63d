"""A step of a coordinator that fails after it began to change the state: the state is loaded again, and all goes on.

A failure is planted by a state that contradicts itself: the check after the next event finds it, whatever that is.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from ottla.core.errors import CoordinatorLoadInProgress, ErrorCode, KafkaError, NotEnoughReplicas
from ottla.core.ids import OFFSETS_TOPIC, TopicPartition
from ottla.core.repeated_failures import DELAY_S_MAX, FORGOTTEN_AFTER_S, RepeatedFailures
from ottla.groups.classic.events import (
    GroupConverted,
    GroupDisbanded,
    GroupSnapshot,
    Heartbeat,
    Join,
    Leave,
    Leaver,
    MemberSnapshot,
    Sync,
)
from ottla.groups.classic.records import group_key, group_value
from ottla.groups.config import GroupConfig
from ottla.groups.consumer import records as consumer_records
from ottla.groups.consumer.events import MemberHeartbeat, RegexesResolved
from ottla.groups.consumer.member import ConsumerMember
from ottla.groups.coordinator import GroupCoordinator
from ottla.groups.group_runtime import GroupRuntime
from ottla.groups.machine import Commit, SessionTimer, TimerFired
from ottla.groups.modern.events import HeartbeatAnswer, TopicsChanged
from ottla.groups.modern.records import GroupMetadata
from ottla.groups.offsets import CommittedOffset
from ottla.groups.share import records as share_records
from ottla.groups.share.events import OffsetsAltered, ShareHeartbeat, StatesDeleted, StatesInitialized
from ottla.internal_topics.machine_events import NotStored, Stored
from ottla.internal_topics.topic_log import AppendedBatch, KeyValue, ProducerIdentity
from ottla.metadata_store.cluster_view import ClusterView, PartitionView, TopicView
from ottla.testing.sim_loop import SimClock
from tests.support.group_driver import subscription
from tests.support.topic_logs import MemoryTopicLog

pytestmark = pytest.mark.simulated_time

WEB = TopicPartition("web", 0)
WEB_ID, OFFSETS_ID = uuid.UUID(int=1), uuid.UUID(int=9)
ALONE = Commit(member_id="", generation=-1)
RETRIABLE = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}


class HeldLog(MemoryTopicLog):
    """An internal topic whose appends wait until the test releases them."""

    def __init__(self) -> None:
        super().__init__(2)
        self.hold = asyncio.Event()
        self.hold.set()

    async def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        producer: ProducerIdentity | None = None,
        *,
        leader_epoch: int,
    ) -> AppendedBatch:
        await self.hold.wait()
        return await super().append(partition, records, producer, leader_epoch=leader_epoch)


class GroupsHarness:
    """A coordinator of two partitions, with a group `team` that the test breaks and others beside it."""

    def __init__(self) -> None:
        self.log = HeldLog()
        self.coordinator = GroupCoordinator(GroupConfig(), clock=SimClock(), log=self.log, node_id=1)
        parts = tuple(PartitionView(index, 1, 0, (1,), (1,), 0) for index in range(2))
        topics = {
            OFFSETS_TOPIC: TopicView(OFFSETS_TOPIC, OFFSETS_ID, parts, {}, 0, 0),
            "web": TopicView("web", WEB_ID, parts, {}, 0, 0),
        }
        self.coordinator.follow(ClusterView(), ClusterView().with_topics(topics))
        led = self.coordinator.led
        names = [f"group-{number}" for number in range(50)]
        self.partition = led.partition_for("team")
        self.beside = next(name for name in names if led.partition_for(name) == self.partition)
        self.elsewhere = next(name for name in names if led.partition_for(name) != self.partition)

    async def loaded(self) -> None:
        await self.coordinator.led.wait_until_loaded()

    def runtime(self) -> GroupRuntime:
        runtime = self.coordinator.led.shard_of("team").find("team")
        assert runtime is not None
        return runtime

    async def commit(self, group_id: str, offset: int) -> None:
        await self.coordinator.commit(group_id, ALONE, {WEB: CommittedOffset(offset)})

    def committed(self, group_id: str) -> int | None:
        found = self.coordinator.fetch(group_id).get(WEB)
        return None if found is None else found.offset

    async def goes_on(self) -> None:
        """Assert that the groups beside the broken one, and it, are served after the failure."""
        assert self.committed(self.elsewhere) == 2, "another partition was never unloaded"
        await asyncio.sleep(0.1)
        await self.loaded()
        assert self.committed(self.beside) == 1
        await self.commit(self.beside, 3)
        assert self.committed(self.beside) == 3


async def classic_group(harness: GroupsHarness) -> None:
    await harness.commit("team", 5)
    runtime = harness.coordinator.led.shard_of("team").find_or_create("team")
    answer: Any = await runtime.ask(a_join("m"))
    await runtime.ask(Sync(member_id="m", generation=answer.generation))
    assert runtime.group.summary.state == "Stable"


def a_join(new_member_id: str) -> Join:
    return Join(
        member_id="",
        new_member_id=new_member_id,
        protocol_type="consumer",
        protocols=(("range", subscription("web")),),
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        instance_id=None,
        client_id="c",
        client_host="/h",
        requires_member_id=False,
        may_skip_assignment=False,
    )


def a_heartbeat(member_id: str, **more: Any) -> MemberHeartbeat:
    fields: dict[str, Any] = {"member_epoch": 0, "rebalance_timeout_ms": 9_000, "topics": frozenset({"web"})}
    return MemberHeartbeat(member_id=member_id, **{**fields, "owned": {}, **more})


async def consumer_group(harness: GroupsHarness) -> None:
    await harness.commit("team", 5)
    answer = await harness.coordinator.member_heartbeat("team", a_heartbeat("m", regex="we.*"))
    assert answer.error is ErrorCode.NONE
    joining = replace(a_join(""), member_id="old")
    await harness.runtime().ask(joining)
    await asyncio.sleep(0.1)


async def share_group(harness: GroupsHarness) -> None:
    runtime, machine = harness.coordinator.led.shard_of("team").find_or_create_share("team", may_create=True)
    runtime.feed(StatesInitialized(machine.uninitialized(["web"])))
    for member_id in ("m", "stays"):  # a group that becomes empty would set the broken epoch right
        answer = await runtime.ask(ShareHeartbeat(member_id=member_id, member_epoch=0, topics=frozenset({"web"})))
        assert answer.error is ErrorCode.NONE


def break_classic(runtime: GroupRuntime) -> None:
    group: Any = runtime.group
    group.members.syncing["ghost"] = 77


def break_modern(runtime: GroupRuntime) -> None:
    group: Any = runtime.group
    group.target["ghost"] = {}


SET_UP: dict[str, Any] = {
    "classic": (classic_group, break_classic),
    "consumer": (consumer_group, break_modern),
    "share": (share_group, break_modern),
}
LEAVE = Leave((Leaver(member_id="m"),))
IN_CLASSIC: dict[str, object] = {
    "Join": a_join("n"),
    "Sync": Sync(member_id="m", generation=1),
    "Heartbeat": Heartbeat(member_id="m", generation=1),
    "Commit": Commit(member_id="m", generation=1),
    "Leave": LEAVE,
    "TimerFired": TimerFired(SessionTimer("m")),
    "GroupConverted": GroupConverted(rebalance=True),
    "GroupDisbanded": GroupDisbanded(),
}
IN_CONSUMER: dict[str, object] = {
    "MemberHeartbeat": a_heartbeat("n"),
    "heartbeat of a member": a_heartbeat("m", member_epoch=2),
    "leaving": a_heartbeat("m", member_epoch=-1),
    "Join": a_join("n"),
    "Sync": Sync(member_id="old", generation=2),
    "Heartbeat": Heartbeat(member_id="old", generation=2),
    "Commit": Commit(member_id="m", generation=2, api_version=9),
    "Leave": LEAVE,
    "TimerFired": TimerFired(SessionTimer("m")),
    "TopicsChanged": TopicsChanged(frozenset({"web"})),
    "RegexesResolved": RegexesResolved({"we.*": frozenset({"web"})}, 1),
}
IN_SHARE: dict[str, object] = {
    "ShareHeartbeat": ShareHeartbeat(member_id="n", member_epoch=0, topics=frozenset({"web"})),
    "leaving": ShareHeartbeat(member_id="m", member_epoch=-1),
    "StatesInitialized": StatesInitialized({WEB_ID: frozenset({0})}),
    "StatesDeleted": StatesDeleted(frozenset({WEB_ID})),
    "OffsetsAltered": OffsetsAltered(),
    "TopicsChanged": TopicsChanged(frozenset({"web"})),
    "TimerFired": TimerFired(SessionTimer("m")),
    "Commit": Commit(member_id="m", generation=1),
}
LEAVING: dict[str, object] = {
    "classic": LEAVE,
    "consumer": Leave((Leaver(member_id="old"),)),
    "share": ShareHeartbeat(member_id="m", member_epoch=-1),
}
EVENTS = [
    *(("classic", name, event) for name, event in IN_CLASSIC.items()),
    *(("consumer", name, event) for name, event in IN_CONSUMER.items()),
    *(("share", name, event) for name, event in IN_SHARE.items()),
    *((kind, result, None) for kind in SET_UP for result in ("Stored", "NotStored")),
]


@pytest.fixture
async def harness() -> AsyncIterator[GroupsHarness]:
    harness = GroupsHarness()
    await harness.loaded()
    await harness.commit(harness.beside, 1)
    await harness.commit(harness.elsewhere, 2)
    yield harness
    harness.log.failing = None
    harness.log.hold.set()
    await harness.coordinator.close()


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.ERROR]


@pytest.mark.parametrize(("kind", "name", "event"), EVENTS, ids=[f"{kind} {name}" for kind, name, _ in EVENTS])
async def test_a_group_is_loaded_again_after_any_failed_step(
    harness: GroupsHarness, kind: str, name: str, event: object, caplog: pytest.LogCaptureFixture
) -> None:
    set_up, break_state = SET_UP[kind]

    await set_up(harness)
    runtime = harness.runtime()
    in_log = len(harness.log.records(harness.partition))
    outline = runtime.machine.outline
    if name in ("Stored", "NotStored"):
        harness.log.hold.clear()
        asked = asyncio.ensure_future(runtime.ask(LEAVING[kind]))
        await asyncio.sleep(0.1)
        break_state(runtime)
        harness.log.failing = NotEnoughReplicas() if name == "NotStored" else None
        harness.log.hold.set()
    else:
        break_state(runtime)
        asked = asyncio.ensure_future(runtime.ask(event))
    error = (await asyncio.gather(asked, return_exceptions=True))[0]
    assert isinstance(error, KafkaError), error
    assert error.code in RETRIABLE
    assert not runtime.is_open
    harness.log.failing = None
    await harness.goes_on()
    if kind != "share":
        assert harness.committed("team") == 5
    again = harness.runtime()
    if name not in ("Stored", "NotStored"):
        assert in_log <= len(harness.log.records(harness.partition))
        if kind != "classic" or harness.runtime().group.summary.state == "Stable":
            assert again.machine.outline == outline, "the state before the event, from the log"
    if kind == "consumer":
        answer = await again.ask(a_heartbeat("q"))
        assert isinstance(answer, HeartbeatAnswer)
    elif kind == "classic":
        answer = await again.ask(a_join("q"))
    else:
        answer = await again.ask(ShareHeartbeat(member_id="q", member_epoch=0, topics=frozenset({"web"})))
    assert answer.error is ErrorCode.NONE
    (logged,) = failures(caplog)
    assert "'team'" in logged
    kind_of_event = {"Stored": Stored, "NotStored": NotStored}.get(name, type(event))
    assert kind_of_event.__name__ in logged


async def test_the_waiting_members_of_the_groups_beside_it_try_again(
    harness: GroupsHarness, caplog: pytest.LogCaptureFixture
) -> None:
    await classic_group(harness)
    beside = harness.coordinator.led.shard_of(harness.beside).find_or_create(harness.beside)
    waiting = asyncio.ensure_future(beside.ask(a_join("b")))
    await asyncio.sleep(0)
    break_classic(harness.runtime())
    with pytest.raises(CoordinatorLoadInProgress):
        await harness.runtime().ask(Heartbeat(member_id="m", generation=1))
    with pytest.raises(KafkaError) as refused:
        await waiting
    assert refused.value.code in RETRIABLE
    await harness.goes_on()
    assert len(failures(caplog)) == 1


async def test_a_group_that_fails_again_and_again_is_refused_for_longer_and_longer(
    harness: GroupsHarness, caplog: pytest.LogCaptureFixture
) -> None:
    refused_s = []

    await classic_group(harness)
    loop = asyncio.get_running_loop()
    for _ in range(12):
        began_s = loop.time()
        while True:
            try:
                runtime = harness.runtime()
                break
            except CoordinatorLoadInProgress:
                await asyncio.sleep(0.05)
        refused_s.append(loop.time() - began_s)
        break_classic(runtime)
        with pytest.raises(CoordinatorLoadInProgress):
            await runtime.ask(Heartbeat(member_id="m", generation=1))
    await asyncio.sleep(DELAY_S_MAX)
    await harness.loaded()
    assert harness.committed(harness.beside) == 1
    assert refused_s[1] < 0.2
    assert all(earlier < later or later > DELAY_S_MAX - 1 for earlier, later in pairwise(refused_s[1:]))
    assert refused_s[-1] <= DELAY_S_MAX + 1
    logged = failures(caplog)
    assert len(logged) == 12, "one line for each failure, none for a refused request"
    assert sum("Heartbeat" in line for line in logged) == 1, "the event and the traceback once"


def test_a_failure_long_ago_is_forgotten() -> None:
    repeated = RepeatedFailures()
    assert [repeated.note("team", 0.0).until_s for _ in range(4)] == [0.0, 1.0, 2.0, 4.0]
    assert repeated.note("team", 5.0 + FORGOTTEN_AFTER_S).until_s == 5.0 + FORGOTTEN_AFTER_S


# ---- A state in the log that cannot be loaded


def _contradictory(kind: str) -> list[tuple[bytes, bytes | None]]:
    if kind == "classic":
        twins = tuple(
            MemberSnapshot(
                member_id=name,
                instance_id="I",
                client_id="c",
                client_host="/h",
                rebalance_timeout_ms=1,
                session_timeout_ms=1,
                subscription=b"",
                assignment=b"",
            )
            for name in "ab"
        )
        return [(group_key("team"), group_value(GroupSnapshot(protocol_type="consumer", members=twins)))]
    if kind == "consumer":
        member = ConsumerMember(member_id="m", epoch=-7, topics=frozenset({"web"}))
        return [
            consumer_records.group_metadata("team", GroupMetadata(3)),
            consumer_records.member_metadata("team", member),
            consumer_records.current_assignment("team", "m", consumer_records.current_of(member)),
        ]
    return [share_records.group_metadata("team", GroupMetadata(-3))]


@pytest.mark.parametrize("kind", SET_UP)
async def test_a_group_that_cannot_be_loaded_leaves_the_others_alone(
    harness: GroupsHarness, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    harness.log.put(harness.partition, _contradictory(kind))
    with pytest.raises(KafkaError):
        await harness.commit(harness.beside, 1)  # the log has a batch that memory has not
    await asyncio.sleep(1)
    await harness.loaded()
    for _ in range(3):
        with pytest.raises(CoordinatorLoadInProgress):
            harness.committed("team")
    await harness.commit(harness.beside, 4)
    assert harness.committed(harness.beside) == 4
    assert harness.beside in {summary.group_id for summary in harness.coordinator.list_groups()}
    await asyncio.sleep(61)
    with pytest.raises(CoordinatorLoadInProgress):
        harness.committed("team")
    await asyncio.sleep(1)
    await harness.loaded()
    assert harness.committed(harness.beside) == 4
    assert len(failures(caplog)) == 2, "it is tried again after a minute"
