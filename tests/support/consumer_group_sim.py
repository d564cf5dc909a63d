"""Runs random schedules of a consumer group (KIP-848) in simulated time, and checks the histories of its members.

The members are models of clients: they report what they own, release what they must when they learn of it, and commit.
Requests and answers are lost and late, and requests are repeated while the first one is on its way; writes are slow and
fail; the broker restarts; members crash, leave, come back as static members and change their subscriptions; topics come
and go.

Checked after every step: no partition is owned by two members of the group, as they themselves know it; no commit is
accepted from a member that does not have the partition. At the end: every request that the broker got was answered,
everyone has its part of the target. After every step a replay of the records gives the same group.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any
from uuid import UUID

from ottla.core.errors import ErrorCode
from ottla.groups.consumer.events import MemberHeartbeat
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.consumer.machine import ConsumerMachine
from ottla.groups.consumer.member import ConsumerMember
from ottla.groups.consumer.settings import ConsumerSettings
from ottla.groups.consumer.validation import validate_commit
from ottla.groups.machine import AppendRecords, CancelTimer, Commit, Compute, Now, Replace, SetTimer, TimerFired
from ottla.groups.modern.events import HeartbeatAnswer, TopicsChanged
from ottla.groups.modern.topics import TopicsImage
from ottla.internal_topics.machine_events import Loaded, NotStored, Reply, Stored
from ottla.internal_topics.topic_log import KeyValue
from tests.support.consumer_group_driver import topic_id, view
from tests.support.replayed import ConsumerGroupReplay, compacted, replay_consumer_group, undurable

WALL_MS = 1_700_000_000_000
REBALANCE_TIMEOUT_MS = 20_000
MEMBERS_MAX = 6
STEPS = 200
SETTLING_ROUNDS = 45

Pair = tuple[UUID, int]


class Violation(AssertionError):
    """Reports a broken invariant of the group."""


def assigned_epoch(member: ConsumerMember, pair: Pair) -> int | None:
    """Return the epoch in which it got a partition that it owns or must release; None for another partition."""
    topic, partition = pair
    epochs = (each.get(topic, {}).get(partition) for each in (member.assigned, member.pending_revocation))
    return next((epoch for epoch in epochs if epoch is not None), None)


@dataclass
class Client:
    """One consumer as it sees itself."""

    number: int
    member_id: str
    instance_id: str | None
    topics: frozenset[str]
    regex: str
    epoch: int = 0
    owned: set[Pair] = field(default_factory=set)
    to_release: set[Pair] = field(default_factory=set)  # read no more, but not reported yet
    is_alive: bool = True
    full: bool = True  # the next heartbeat must have everything
    waits_for: int = 0  # the number of its request; 0: it waits for none
    newest_arrived: int = 0  # the number of its last request that the broker got

    def partitions(self) -> dict[UUID, frozenset[int]]:
        found: dict[UUID, set[int]] = {}
        for identifier, index in self.owned:
            found.setdefault(identifier, set()).add(index)
        return {identifier: frozenset(indexes) for identifier, indexes in found.items()}


class Schedule:
    """One random schedule; the seed decides everything."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.topics = {"web": self.rng.randint(1, 6), "app": self.rng.randint(1, 4)}
        self.image = TopicsImage(view(self.topics))
        self.settings = ConsumerSettings(
            session_timeout_ms=15_000,
            assignment_interval_ms=self.rng.choice((0, 0, 1_000)),
            regex_refresh_interval_ms=20_000,
        )
        self.group = ConsumerGroup("team")
        self.machine: Any = self._machine()
        self.log: list[KeyValue] = []
        self.replays = ConsumerGroupReplay()
        self.timers: dict[Any, int] = {}
        self.writes: list[tuple[Any, AppendRecords]] = []
        self.computing: list[Compute] = []
        self.clients: list[Client] = []
        self.tickets = count()
        self.asked: dict[int, Callable[[Any], None]] = {}
        self.network: list[Callable[[], None]] = []  # messages on their way
        self.numbers = count(1)
        self.faults = True
        self.writes_fail = self.rng.random() < 0.3
        self.commits = 0

    def _machine(self) -> ConsumerMachine:
        return ConsumerMachine(self.group, self.settings, self.image)

    # ---- The broker

    def feed(self, event: object, on_answer: Callable[[Any], None] | None = None, machine: Any = None) -> None:
        ticket = next(self.tickets)
        if on_answer is not None:
            self.asked[ticket] = on_answer
        target = machine or self.machine
        now = Now(self.now_ms, WALL_MS + self.now_ms)
        outputs = target.step(event, now=now, ticket=ticket)
        target.group.check()  # after every step: the machine checks all only after those that may change members
        self.check_replay()
        for output in outputs:
            match output:
                case Reply(answered, answer):
                    handler = self.asked.pop(answered, None)
                    if handler is not None:
                        self.send(partial(handler, answer))
                case SetTimer(timer, at_ms):
                    self.timers[timer] = at_ms
                case CancelTimer(timer):
                    self.timers.pop(timer, None)
                case AppendRecords():
                    self.writes.append((target, output))
                case Compute():
                    self.computing.append(output)
                case Replace():
                    raise AssertionError("there are no members of the classic protocol here")
        self.check_owners()

    def finish_write(self) -> None:
        machine, write = self.writes.pop(0)
        if self.faults and self.writes_fail and self.rng.random() < 0.2:
            if self.rng.random() < 0.3:
                self.log += write.records  # written all the same, and reported as failed
            self.feed(NotStored(write.write, ErrorCode.COORDINATOR_NOT_AVAILABLE), machine=machine)
        else:
            self.log += write.records
            self.feed(Stored(write.write), machine=machine)

    def finish_computing(self) -> None:
        work = self.computing.pop(0).work
        self.feed(work())

    def restart(self) -> None:
        """The broker crashes: pending writes are lost or durable, requests get no answer."""
        for _, write in self.writes:
            if self.rng.random() < 0.5:
                self.log += write.records
            else:
                break
        self.writes, self.timers, self.computing, self.network = [], {}, [], []
        self.asked = {}
        for client in self.clients:
            client.waits_for, client.full = 0, True
        self.group = self.replay(compacted(self.log) if len(self.log) % 2 else self.log)
        self.machine = self._machine()
        self.feed(Loaded())

    def replay(self, log: Iterable[KeyValue]) -> ConsumerGroup:
        """Apply a log to a new group."""
        group = replay_consumer_group(ConsumerGroup("team"), log)
        return group if group.is_in_log else ConsumerGroup("team")

    # ---- The network

    def send(self, deliver: Callable[[], None]) -> None:
        self.network.append(deliver)

    def deliver(self) -> None:
        at = self.rng.randrange(len(self.network)) if self.faults else 0
        message = self.network.pop(at)
        if self.faults and self.rng.random() < 0.05:
            return  # lost
        message()

    def request(self, event: object, on_answer: Callable[[Any], None]) -> None:
        self.send(lambda: self.feed(event, on_answer))

    # ---- Clients

    def new_client(self) -> None:
        number = next(self.numbers)
        regex = self.rng.choice(("", "", "", "w.*", ".*"))
        topics = frozenset(self.rng.sample(["web", "app", "new"], self.rng.randint(0 if regex else 1, 2)))
        instance_id = f"static-{self.rng.randint(1, 3)}" if self.rng.random() < 0.3 else None
        alive = {client.instance_id for client in self.clients if client.is_alive}
        if instance_id in alive and self.rng.random() < 0.7:
            instance_id = None
        self.clients.append(Client(number, f"m{number}", instance_id, topics, regex))

    def heartbeat(self, client: Client) -> None:
        joins = client.epoch == 0
        if joins:
            client.owned.clear()
            client.to_release.clear()
        # What is reported as released is not read from this moment on.
        client.owned -= client.to_release
        client.to_release.clear()
        full = client.full or joins or self.rng.random() < 0.1
        beat = MemberHeartbeat(
            member_id=client.member_id,
            member_epoch=client.epoch,
            instance_id=client.instance_id,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if full else -1,
            topics=client.topics if full else None,
            regex=client.regex if full else None,
            owned=client.partitions() if full or self.rng.random() < 0.7 or not self.faults else None,
        )
        client.full = False
        number = client.waits_for = next(self.numbers)
        self.send(lambda: self.heartbeat_arrived(client, number, beat))

    def heartbeat_arrived(self, client: Client, number: int, beat: MemberHeartbeat) -> None:
        if number < client.newest_arrived:
            return  # the client gave it up and closed its connection before it sent the next one
        client.newest_arrived = number
        before = self.group.members.get(beat.member_id)
        static = None if beat.instance_id is None else self.group.static_member(beat.instance_id)

        def answered(answer: HeartbeatAnswer) -> None:
            accepted = answer.error is ErrorCode.NONE
            valid = before is None or beat.member_epoch in {0, before.epoch, before.previous_epoch}
            if accepted and not valid:
                raise Violation(f"{beat.member_id} is accepted with epoch {beat.member_epoch}")
            if accepted and beat.member_epoch == 0 and static is not None and static.epoch >= 0:
                raise Violation(f"{beat.member_id} has the instance id of {static.member_id}, which has not left")
            self.heartbeat_answered(client, number, answer)

        self.feed(beat, answered)

    def heartbeat_answered(self, client: Client, number: int, answer: HeartbeatAnswer) -> None:
        if not client.is_alive or client.waits_for != number:
            return  # it asked again meanwhile, and ignores old answers
        client.waits_for = 0
        match answer.error:
            case ErrorCode.NONE:
                assert answer.member_epoch >= 0
                client.epoch = answer.member_epoch
                if answer.assignment is not None:
                    given = {(each, index) for each, indexes in answer.assignment.items() for index in indexes}
                    client.to_release = client.owned - given
                    client.owned |= given
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.FENCED_MEMBER_EPOCH | ErrorCode.GROUP_ID_NOT_FOUND:
                client.epoch, client.full = 0, True
                client.owned.clear()
                client.to_release.clear()
            case ErrorCode.FENCED_INSTANCE_ID:
                self.die(client)
            case _:
                client.full = True  # it retries
        self.check_owners()

    def time_out(self, client: Client) -> None:
        """Give up waiting, and ask again."""
        client.waits_for, client.full = 0, True

    def die(self, client: Client) -> None:
        client.is_alive = False
        client.owned.clear()
        client.to_release.clear()

    def leave(self, client: Client) -> None:
        returns = client.instance_id is not None and self.rng.random() < 0.7
        epoch = -2 if returns else -1
        self.die(client)
        if client.epoch > 0:
            beat = MemberHeartbeat(member_id=client.member_id, member_epoch=epoch, instance_id=client.instance_id)
            self.request(beat, lambda answer: None)

    def commit(self, client: Client) -> None:
        if not client.owned or client.epoch <= 0:
            return
        everything = [
            (topic_id(name), index) for name, partitions in self.topics.items() for index in range(partitions)
        ]
        pair = self.rng.choice(sorted(client.owned) if self.rng.random() < 0.5 or not everything else everything)
        event = Commit(member_id=client.member_id, generation=client.epoch, api_version=10)
        self.send(lambda: self.commit_arrived(event, pair))

    def commit_arrived(self, event: Commit, pair: Pair) -> None:
        answer = validate_commit(self.group, event)
        accepted = answer.error is ErrorCode.NONE and (answer.accepted is None or pair in answer.accepted)
        if not accepted:
            return
        self.commits += 1
        member = self.group.members.get(event.member_id)
        if self.group.members and member is None:
            raise Violation(f"a commit of {event.member_id} was accepted, which is not a member")
        if member is None or event.generation == member.epoch:
            return
        since = assigned_epoch(member, pair)
        if since is None or not since <= event.generation < member.epoch:
            raise Violation(f"{event.member_id} committed {pair} in epoch {event.generation}; it has it since {since}")

    # ---- The schedule

    def step(self) -> None:
        rng = self.rng
        alive = [client for client in self.clients if client.is_alive]
        what = rng.random()
        if what < 0.30 and self.network:
            self.deliver()
        elif what < 0.45 and self.writes:
            self.finish_write()
        elif what < 0.47 and self.computing:
            self.finish_computing()
        elif what < 0.53 and len(alive) < MEMBERS_MAX:
            self.new_client()
        elif what < 0.79 and alive:
            client = rng.choice(alive)
            if not client.waits_for:
                self.heartbeat(client)
            elif rng.random() < 0.2:
                self.time_out(client)
        elif what < 0.85 and alive:
            self.commit(rng.choice(alive))
        elif what < 0.87 and alive:
            self.leave(rng.choice(alive))
        elif what < 0.885 and alive:
            self.die(rng.choice(alive))
        elif what < 0.90 and alive:
            client = rng.choice(alive)
            client.topics, client.full = frozenset(rng.sample(["web", "app", "new"], 2)), True
        elif what < 0.915:
            self.change_topics()
        elif what < 0.93:
            self.restart()
        else:
            self.pass_time(rng.choice((100, 1_000, 5_000)))

    def change_topics(self) -> None:
        name = self.rng.choice(("web", "app", "new"))
        if name in self.topics and self.rng.random() < 0.3:
            del self.topics[name]
        else:
            self.topics[name] = self.topics.get(name, 0) + self.rng.randint(1, 2)
        older = self.image
        self.image = older.followed_by(view(self.topics))
        self.machine.topics = self.image
        self.feed(TopicsChanged(self.image.changed_since(older)))

    def pass_time(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while self.timers and min(self.timers.values()) <= end_ms:
            timer = min(self.timers, key=lambda each: (self.timers[each], repr(each)))
            self.now_ms = max(self.now_ms, self.timers.pop(timer))
            self.feed(TimerFired(timer))
        self.now_ms = end_ms

    def settle(self) -> None:
        """No more faults and changes: everyone converges."""
        self.faults = False
        for client in self.clients:
            same = [each for each in self.clients if each.is_alive and each.instance_id == client.instance_id]
            if client.is_alive and client.instance_id is not None and len(same) > 1:
                self.die(client)  # of two with one instance id the later one waits for the other to leave
        for _ in range(SETTLING_ROUNDS):
            while self.network or self.writes or self.computing:
                if self.network:
                    self.deliver()
                elif self.writes:
                    self.finish_write()
                else:
                    self.finish_computing()
            for client in self.clients:
                if client.is_alive:
                    client.waits_for = 0
                    self.heartbeat(client)
            self.pass_time(1_000)
        while self.network or self.writes or self.computing:
            if self.network:
                self.deliver()
            elif self.writes:
                self.finish_write()
            else:
                self.finish_computing()

    # ---- Checks

    def check_owners(self) -> None:
        owners: dict[Pair, Client] = {}
        for client in self.clients:
            member = self.group.members.get(client.member_id)
            if not client.is_alive or member is None:
                continue  # it is fenced, and will learn of it
            for pair in client.owned:
                other = owners.setdefault(pair, client)
                if other is not client:
                    raise Violation(f"{pair} is owned by {other.member_id} and {client.member_id}")

    def check_replay(self) -> None:
        """The log and what is not written yet give the group as it is."""
        replayed = self.replays.group(self.log, undurable(self.machine))
        if replayed.is_in_log != self.group.is_in_log or (replayed.is_in_log and replayed != self.group):
            raise Violation("the records give another group")

    def check_end(self) -> None:
        if self.asked:
            raise Violation(f"{len(self.asked)} requests were never answered")
        alive = {client.member_id: client for client in self.clients if client.is_alive}
        if self.group.members.keys() != alive.keys():
            raise Violation(f"members {sorted(self.group.members)}, alive {sorted(alive)}")
        if alive and self.group.state.value != "Stable":
            raise Violation(f"the group is {self.group.state.value}")
        assigned: set[Pair] = set()
        for member_id, client in alive.items():
            target = {
                (identifier, index)
                for identifier, indexes in self.group.target_of(member_id).items()
                for index in indexes
            }
            if client.owned != target:
                raise Violation(f"{member_id} owns {client.owned}, its target is {target}")
            assigned |= target
        subscribed = {name for client in alive.values() for name in self.subscription(client)}
        expected = {(topic_id(name), index) for name in subscribed for index in range(self.topics[name])}
        if assigned != expected:
            raise Violation(f"assigned {assigned}, subscribed {expected}")
        for log in (self.log, compacted(self.log)):
            if self.replay(log) != self.group:
                raise Violation("the log gives another group")

    def subscription(self, client: Client) -> set[str]:
        by_regex = {name for name in self.topics if client.regex and re.fullmatch(client.regex, name)}
        return (set(client.topics) | by_regex) & self.topics.keys()


def play(seed: int) -> Schedule:
    """Run a schedule. Raises `Violation`, or the assertion of the machine that failed."""
    schedule = Schedule(seed)
    for _ in range(STEPS):
        schedule.step()
    schedule.settle()
    schedule.check_end()
    return schedule
