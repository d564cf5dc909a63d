"""Kills brokers one after the other while six groups consume, and checks what the groups were given."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from statistics import median

from confluent_kafka import Consumer, TopicPartition

from tests.consumer_kills.clusters import NODES, KillableCluster
from tests.consumer_kills.members import Group, Kind
from tests.support.cluster_load import ClusterLoad
from tests.support.signed_in import ClientSecurity, SignInRefused
from tests.support.wire_client import ConnectionEnded

PROTOCOLS = ("classic", "consumer")
GROUPS = 6
PARTITIONS = 6
TOPIC = "load"
WAIT_S = 300.0
"""Deadline of each wait, for machines with much other work."""

KILL_PERIOD_S = 12.0
"""Time between two kills at least, so that the cluster that recovers sooner is not killed more often."""

CATCH_UP_S = 90.0
"""Then a member that is given no records counts as one that misses them."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one cluster."""

    kills: int
    records: int
    delivered: int
    commits: int
    failed_commits: Counter[str]
    start_positions: int
    observed: int
    assignments: int
    redelivered: dict[str, int]
    faults: list[str]
    missing: dict[str, int]  # records that a group was not given
    pauses_s: list[float]

    def rows(self) -> list[tuple[str, str]]:
        """Return the figures for people."""
        return [
            ("brokers killed", f"{self.kills}"),
            ("records", f"{self.records:,}"),
            ("deliveries", f"{self.delivered:,}"),
            ("acknowledged commits", f"{self.commits:,}"),
            ("commits that failed", f"{self.failed_commits.total():,}"),
            ("assignments", f"{self.assignments:,}"),
            ("start positions", f"{self.start_positions:,}"),
            ("committed offsets that were fetched", f"{self.observed:,}"),
            ("offsets below an acknowledged commit", f"{len(self.faults)}"),
            ("re-deliveries", f"{sum(self.redelivered.values()):,}"),
            ("records that a group was not given", f"{sum(self.missing.values()):,}"),
            (
                "longest pause of commits after a kill, median and maximum",
                f"{median(self.pauses_s):.1f} s, {max(self.pauses_s):.1f} s",
            ),
        ]


@dataclass
class Campaign:
    """One cluster, its load and its groups."""

    cluster: KillableCluster
    seed: int = 1
    rate: float = 100
    down_s: float = 5.0
    pauses_s: list[float] = field(default_factory=list)

    @property
    def security(self) -> ClientSecurity:
        return self.cluster.security

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.cluster.ports)

    def run(self, *, seconds: float, kills_min: int) -> Result:
        """Kill brokers for a time, wait until all groups have everything, and check."""
        self._create_topic()
        load = ClusterLoad(
            self.bootstrap, TOPIC, partitions=PARTITIONS, producers=1, rate=self.rate, security=self.security
        ).start()
        groups = [
            Group(self.cluster.ports, TOPIC, PARTITIONS, f"group-{number}-{protocol}", protocol, self.security).start()
            for number, protocol in enumerate(PROTOCOLS * (GROUPS // 2))
        ]
        try:
            self._until(lambda: all(len(group.committed()) == PARTITIONS for group in groups), "all groups commit")
            kills = self._kill_brokers(groups, seconds, kills_min)
            load.stop()
            ends = self._ends()
            with suppress(AssertionError):  # what is missing is counted
                self._until(lambda: all(group.committed() == ends for group in groups), "all records", CATCH_UP_S)
        finally:
            load.stop()
            for group in groups:
                group.stop()
        return self._result(groups, kills, load.verify(), ends)

    def _ends(self) -> dict[int, int]:
        """Return the end offsets of all partitions."""
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "ends", "log_level": 0, **self.security.properties}
        )
        try:
            ends = [consumer.get_watermark_offsets(TopicPartition(TOPIC, n), timeout=30)[1] for n in range(PARTITIONS)]
        finally:
            consumer.close()
        return dict(enumerate(ends))

    def _create_topic(self) -> None:
        def is_created() -> bool:
            with self.security.wire(self.cluster.ports[0]) as wire:
                new = {"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": len(NODES)}
                wire.call("create_topics", 5, topics=[new], timeout=20_000)
            return self._is_in_sync()

        self._until(is_created, "the topic is created")

    def _kill_brokers(self, groups: list[Group], seconds: float, kills_min: int) -> int:
        rng = random.Random(self.seed)
        deadline, kills = time.monotonic() + seconds, 0
        while kills < kills_min or time.monotonic() < deadline:
            node = NODES[kills % len(NODES)] if kills < len(NODES) else rng.choice(NODES)
            began_ns = time.monotonic_ns()
            self.cluster.kill(node)
            time.sleep(self.down_s)
            self.cluster.start_broker(node)
            self._until(self._is_in_sync, f"all replicas are in sync after kill {kills} of broker {node}")
            self._until(partial(_all_commit_since, groups, time.monotonic_ns()), "all members commit again")
            self.pauses_s.append(max(_longest_pause_s(group, began_ns) for group in groups))
            kills += 1
            time.sleep(max(0.0, KILL_PERIOD_S - (time.monotonic_ns() - began_ns) / 1e9))
        return kills

    def _is_in_sync(self) -> bool:
        for port in self.cluster.ports:
            with self.security.wire(port, timeout_s=5.0) as wire:
                answer = wire.call("metadata", 8, topics=None, allow_auto_topic_creation=False)
            partitions = [part for topic in answer["topics"] for part in topic["partitions"]]
            if not partitions or any(
                len(part["isr_nodes"]) < len(NODES) or part["leader_id"] < 0 for part in partitions
            ):
                return False
        return True

    @staticmethod
    def _until(holds: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> None:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                if holds():
                    return
            except (OSError, ConnectionEnded, SignInRefused):
                pass
            assert time.monotonic() < deadline, f"not within {wait_s} s: {what}"
            time.sleep(0.1)

    def _result(self, groups: list[Group], kills: int, records: int, ends: dict[int, int]) -> Result:
        faults = []
        for group in groups:
            faults += [f"{group.name}: {fault}" for fault in group.seen.offsets_below_an_acknowledged_commit()]
        return Result(
            kills=kills,
            records=records,
            delivered=sum(len(group.seen.delivered) for group in groups),
            commits=sum(len(group.seen.acknowledged) for group in groups),
            failed_commits=Counter(error for group in groups for error in group.seen.failed_commits),
            start_positions=sum(group.seen.count(Kind.STARTED) + group.seen.count(Kind.ASSIGNED) for group in groups),
            observed=sum(group.seen.count(Kind.OBSERVED) for group in groups),
            assignments=sum(group.seen.assignments for group in groups),
            redelivered={group.name: group.seen.redelivered for group in groups},
            faults=faults,
            missing={group.name: sum(ends.values()) - len(set(group.seen.delivered)) for group in groups},
            pauses_s=self.pauses_s,
        )


def _all_commit_since(groups: list[Group], since_ns: int) -> bool:
    """Return whether a commit of every partition was acknowledged in every group since a moment."""
    for group in groups:
        committed = {event.partition for event in tuple(group.seen.acknowledged) if event.ns > since_ns}
        if len(committed) < PARTITIONS:
            return False
    return True


def _longest_pause_s(group: Group, since_ns: int) -> float:
    """Return the longest time without an acknowledged commit after a moment, until the last one."""
    times = [since_ns, *(event.ns for event in tuple(group.seen.acknowledged) if event.ns > since_ns)]
    return max((after - before) / 1e9 for before, after in pairwise(times))
