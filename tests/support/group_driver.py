"""Drives the state machine of one group: the test owns its time, its log and its answers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from ottla.core.errors import ErrorCode
from ottla.groups.classic.events import (
    Event,
    GroupSnapshot,
    Heartbeat,
    Join,
    JoinAnswer,
    Leave,
    LeaveAnswer,
    Leaver,
    State,
    Sync,
    SyncAnswer,
)
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.classic.machine import ClassicMachine
from ottla.groups.classic.settings import ClassicSettings
from ottla.groups.machine import NO_MEMBER, AppendRecords, CancelTimer, Commit, GroupAnswer, Now, SetTimer, TimerFired
from ottla.groups.records import GroupRecord, decode
from ottla.internal_topics.machine_events import Loaded, NotStored, Reply, Stored
from ottla.internal_topics.topic_log import KeyValue

WALL_MS = 1_700_000_000_000


def subscription(*topics: str, owned: Mapping[str, Iterable[int]] | None = None) -> bytes:
    """A ConsumerProtocolSubscription, version 0, or 1 with the partitions that the member owns."""
    names = b"".join(_name(name) for name in topics)
    common = len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"
    if owned is None:
        return b"\0\0" + common
    out = b"\0\1" + common + len(owned).to_bytes(4, "big")
    for name, indexes in owned.items():
        numbers = list(indexes)
        out += _name(name) + len(numbers).to_bytes(4, "big") + b"".join(number.to_bytes(4, "big") for number in numbers)
    return out


def _name(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def snapshot_of(records: Sequence[KeyValue]) -> GroupSnapshot:
    """Decode what a classic group stores: one record."""
    ((key, value),) = records
    record = decode(key, value)
    assert isinstance(record, GroupRecord)
    assert record.snapshot is not None
    return record.snapshot


@dataclass
class GroupDriver:
    """Feeds a machine, keeps its timers and its log, and remembers every answer by its ticket."""

    machine: ClassicMachine = field(
        default_factory=lambda: ClassicMachine(ClassicGroup("team", ClassicSettings(initial_rebalance_delay_ms=3_000)))
    )
    now_ms: int = 1_000_000
    timers: dict[Hashable, int] = field(default_factory=dict)
    answers: dict[int, GroupAnswer] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    storing: dict[int, GroupSnapshot] = field(default_factory=dict)  # handed out, not yet written
    log: list[GroupSnapshot] = field(default_factory=list)  # written
    slow_log: bool = False  # True: the test calls `stored` or `not_stored` itself
    _tickets: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self._first = self.machine.group.stored

    @property
    def group(self) -> ClassicGroup:
        return self.machine.group

    @property
    def state(self) -> State:
        return self.machine.group.state

    def request(self, event: Event) -> int:
        """Feed a request; return its ticket."""
        ticket = next(self._tickets)
        self.asked.add(ticket)
        self.feed(event, ticket)
        return ticket

    def feed(self, event: Event, ticket: int = -1) -> None:
        outputs = self.machine.step(event, now=Now(self.now_ms, WALL_MS + self.now_ms), ticket=ticket)
        for output in outputs:
            match output:
                case Reply(to, answer):
                    assert to in self.asked, f"an answer to {to}, which is no request"
                    assert to not in self.answers, f"{to} is answered twice"
                    self.answers[to] = answer
                case SetTimer(timer, at_ms):
                    self.timers[timer] = at_ms
                case CancelTimer(timer):
                    del self.timers[timer]
                case AppendRecords(write, records):
                    self.storing[write] = snapshot_of(records)
        assert self.timers == self.group.timers, "the machine believes in other timers than were set"
        assert self.group.stored == (self.log[-1] if self.log else self._first), "the log has another group"

        self.group.check()  # after every step: the machine checks all only after those that may change members
        if not self.slow_log:
            for write in list(self.storing):
                self.stored(write)

    def stored(self, write: int | None = None) -> None:
        write = next(iter(self.storing)) if write is None else write
        self.log.append(self.storing.pop(write))
        self.feed(Stored(write))

    def not_stored(self, write: int | None = None, error: ErrorCode = ErrorCode.COORDINATOR_NOT_AVAILABLE) -> None:
        write = next(iter(self.storing)) if write is None else write
        del self.storing[write]
        self.feed(NotStored(write, error))

    def pass_time(self, ms: int) -> None:
        """Time passes; whatever becomes due fires, in order."""
        end_ms = self.now_ms + ms
        while self.timers and min(self.timers.values()) <= end_ms:
            timer, at_ms = min(self.timers.items(), key=lambda item: item[1])
            self.now_ms = max(self.now_ms, at_ms)
            del self.timers[timer]
            self.feed(TimerFired(timer))
        self.now_ms = end_ms

    def answer(self, ticket: int) -> GroupAnswer | None:
        return self.answers.get(ticket)

    def joined(self, ticket: int) -> JoinAnswer:
        found = self.answers[ticket]
        assert isinstance(found, JoinAnswer)
        return found

    def synced(self, ticket: int) -> SyncAnswer:
        found = self.answers[ticket]
        assert isinstance(found, SyncAnswer)
        return found

    def error(self, ticket: int) -> ErrorCode:
        return self.answers[ticket].error

    # ---- Sequences of steps

    def join(self, member_id: str = NO_MEMBER, **more: Any) -> int:
        return self.request(join(member_id, **more))

    def join_as(self, name: str, **more: Any) -> int:
        """A new member that will be called `name`: the first join without a name, the second with it."""
        first = self.join(new_member_id=name, **more)
        assert self.error(first) is ErrorCode.MEMBER_ID_REQUIRED
        return self.join(name, **more)

    def sync(self, member_id: str, **assignments: bytes) -> int:
        return self.request(Sync(member_id=member_id, generation=self.group.generation, assignments=assignments))

    def stable(self, *names: str) -> GroupDriver:
        """Members of these names, the first one leading, each with its own name as assignment."""
        tickets = [self.join_as(name) for name in names]
        self.pass_time(3_000 * (len(names) + 1))
        assert [self.error(ticket) for ticket in tickets] == [ErrorCode.NONE] * len(names)
        for name in reversed(names):
            self.sync(name, **{each: each.encode() for each in names})
        return self


def join(member_id: str = NO_MEMBER, **more: Any) -> Join:
    """A Join with what a test does not care about filled in."""
    defaults: dict[str, Any] = {
        "new_member_id": "fresh",
        "protocol_type": "consumer",
        "protocols": (("range", subscription("web")),),
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
    }
    return Join(member_id=member_id, **{**defaults, **more})


def loaded(snapshot: GroupSnapshot, settings: ClassicSettings) -> GroupDriver:
    """A group that was read from a log with this record."""
    group = ClassicGroup("team", settings)
    group.apply(snapshot)
    it = GroupDriver(ClassicMachine(group))
    it.feed(Loaded())
    return it


NONE = ErrorCode.NONE


def state_of(it: GroupDriver) -> State:
    return it.state


def driver(**settings: int) -> GroupDriver:
    return GroupDriver(ClassicMachine(ClassicGroup("team", ClassicSettings(**settings))))


def heartbeat(
    it: GroupDriver, member_id: str, *, generation: int | None = None, instance_id: str | None = None
) -> ErrorCode:
    at = it.group.generation if generation is None else generation
    return it.error(it.request(Heartbeat(member_id=member_id, generation=at, instance_id=instance_id)))


def commit(it: GroupDriver, member_id: str = "", *, generation: int = -1, instance_id: str | None = None) -> ErrorCode:
    return it.error(it.request(Commit(member_id=member_id, generation=generation, instance_id=instance_id)))


def leave(it: GroupDriver, *members: Leaver) -> LeaveAnswer:
    answer = it.answer(it.request(Leave(members)))
    assert isinstance(answer, LeaveAnswer)
    return answer
