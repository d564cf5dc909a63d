"""Whatever members, timers and the log do, in whatever order: a group keeps its invariants, and answers every request.

`GroupSimulation` does random things to a machine. Its own invariants run in the machine after every step; here it is judged
from outside, by what was answered and what was written.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.core.errors import ErrorCode
from ottla.groups.classic.events import Heartbeat, Join, JoinAnswer, Leave, Leaver, State, Sync, SyncAnswer
from ottla.groups.classic.group import ClassicGroup
from ottla.groups.classic.machine import ClassicMachine
from ottla.groups.classic.settings import ClassicSettings
from ottla.groups.machine import NO_MEMBER, Commit, PlainAnswer
from tests.coordinator_schedules.schedules import seeds
from tests.support.examples import examples
from tests.support.group_driver import GroupDriver, loaded, subscription

STEPS = 120
INSTANCES = (None, None, "s1", "s2")
PROTOCOLS = (
    (("range", subscription("web")),),
    (("range", subscription("web")), ("sticky", subscription("web"))),
    (("sticky", subscription("web")), ("range", subscription("web", "more"))),
    (("range", b"\xff"),),
)


class GroupSimulation:
    """Drives a group and its members, and records their responses."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        settings = ClassicSettings(
            initial_rebalance_delay_ms=rng.choice((0, 3_000)), max_size=rng.choice((2, 3, 1_000))
        )
        self.it = GroupDriver(ClassicMachine(ClassicGroup("team", settings)), slow_log=True)
        self.names: list[tuple[str, str | None]] = [("stranger", None)]  # (member id, instance id) ever given out
        self.questions: dict[int, Join | Sync | Heartbeat | Commit | Leave] = {}
        self.checked: dict[int, object] = {}
        self.leaders: dict[int, str] = {}  # generation -> the member that got the list of members
        self.shares: dict[tuple[int, str], bytes] = {}  # (generation, member) -> its assignment
        self.generation = 0
        self.new_names = 0

    def act(self) -> None:
        actions: list[Callable[[], None]] = [
            *([self.join] * 4),
            *([self.sync] * 4),
            *([self.heartbeat] * 2),
            self.commit,
            self.leave,
            *([self.write] * 3),
            self.fail_to_write,
            *([self.wait] * 3),
            self.begin_deletion,
        ]
        self.rng.choice(actions)()
        self.judge()

    # ---- Actions

    def name(self) -> tuple[str, str | None]:
        """Draw a member id and instance id, mostly those of a member of the group."""
        inside = self.it.group.members.by_id.keys() | self.it.group.members.pending
        living = [known for known in self.names if known[0] in inside]
        return self.rng.choice(living if living and self.rng.random() < 0.8 else self.names)

    def generation_said(self) -> int:
        return self.it.group.generation - (1 if self.rng.random() < 0.1 else 0)

    def ask(self, question: Join | Sync | Heartbeat | Commit | Leave) -> None:
        self.questions[self.it.request(question)] = question

    def join(self) -> None:
        self.new_names += 1
        member_id, instance_id = self.name() if self.rng.random() < 0.6 else (NO_MEMBER, self.rng.choice(INSTANCES))
        new = f"m{self.new_names}"
        self.ask(
            Join(
                member_id=member_id,
                new_member_id=new,
                protocol_type="consumer" if self.rng.random() < 0.95 else "connect",
                protocols=self.rng.choice(PROTOCOLS),
                session_timeout_ms=self.rng.choice((6_000, 20_000)),
                rebalance_timeout_ms=self.rng.choice((0, 5_000, 60_000)),
                instance_id=instance_id,
                requires_member_id=self.rng.random() < 0.7,
                may_skip_assignment=self.rng.random() < 0.5,
            )
        )

    def sync(self) -> None:
        member_id, instance_id = self.name()
        token = f"{self.it.group.generation}/{self.rng.randrange(1 << 30)}/".encode()
        shares = {name: token + name.encode() for name in self.it.group.members.by_id if self.rng.random() < 0.9}
        self.ask(
            Sync(member_id=member_id, instance_id=instance_id, generation=self.generation_said(), assignments=shares)
        )

    def heartbeat(self) -> None:
        member_id, instance_id = self.name()
        self.ask(Heartbeat(member_id=member_id, instance_id=instance_id, generation=self.generation_said()))

    def commit(self) -> None:
        member_id, instance_id = self.name()
        generation = self.generation_said() if self.rng.random() < 0.8 else -1
        self.ask(Commit(member_id=member_id, instance_id=instance_id, generation=generation))

    def leave(self) -> None:
        names = [self.name() for _ in range(self.rng.choice((1, 1, 2)))]
        self.ask(Leave(tuple(Leaver(member_id=name, instance_id=instance) for name, instance in names)))

    def write(self) -> None:
        if self.it.storing:
            self.it.stored(self.rng.choice(list(self.it.storing)))

    def fail_to_write(self) -> None:
        if self.it.storing:
            self.it.not_stored(self.rng.choice(list(self.it.storing)))

    def wait(self) -> None:
        self.it.pass_time(self.rng.choice((1, 500, 3_000, 7_000)))

    def begin_deletion(self) -> None:
        refusal = self.it.machine.begin_deletion()
        if refusal is ErrorCode.NONE:
            self.it.request(Heartbeat(member_id="m1", generation=0))
            self.it.machine.cancel_deletion()

    # ---- Invariants

    def judge(self) -> None:
        group = self.it.group
        group.check()
        assert group.generation >= self.generation, "a generation came back"
        self.generation = group.generation
        for ticket in self.it.answers.keys() - self.checked.keys():
            answer = self.checked[ticket] = self.it.answers[ticket]
            question = self.questions.get(ticket)
            if isinstance(answer, JoinAnswer) and isinstance(question, Join) and answer.member_id != NO_MEMBER:
                known = (answer.member_id, question.instance_id)
                self.names += [] if known in self.names else [known]
            if answer.error is not ErrorCode.NONE:
                continue
            match answer, question:
                case JoinAnswer(), Join():
                    self.judge_join(answer)
                case SyncAnswer(), Sync():
                    self.judge_share(question, answer)
                case PlainAnswer(), Heartbeat() | Commit() if question.generation >= 0:
                    assert question.generation == group.generation, "another generation was accepted"
                    owner = group.members.by_instance.get(question.instance_id or "", question.member_id)
                    assert owner == question.member_id, "a replaced static member was accepted"
                case _:
                    pass

    def judge_join(self, answer: JoinAnswer) -> None:
        assert answer.generation <= self.generation
        if answer.members and not answer.skip_assignment:
            leader = self.leaders.setdefault(answer.generation, answer.member_id)
            assert leader == answer.member_id, f"two lead generation {answer.generation}"

    def judge_share(self, sync: Sync, answer: SyncAnswer) -> None:
        """Check that an assignment is in the log and is that of its generation."""
        written = [
            member.assignment
            for snapshot in self.it.log
            if snapshot.generation == sync.generation
            for member in snapshot.members
            if member.member_id == sync.member_id
        ]
        assert answer.assignment in written, "an assignment was announced before it was written"
        share = self.shares.setdefault((sync.generation, sync.member_id), answer.assignment)
        assert share == answer.assignment, "a member got two assignments in one generation"
        tokens = {
            share.rpartition(b"/")[0] for (at, _), share in self.shares.items() if at == sync.generation and share
        }
        assert len(tokens) <= 1, f"two assignments in generation {sync.generation}"

    def end(self) -> None:
        """Stop all members and repair the log: every request is answered and the group is empty."""
        for _ in range(10):
            while self.it.storing:
                self.it.stored()
            self.it.pass_time(600_000)
        self.judge()
        assert self.it.asked == self.it.answers.keys(), "a request has no answer"
        assert self.it.state is State.EMPTY
        assert self.it.group.is_unused
        assert not self.it.timers

    def crash(self) -> None:
        """What the log says is enough to go on from."""
        snapshot = self.it.log[-1]
        again = loaded(snapshot, self.it.group.settings)
        assert again.group.generation == snapshot.generation
        for member in snapshot.members:
            share = self.shares.get((snapshot.generation, member.member_id))
            assert share in {None, member.assignment}, "a member would get another assignment after a crash"
        again.pass_time(3_600_000)
        assert again.state is State.EMPTY


def play(rng: random.Random) -> None:
    scenario = GroupSimulation(rng)
    for _ in range(STEPS):
        scenario.act()
    if scenario.it.log:
        scenario.crash()
    scenario.end()


@pytest.mark.parametrize("seed", seeds(250))
def test_a_group_keeps_its_invariants_and_answers_every_request(seed: int) -> None:
    play(random.Random(seed))


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_no_schedule_that_hypothesis_finds_breaks_an_invariant(rng: random.Random) -> None:
    play(rng)
