"""Three replicas under random faults: what was acknowledged by all in-sync replicas is never lost.

Views and answers are late, lost or repeated; processes are killed, power is cut, pages are lost or torn. The controller
here is the simplest that is right: it elects from the in-sync replicas, and applies a proposal if its epochs are right.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.core.errors import IneligibleReplica, InvalidUpdateVersion, KafkaError, NewLeaderElected
from ottla.replication.follower_state import FetchPosition
from ottla.replication.isr_proposal_queue import AlteredPartition, IsrChange, Outcome
from ottla.replication.leader_state import REFUSAL_SECONDS
from ottla.storage.config import LogConfig
from ottla.storage.state.leader_epochs import EpochEntry
from ottla.testing.sim_disk import POWER_CUTS, Survival
from tests.support.replicas import Answer, Node, view
from tests.support.storage import StillClock

NODES = (1, 2, 3)
LAG_MS = 30_000
nodes = st.sampled_from(NODES)


def with_records(node: Node) -> list[EpochEntry]:
    """The epochs of a log; the last one may have no record yet."""
    return [entry for entry in node.log.epochs.entries if entry.start_offset < node.log.end_offset]


class Replication(RuleBasedStateMachine):
    """The three brokers, the controller's state, and what is on its way."""

    @initialize(min_isr=st.integers(1, 2))
    def begin(self, min_isr: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = StillClock()
        self.rng = random.Random(1)
        self.config = LogConfig(min_insync_replicas=min_isr)
        self.state = view(1, 0, isr=NODES, replicas=NODES)
        self.brokers = dict.fromkeys(NODES, 0)
        self.nodes = {each: Node(each, self.clock, config=self.config) for each in NODES}
        self.answers: dict[int, list[tuple[FetchPosition, Answer, bytes]]] = {each: [] for each in NODES}
        self.outcomes: list[tuple[int, IsrChange, Outcome]] = []
        self.acked: dict[int, bytes] = {}
        self.watermarks: dict[tuple[int, int], int] = {}
        self.written = 0
        for node in self.nodes.values():
            self.in_loop(node.start, self.state, dict(self.brokers))

    def in_loop(self, call: Any, *args: Any) -> Any:
        """Call with a running loop: the group commit asks for it."""

        async def run() -> Any:
            return call(*args)

        return self.loop.run_until_complete(run())

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.close()

    # ---- What is done

    @rule(node=nodes)
    def produce(self, node: int) -> None:
        leader = self.nodes[node]
        if not leader.is_up:
            return
        self.written += 1
        value = b"%d" % self.written

        def acked(offset: int) -> None:
            assert self.acked.setdefault(offset, value) == value, "an offset was acknowledged twice"

        try:
            self.in_loop(lambda: leader.produce(value, acked=acked))
        except KafkaError:
            pass

    @rule(node=nodes)
    def flush(self, node: int) -> None:
        if self.nodes[node].is_up:
            self.in_loop(self.nodes[node].flush)

    @rule(node=nodes, max_bytes=st.sampled_from([1, 1 << 20]))
    def send_fetch(self, node: int, max_bytes: int) -> None:
        """The leader that the follower knows answers, whether or not it still leads; the answer is on its way."""
        follower = self.nodes[node]
        if not follower.is_up or (position := follower.partition.next_fetch()) is None:
            return
        leader = self.nodes[follower.partition.leader]
        if leader.is_up:
            answer, records = self.in_loop(lambda: leader.serve(follower, position, max_bytes=max_bytes))
            self.answers[node] = [*self.answers[node][-2:], (position, answer, records)]

    @rule(node=nodes, at=st.integers(0, 2))
    def take_answer(self, node: int, at: int) -> None:
        """Any of the answers on their way arrives; it may arrive once more later."""
        waiting = self.answers[node]
        if self.nodes[node].is_up and waiting:
            self.in_loop(self.nodes[node].take, *waiting[at % len(waiting)])

    @rule(node=nodes)
    def fetch(self, node: int) -> None:
        """Fetch, flush and confirm."""
        self.send_fetch(node, 1 << 20)
        self.take_last(node)
        self.flush(node)
        self.send_fetch(node, 1 << 20)
        self.take_last(node)

    @rule(followers=st.sets(nodes))
    def replicate(self, followers: set[int]) -> None:
        """The leader writes, and some followers get it and confirm it."""
        if self.state.leader in self.nodes:
            self.produce(self.state.leader)
            self.flush(self.state.leader)
            for node in sorted(followers - {self.state.leader}):
                self.fetch(node)

    @rule(learned=st.sets(nodes, min_size=1), survival=st.sampled_from([None, *POWER_CUTS]))
    def fail_over(self, learned: set[int], survival: Survival | None) -> None:
        """The leader dies, another one is elected, and some learn of it."""
        leader = self.state.leader
        if leader in self.nodes:
            self.crash(leader, survival)
            self.session_expires(leader)
            for node in sorted(learned):
                self.learn(node)

    def take_last(self, node: int) -> None:
        self.take_answer(node, len(self.answers[node]) - 1)

    # ---- The cluster

    @rule(node=nodes)
    def learn(self, node: int) -> None:
        """The snapshot reaches a broker."""
        if self.nodes[node].is_up:
            self.nodes[node].knows(dict(self.brokers))
            self.in_loop(self.nodes[node].partition.apply, self.state)

    @rule(lag_ms=st.sampled_from([1, LAG_MS // 2, LAG_MS + 1]))
    def time_passes(self, lag_ms: int) -> None:
        self.clock.now_ms += lag_ms
        for node in self.nodes.values():
            if node.is_up:
                self.in_loop(node.partition.check_isr)

    @rule(node=nodes)
    def alter_partition(self, node: int) -> None:
        """The controller decides what a leader has proposed; the answer is on its way, or lost."""
        leader = self.nodes[node]
        change = leader.proposed() if leader.is_up else None
        if change is None:
            return
        outcome: Outcome
        if change.leader_epoch != self.state.leader_epoch or node != self.state.leader:
            outcome = NewLeaderElected()
        elif change.partition_epoch != self.state.partition_epoch:
            outcome = InvalidUpdateVersion()
        elif any(each not in self.brokers or epoch not in (-1, self.brokers[each]) for each, epoch in change.new_isr):
            outcome = IneligibleReplica()  # the controller knows that a member has failed, or has started again
        else:
            isr = tuple(each for each, _ in change.new_isr)
            self.state = replace(self.state, isr=isr, partition_epoch=self.state.partition_epoch + 1)
            outcome = AlteredPartition(
                node, change.leader_epoch, isr, is_recovering=False, partition_epoch=self.state.partition_epoch
            )
        self.outcomes.append((node, change, outcome))

    @precondition(lambda self: self.outcomes)
    @rule(lost=st.booleans())
    def isr_change_decided(self, lost: bool) -> None:
        node, change, outcome = self.outcomes.pop(0)
        if self.nodes[node].is_up and not lost:
            self.in_loop(self.nodes[node].partition.isr_change_decided, change, outcome)

    @rule(node=nodes, survival=st.sampled_from([None, *POWER_CUTS]))
    def crash(self, node: int, survival: Survival | None) -> None:
        """A broker dies; the controller notices it later."""
        if self.nodes[node].is_up:
            self.nodes[node].crash(self.rng, survival)
            self.answers[node] = []

    @rule(node=nodes)
    def session_expires(self, node: int) -> None:
        """The controller notices that a broker has died: it leaves the ISR, unless it is the last one in it."""
        if self.nodes[node].is_up or node not in self.brokers:
            return
        del self.brokers[node]
        self.elect(node)

    def elect(self, gone: int) -> None:
        isr = tuple(each for each in self.state.isr if each != gone) or self.state.isr
        leader = self.state.leader
        if leader not in self.brokers:
            leader = next((each for each in isr if each in self.brokers), -1)
        if (leader, isr) != (self.state.leader, self.state.isr):
            epoch = self.state.leader_epoch + (leader != self.state.leader)
            self.state = replace(
                self.state, leader=leader, leader_epoch=epoch, isr=isr, partition_epoch=self.state.partition_epoch + 1
            )

    @rule(node=nodes)
    def restart(self, node: int) -> None:
        """A broker starts on its disk. Its replica is in sync or not; as the last one it may lead."""
        if self.nodes[node].is_up:
            return
        self.brokers.pop(node, None)
        self.elect(node)
        epoch = self.nodes[node].broker_epoch = self.nodes[node].broker_epoch + 1
        self.brokers[node] = epoch
        if self.state.leader < 0 and node in self.state.isr:
            self.state = replace(
                self.state,
                leader=node,
                leader_epoch=self.state.leader_epoch + 1,
                partition_epoch=self.state.partition_epoch + 1,
            )
        self.in_loop(self.nodes[node].start, self.state, dict(self.brokers))

    @rule()
    def heal(self) -> None:
        """Everything that is up catches up: a schedule without faults ends with equal logs."""
        for node in NODES:
            self.restart(node)
        for _ in range(3):
            for node in NODES:
                self.learn(node)
        if self.state.leader < 0:
            return
        leader = self.nodes[self.state.leader]
        for _ in range(12):
            self.clock.now_ms += int(REFUSAL_SECONDS * 1000)  # a change that was refused may be proposed again
            for node in NODES:
                self.flush(node)
                self.fetch(node)
                self.alter_partition(self.state.leader)
                while self.outcomes:
                    self.isr_change_decided(lost=False)
                self.learn(node)
        assert leader.partition.high_watermark == leader.log.end_offset
        assert set(self.state.isr) == set(NODES)
        for replica in self.nodes.values():
            assert replica.values() == leader.values()
            assert with_records(replica) == with_records(leader)

    # ---- What must hold

    @invariant()
    def offsets_are_in_order(self) -> None:
        for node in getattr(self, "nodes", {}).values():
            if node.is_up:
                partition, log = node.partition, node.log
                assert log.log_start_offset <= partition.high_watermark <= partition.durable_end <= log.end_offset
                epochs = [entry.epoch for entry in log.epochs.entries]
                assert epochs == sorted(set(epochs))

    @invariant()
    def the_high_watermark_does_not_fall_within_a_term(self) -> None:
        for node in getattr(self, "nodes", {}).values():
            if node.is_up and node.partition.leader_state is not None:
                key = (node.partition.leader_epoch, node.broker_epoch)
                assert node.partition.high_watermark >= self.watermarks.get(key, 0)
                self.watermarks[key] = node.partition.high_watermark

    @invariant()
    def what_was_acknowledged_is_on_every_replica_that_may_lead(self) -> None:
        for node_id in self.state.isr if hasattr(self, "state") else ():
            node = self.nodes[node_id]
            if node.is_up:
                held = dict(node.values())
                for offset, value in self.acked.items():
                    assert held.get(offset) == value, f"broker {node_id} may lead without offset {offset}"

    @invariant()
    def equal_offset_and_epoch_mean_equal_records(self) -> None:
        seen: dict[tuple[int, int], bytes | None] = {}
        for node in getattr(self, "nodes", {}).values():
            if node.is_up:
                for offset, value in node.values():
                    assert seen.setdefault((offset, node.log.epochs.epoch_of(offset)), value) == value


TestReplication = Replication.TestCase
TestReplication.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
