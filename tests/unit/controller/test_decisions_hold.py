"""Random histories of brokers, leaders, operators and reassignments: what every decision must keep.

The model has what replicas have: the end of the committed records (the high watermark) moves only as the leader may move
it, over the replicas in the ISR. A replica that is elected cleanly must have all of it.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ottla.controller.election_events import (
    BrokersGone,
    BrokerShutsDown,
    BrokerStarted,
    ElectLeaders,
    ElectMissing,
    ReplicasReported,
)
from ottla.controller.elections import Election
from ottla.controller.isr import AlterPartition, ProposedIsr
from ottla.controller.machine import Event, apply
from ottla.controller.overlay import Overlay
from ottla.controller.reassignments import Reassign, RequestedReassignment
from ottla.core.errors import KafkaError
from ottla.core.ids import TopicPartition
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import NO_LEADER, BrokerInfo, ClusterView, PartitionView
from ottla.metadata_store.store import Create, Delete, Op, Put
from tests.unit.controller.cluster_views import RULES, TOPIC_ID, a_partition, only, view_of

NODES = (1, 2, 3, 4)
HERE = TopicPartition("t", 0)
nodes = st.sampled_from(NODES)


class Decisions(RuleBasedStateMachine):
    """One partition; the leader's log is `ends[leader]`, the committed part of it `committed`."""

    @initialize(
        replicas=st.permutations(NODES).map(lambda order: tuple(order[:3])),
        min_isr=st.integers(1, 3),
        is_unclean_allowed=st.booleans(),
    )
    def create(self, replicas: tuple[int, ...], min_isr: int, is_unclean_allowed: bool) -> None:
        config = {
            "min.insync.replicas": str(min_isr),
            "unclean.leader.election.enable": str(is_unclean_allowed).lower(),
        }
        first = a_partition(replicas=replicas, isr=replicas, leader=replicas[0])
        self.view = view_of(first, alive=NODES, config=config)
        self.min_isr = min_isr
        self.epochs = {node: broker.epoch for node, broker in self.view.brokers.items()}
        self.ends = dict.fromkeys(NODES, 0)  # how many records each replica has; only the length matters
        self.committed = 0
        self.leaders: dict[int, int] = {first.leader_epoch: first.leader}

    # ---- What happens

    @rule(lagging=st.sets(nodes, max_size=2))
    def replicate(self, lagging: set[int]) -> None:
        """The leader appends and followers fetch all of it; then the leader moves the high watermark."""
        partition = only(self.view)
        leader = partition.leader
        if leader == NO_LEADER or leader not in self.view.brokers:
            return
        self.ends[leader] += 1
        for node in partition.replicas:
            if node in self.view.brokers and node not in lagging:
                self.ends[node] = self.ends[leader]
        required = min(self.min_isr, len(partition.replicas) - len(partition.adding))
        if len(partition.isr) >= required:
            self.committed = max(self.committed, min(self.ends[each] for each in partition.isr))

    @rule(node=nodes)
    def lag_and_leave(self, node: int) -> None:
        """A follower lags, and the leader goes on without it."""
        partition = only(self.view)
        leader = partition.leader
        if node in {leader, NO_LEADER} or leader not in self.view.brokers or node not in partition.isr:
            return
        rest = [(each, self.epochs[each]) for each in partition.isr if each != node]
        proposal = ProposedIsr(TOPIC_ID, 0, partition.leader_epoch, partition.partition_epoch, rest)
        self.decide(AlterPartition(leader, self.epochs[leader], [proposal]))
        self.replicate({node})

    @rule()
    def all_return(self) -> None:
        """All brokers run again, and all that is corrupt is repaired."""
        for node in NODES:
            if node not in self.view.brokers or self.view.brokers[node].is_shutting_down:
                self.view = replace(self.view, brokers={n: b for n, b in self.view.brokers.items() if n != node})
                self.decide(BrokersGone(frozenset({node})))
                self.register(node)
                self.decide(BrokerStarted(node))
            self.repair(node)

    @rule(lost=st.sets(nodes, min_size=1, max_size=2))
    def go(self, lost: set[int]) -> None:
        lost &= self.view.brokers.keys()
        self.view = replace(self.view, brokers={n: b for n, b in self.view.brokers.items() if n not in lost})
        if lost:
            self.decide(BrokersGone(frozenset(lost)))

    @rule(lost=st.sets(nodes, min_size=1))
    def go_while_no_one_looks(self, lost: set[int]) -> None:
        """Brokers are gone one after the other, but the controller sees it at once with the return of one."""
        lost &= self.view.brokers.keys()
        if not lost:
            return
        back = min(lost)
        self.view = replace(self.view, brokers={n: b for n, b in self.view.brokers.items() if n not in lost})
        self.register(back)
        self.decide(BrokersGone(frozenset(lost)))
        self.decide(BrokerStarted(back))

    @rule(node=nodes)
    def start(self, node: int) -> None:
        if node not in self.view.brokers:
            self.register(node)
            self.decide(BrokerStarted(node))

    @rule(node=nodes)
    def shut_down(self, node: int) -> None:
        if node in self.view.brokers:
            stopping = self.view.brokers[node]._replace(is_shutting_down=True)
            self.view = replace(self.view, brokers={**self.view.brokers, node: stopping})
            self.decide(BrokerShutsDown(node))

    @rule(node=nodes, lost=st.integers(1, 3))
    def corrupt(self, node: int, lost: int) -> None:
        """A replica loses records, and its broker reports it; it is repaired once it has fetched them again."""
        if node in self.view.brokers and self.ends[node]:
            self.ends[node] = max(0, self.ends[node] - lost)
            self.report(node, suspect=True)

    @rule(node=nodes)
    def impair(self, node: int) -> None:
        """A replica finds corrupt records, or its disk is full; it is well again once it is repaired."""
        if node in self.view.brokers:
            self.report(node, suspect=HERE in self.reported(node).suspects, impaired=True)

    @rule(node=nodes)
    def repair(self, node: int) -> None:
        if self.ends[node] >= self.committed and node in self.view.replica_reports:
            self.report(node, suspect=False)

    @precondition(lambda self: only(self.view).leader in self.view.brokers)
    @rule(wanted=st.sets(nodes, min_size=1), is_late=st.booleans(), is_old_life=st.booleans())
    def propose(self, wanted: set[int], is_late: bool, is_old_life: bool) -> None:
        """The leader proposes an ISR: only replicas that have all that is committed, or that it has already."""
        partition = only(self.view)
        leader = partition.leader
        isr = [
            node
            for node in partition.replicas
            if node == leader or (node in wanted and (self.ends[node] >= self.ends[leader] or node in partition.isr))
        ]
        proposal = ProposedIsr(
            TOPIC_ID,
            0,
            partition.leader_epoch,
            partition.partition_epoch - is_late,
            [(node, self.epochs[node] - is_old_life) for node in isr],
        )
        outcome = self.decide(AlterPartition(leader, self.epochs[leader], [proposal]))
        if is_late or (is_old_life and set(isr) != set(partition.isr)):
            assert only(self.view) == partition
        elif isinstance(outcome, list) and not isinstance(outcome[0], KafkaError):
            assert set(only(self.view).isr) <= set(isr)

    @rule(wanted=st.lists(nodes, min_size=1, max_size=3, unique=True))
    def reassign(self, wanted: list[int]) -> None:
        if all(node in self.view.brokers for node in wanted):
            self.decide(Reassign([RequestedReassignment(HERE, wanted)]))

    @rule()
    def cancel(self) -> None:
        self.decide(Reassign([RequestedReassignment(HERE, None)]))

    @rule(election=st.sampled_from([Election.PREFERRED, Election.UNCLEAN]))
    def elect(self, election: Election) -> None:
        self.decide(ElectLeaders(election, [HERE]))

    @rule()
    def elect_missing(self) -> None:
        self.decide(ElectMissing())

    # ---- Means

    def register(self, node: int) -> None:
        self.epochs[node] += 1_000
        self.view = replace(
            self.view, brokers={**self.view.brokers, node: BrokerInfo(node, {}, None, self.epochs[node], {})}
        )

    def reported(self, node: int) -> znodes.ReplicaReport:
        return self.view.replica_reports.get(node) or znodes.ReplicaReport(True)

    def report(self, node: int, *, suspect: bool, impaired: bool = False) -> None:
        suspects = frozenset({HERE} if suspect else ())
        reasons = {znodes.Impairment.FULL: frozenset({HERE})} if impaired else {}
        reports = {**self.view.replica_reports, node: znodes.ReplicaReport(True, suspects=suspects, impaired=reasons)}
        self.view = replace(self.view, replica_reports=reports)
        self.decide(ReplicasReported(node, [HERE]))

    def decide(self, event: Event) -> object:
        before = only(self.view)
        overlay = Overlay(self.view, RULES)
        try:
            outcome = apply(overlay, event)
        except KafkaError as error:
            assert overlay.ops() == []
            return error
        after_ops = written(self.view, overlay.ops())
        self.view = overlay.view()
        assert after_ops == only(self.view), "what is written is what was decided"
        self.check(before, only(self.view))
        return outcome

    def check(self, before: PartitionView, after: PartitionView) -> None:
        if after == before:
            return
        assert after.partition_epoch > before.partition_epoch
        assert after.leader_epoch >= before.leader_epoch
        removed = set(before.replicas) - set(after.replicas)
        if after.leader != before.leader or removed:
            assert after.leader_epoch > before.leader_epoch, "another leader has another epoch"
        if after.leader != NO_LEADER:
            assert self.leaders.setdefault(after.leader_epoch, after.leader) == after.leader, "an epoch has one leader"
        is_unclean = after.last_unclean_epoch > before.last_unclean_epoch
        if is_unclean:
            assert after.isr == (after.leader,)
            self.committed = min(self.committed, self.ends[after.leader])
            for node in NODES:  # the others truncate to the new leader
                self.ends[node] = min(self.ends[node], self.ends[after.leader])
        elif after.leader_epoch > before.leader_epoch and after.leader != NO_LEADER:
            assert self.ends[after.leader] >= self.committed, (
                "a leader that was elected cleanly has all committed records"
            )
            for node in NODES:
                self.ends[node] = min(self.ends[node], self.ends[after.leader])

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "view"):
            return
        partition = only(self.view)
        suspects = {node for node, report in self.view.replica_reports.items() if HERE in report.suspects}
        assert partition.isr
        assert set(partition.isr) <= set(partition.replicas)
        assert set(partition.elr) <= set(partition.replicas) - set(partition.isr)
        assert partition.leader == NO_LEADER or partition.leader in partition.isr
        assert set(partition.adding) | set(partition.removing) <= set(partition.replicas)
        assert not set(partition.adding) & set(partition.removing)
        for node in partition.elr:
            assert self.ends[node] >= self.committed, "an eligible replica has all committed records"
        for node in partition.isr:
            assert self.ends[node] >= self.committed or node in suspects
        if any(self.reported(node).impaired for node in partition.isr):
            able = [self.view.brokers.get(node) for node in partition.isr if not self.reported(node).impaired]
            assert not any(broker is not None and not broker.is_shutting_down for broker in able) or any(
                node in suspects for node in partition.isr
            ), "an impaired replica is in the ISR while another one could lead"
        required = min(self.min_isr, len(partition.replicas) - len(partition.adding))
        if partition.elr and partition.leader != NO_LEADER:
            assert len(partition.isr) < required


def written(view: ClusterView, ops: list[Op]) -> PartitionView:
    """Return the partition after the operations, with the versions that the store would check."""
    partition, version = only(view), view.topics["t"].version
    for op in ops:
        assert not isinstance(op, Create | Delete)
        if isinstance(op, Put) and op.path == znodes.topic_path("t"):
            assert op.expected_version == version
            version += 1
            assignment = znodes.decode_assignment("t", op.value)
            partition = replace(
                partition,
                replicas=assignment.replicas[0],
                adding=assignment.adding.get(0, ()),
                removing=assignment.removing.get(0, ()),
            )
        elif isinstance(op, Put):
            assert op.expected_version == partition.partition_epoch
            state = znodes.decode_state("t", 0, op.value)
            partition = replace(
                partition,
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                isr=state.isr,
                elr=state.elr,
                is_recovering=state.is_recovering,
                last_known_elr=state.last_known_elr,
                last_unclean_epoch=state.last_unclean_epoch,
                partition_epoch=partition.partition_epoch + 1,
            )
    return partition


Decisions.TestCase.settings = settings(
    max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestDecisions = Decisions.TestCase
