"""Drives the state machine of one consumer group (KIP-848): the test owns its time, its log, its topics and answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import UUID

from ottla.core.errors import ErrorCode
from ottla.groups.classic.events import Heartbeat, Join, Leave, Leaver, Sync
from ottla.groups.consumer.events import MemberHeartbeat, Timer
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.consumer.machine import ConsumerMachine
from ottla.groups.consumer.member import ConsumerMember
from ottla.groups.consumer.records import ConsumerRecordKey, ConsumerRecordType, ConsumerRecordValue, encode
from ottla.groups.consumer.settings import ConsumerSettings
from ottla.groups.machine import (
    AppendRecords,
    CancelTimer,
    Compute,
    GroupAnswer,
    Now,
    Output,
    Replace,
    SetTimer,
    TimerFired,
)
from ottla.groups.modern.events import HeartbeatAnswer
from ottla.groups.modern.topics import TopicsImage
from ottla.internal_topics.machine_events import Loaded, NotStored, Reply, Stored
from ottla.internal_topics.topic_log import KeyValue
from ottla.metadata_store.cluster_view import BrokerInfo, ClusterView, PartitionView, TopicView
from tests.support.group_driver import subscription
from tests.support.replayed import compacted, replay_consumer_group, undurable

WALL_MS = 1_700_000_000_000
REBALANCE_TIMEOUT_MS = 60_000
EVERY_CHANGE = ConsumerSettings(assignment_interval_ms=0)
"""Settings with which each change is assigned at once."""

Owned = Mapping[str, Iterable[int]]


def topic(name: str, partitions: int) -> TopicView:
    """A topic whose id follows from its name."""
    parts = tuple(PartitionView(index, 0, 0, (0,), (0,), 0) for index in range(partitions))
    return TopicView(name, topic_id(name), parts, {}, 0, 0)


def topic_id(name: str) -> UUID:
    return UUID(bytes=name.encode().ljust(16, b"-")[:16])


def view(topics: Mapping[str, int], rack: str | None = None) -> ClusterView:
    brokers = {0: BrokerInfo(0, {}, rack, 0, {})}
    return ClusterView(brokers=brokers).with_topics({name: topic(name, count) for name, count in topics.items()})


@dataclass
class Driver:
    """One group, its clock and its log. Its first epoch is 1. `manual`: `stored` and `not_stored` finish writes."""

    topics: dict[str, int] = field(default_factory=lambda: {"web": 4})
    settings: ConsumerSettings = EVERY_CHANGE
    group: ConsumerGroup = field(default_factory=lambda: ConsumerGroup("team", epoch=0))
    manual: bool = False

    def __post_init__(self) -> None:
        self.now_ms, self.first_epoch = 0, self.group.epoch
        self.image = TopicsImage(view(self.topics))
        self.machine: Any = ConsumerMachine(self.group, self.settings, self.image)
        self.answers: dict[int, GroupAnswer] = {}
        self.log: list[KeyValue] = []
        self.waiting: list[tuple[Any, AppendRecords]] = []
        self.computing: list[Compute] = []
        self.timers: dict[Any, int] = {}
        self._tickets = count()

    # ---- Steps

    def feed(self, event: object, *, to: Any = None) -> int:
        ticket = next(self._tickets)
        machine = to or self.machine
        now = Now(self.now_ms, WALL_MS + self.now_ms)
        outputs = machine.step(event, now=now, ticket=ticket)
        machine.group.check()  # after every step: the machine checks all only after those that may change members
        if isinstance(machine, ConsumerMachine):
            self.check_replay(machine)
        for output in outputs:
            self._perform(machine, output)
        return ticket

    def check_replay(self, machine: ConsumerMachine) -> None:
        """Assert that the log and what is not written yet give this group, in full and compacted."""
        log = [*self.log, *undurable(machine)]
        for records in (log, compacted(log)):
            replayed = replay_consumer_group(ConsumerGroup("team", epoch=self.first_epoch), records)
            assert replayed.is_in_log == machine.group.is_in_log
            if replayed.is_in_log:
                assert replayed == machine.group, "the log says otherwise"

    def given(self, kind: ConsumerRecordType, value: ConsumerRecordValue, name: str = "") -> None:
        """Let the log and the group have a record that no event led to."""
        record = ConsumerRecordKey(kind, "team", name), value
        self.group.apply(record)
        self.log.append(encode(record))

    def ask(self, event: object) -> Any:
        return self.answers[self.feed(event)]

    def _perform(self, machine: Any, output: Output) -> None:
        match output:
            case Reply(ticket, answer):
                assert ticket not in self.answers, "answered twice"
                self.answers[ticket] = answer
            case SetTimer(timer, at_ms):
                self.timers[timer] = at_ms
            case CancelTimer(timer):
                self.timers.pop(timer, None)
            case AppendRecords():
                self.waiting.append((machine, output))
                if not self.manual:
                    self.stored()
            case Compute():
                self.computing.append(output)
            case Replace(replacement, event):
                self.machine, self.timers = replacement, {}
                self.feed(event)

    def stored(self) -> None:
        machine, write = self.waiting.pop(0)
        self.log += write.records
        self.feed(Stored(write.write), to=machine)

    def not_stored(self, error: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE) -> None:
        machine, write = self.waiting.pop(0)
        self.feed(NotStored(write.write, error), to=machine)

    def compute(self) -> None:
        """Finish what is computed off the loop."""
        for work in [each.work for each in self.computing]:
            del self.computing[0]
            self.feed(work())

    def pass_time(self, ms: int) -> None:
        """Let time pass; timers fire when they are due."""
        end_ms = self.now_ms + ms
        while self.timers and min(self.timers.values()) <= end_ms:
            timer = min(self.timers, key=lambda each: (self.timers[each], repr(each)))
            self.now_ms = max(self.now_ms, self.timers.pop(timer))
            self.feed(TimerFired(timer))
        self.now_ms = end_ms

    def set_topics(self, topics: dict[str, int]) -> None:
        from ottla.groups.modern.events import TopicsChanged

        older, self.topics = self.image, topics
        self.image = older.followed_by(view(topics))
        self.machine.topics = self.image
        self.feed(TopicsChanged(self.image.changed_since(older)))

    def reload(self) -> None:
        """Build the group from its log, as after a restart."""
        group = replay_consumer_group(ConsumerGroup("team"), self.log)
        assert group.is_in_log, "the group is not in the log"
        self.group = group
        self.machine = ConsumerMachine(group, self.settings, self.image)
        self.waiting, self.timers = [], {}
        self.feed(Loaded())

    # ---- Requests

    def beat(self, member_id: str, epoch: int, **fields: Any) -> HeartbeatAnswer:
        answer = self.ask(self.heartbeat(member_id, epoch, **fields))
        assert isinstance(answer, HeartbeatAnswer)
        return answer

    def heartbeat(
        self,
        member_id: str,
        epoch: int,
        *,
        owned: Owned | None = None,
        topics: Iterable[str] | None = None,
        **fields: Any,
    ) -> MemberHeartbeat:
        partitions = None
        if owned is not None:
            partitions = {topic_id(name): frozenset(indexes) for name, indexes in owned.items()}
        names = None if topics is None else frozenset(topics)
        return MemberHeartbeat(member_id=member_id, member_epoch=epoch, owned=partitions, topics=names, **fields)

    def join(self, member_id: str, *topics: str, **fields: Any) -> HeartbeatAnswer:
        """Join with the topics, `web` unless given."""
        names = None if fields.get("regex") and not topics else topics or ("web",)
        fields = {"rebalance_timeout_ms": REBALANCE_TIMEOUT_MS, "topics": names, "owned": {}, **fields}
        return self.beat(member_id, 0, **fields)

    def leave(self, member_id: str, **fields: Any) -> HeartbeatAnswer:
        return self.beat(member_id, fields.pop("epoch", -1), **fields)

    def classic_join(self, member_id: str, *topics: str, **fields: Any) -> Any:
        defaults: dict[str, Any] = {
            "new_member_id": member_id or "new",
            "protocol_type": "consumer",
            "protocols": (("range", subscription(*(topics or ("web",)))),),
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": REBALANCE_TIMEOUT_MS,
        }
        return self.ask(Join(**{"member_id": member_id, **defaults, **fields}))

    def classic_sync(self, member_id: str, generation: int, **fields: Any) -> Any:
        return self.ask(Sync(member_id=member_id, generation=generation, **fields))

    def classic_beat(self, member_id: str, generation: int, **fields: Any) -> ErrorCode:
        error: ErrorCode = self.ask(Heartbeat(member_id=member_id, generation=generation, **fields)).error
        return error

    def classic_leave(self, *member_ids: str) -> Any:
        return self.ask(Leave(tuple(Leaver(member_id=member_id) for member_id in member_ids)))

    # ---- What is there

    @property
    def state(self) -> str:
        return self.group.state.value

    def member(self, member_id: str) -> ConsumerMember:
        return self.group.members[member_id]

    def has(self, member_id: str) -> dict[str, set[int]]:
        """The partitions of a member by topic name."""
        return {self._name(each): set(indexes) for each, indexes in self.member(member_id).assigned.items()}

    def assigned(self, answer: HeartbeatAnswer) -> dict[str, set[int]] | None:
        """The assignment in an answer by topic name."""
        if answer.assignment is None:
            return None
        return {self._name(each): set(indexes) for each, indexes in answer.assignment.items()}

    def _name(self, identifier: UUID) -> str:
        return identifier.bytes.rstrip(b"-").decode()

    def settle(self, *member_ids: str, beats: int = 6) -> None:
        """Let members follow their assignments: they release and take what they are given at once."""
        for _ in range(beats):
            for member_id in member_ids:
                member = self.member(member_id)
                self.beat(member_id, member.epoch, owned=self.has(member_id))


def timer_members(timers: Iterable[Timer], kind: type) -> set[str]:
    """The members that have a timer of a kind."""
    return {timer.member_id for timer in timers if isinstance(timer, kind)}
