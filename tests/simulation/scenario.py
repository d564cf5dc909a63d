"""Describes one run as data: the cluster, its clients, and the schedule of faults. JSON in, JSON out.

All of it is drawn before the run begins, so that a fault can be left out without changing any other.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

ALL, LEADER, CONTROLLER = 0, -1, -2
"""In place of a broker's id; LEADER leads the first partition."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: `node` is a broker's id, ALL, or a role that a broker has at that time."""

    time_s: float
    kind: str
    node: int
    for_s: float = 0.0  # how long it lasts, or how long the broker is down
    other: str = ""  # another host, or how it is done
    when: str = ""  # a moment for which it waits, from `time_s` on; empty: it does not wait
    after_s: float = 0.0  # the time between the moment and the fault

    def __str__(self) -> str:
        named = {ALL: "all brokers", LEADER: "the leader", CONTROLLER: "the controller"}
        node = named.get(self.node, f"broker {self.node}")
        when = f" at the next {self.when}" if self.when else ""
        return f"{self.kind} {node} {self.other} for {self.for_s:.2f} s{when}"


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that decides a run."""

    seed: int
    brokers: int = 3
    partitions: int = 2
    replication: int = 3
    min_isr: int = 2
    producers: int = 2
    consumers: int = 1
    transactional: int = 0
    committers: int = 0
    duration_s: float = 25.0
    sync_s: float = 0.001
    pause_s: float = 0.5  # between two sends of a producer, on average
    lag_s: float = 10.0  # replica.lag.time.max.ms
    session_s: float = 6.0  # the timeout of a session with the metadata store
    unknown_share: float = 0.0  # of the commits to the store whose outcome stays unknown
    is_page_cache: bool = False  # the topic has durability=page-cache
    directories: int = 1  # of each broker
    segment_bytes: int = 0  # of the topic; 0: all of a run is in one segment
    is_secured: bool = False  # brokers and clients sign in by SCRAM, and ACLs say what clients may do
    options: dict[str, str] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    def to_json(self) -> str:
        """Return the text from which `from_json` makes the same scenario."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Scenario:
        """Parse what `to_json` wrote."""
        read: dict[str, Any] = json.loads(text)
        return cls(**{**read, "faults": tuple(Fault(**each) for each in read["faults"])})


SINGLE_KINDS = ("kill", "power-cut", "power-cut-at-io", "pause", "stop", "reset", "clock", "cut-clients", "failed-sync")
CLUSTER_KINDS = (
    "kill",
    "kill",
    "power-cut",
    "power-cut-all",
    "power-cut-at-io",
    "pause",
    "stop",
    "reset",
    "clock",
    "cut-clients",
    "cut-from",
    "cut-to",
    "cut-both",
    "cut-store",
    "expire",
    "failed-sync",
    "slow",
    "gap",
    "hold-feed",
    "outage",
    "depose",
    "wipe",
    "reassign",
    "elect",
)


FOR_ALL = frozenset({"power-cut-all", "outage"})
ROLE_KINDS = frozenset(CLUSTER_KINDS) - FOR_ALL - {"clock", "slow", "failed-sync", "reassign", "elect", "depose"}
MOMENTS = ("proposal", "term", "truncation")
"""A leader proposes another ISR; a broker begins to lead; a log is truncated."""

AT_A_MOMENT_SHARE = 0.25  # of the faults

MOVES_SHARE = 0.25
"""This part of the scenarios has moves between log directories."""

CORRUPT_SHARE = 0.25
"""This part of the scenarios corruptions files of logs."""

CORRUPTIONS = ("flip", "flip", "cut", "lose-first", "lose-first", "lose-middle", "lose-last", "lose-epochs", "lose-all")
"""A bit of a segment, the end of one, segments, or the leader epochs of a log."""

FATAL_TO_PAGES = frozenset({"power-cut-all", "power-cut-at-io", "failed-sync"})
"""Kinds that are left out where records count before they are synced."""


def draw(
    seed: int,
    *,
    brokers: int = 3,
    replication: int = 3,
    kinds: tuple[str, ...] = (),
    is_page_cache: bool = False,
    is_secured: bool = False,
) -> Scenario:
    """Draw the scenario of a seed, with faults of some of these kinds; with "corrupt" among them it has corruptions."""
    is_corrupt, kinds = "corrupt" in kinds, tuple(kind for kind in kinds if kind != "corrupt")
    rng = random.Random(f"{seed}/scenario")
    replication = min(replication, brokers)
    scenario = Scenario(
        seed,
        brokers=brokers,
        partitions=rng.choice((1, 2, 4)),
        replication=replication,
        min_isr=min(2, replication) if rng.random() < 0.8 else 1,
        producers=rng.choice((1, 2, 3)),
        consumers=rng.choice((1, 2)),
        transactional=rng.choice((0, 0, 1)),
        committers=rng.choice((0, 1)),
        sync_s=rng.choice((0.0001, 0.001, 0.002)),
        pause_s=rng.choice((0.2, 0.5, 1.0)),
        lag_s=rng.choice((2.0, 5.0, 10.0)),
        session_s=rng.choice((2.0, 6.0)),
        unknown_share=rng.choice((0.0, 0.0, 0.03)) if brokers > 1 else 0.0,
        is_secured=is_secured,
    )
    if brokers > 1 and (rng.random() < 0.15 or is_page_cache):  # records may be torn from transactions then
        scenario = replace(scenario, is_page_cache=True, transactional=0)
    if brokers > 2 and replication == brokers and rng.random() < 0.15:
        scenario = replace(scenario, replication=replication - 1)
    kinds = kinds or (SINGLE_KINDS if brokers == 1 else CLUSTER_KINDS)
    if scenario.is_page_cache:
        kinds = tuple(kind for kind in kinds if kind not in FATAL_TO_PAGES) or ("kill",)
    enabled = rng.sample(kinds, rng.randrange(1, min(6, len(kinds) + 1)))  # a swarm: each run has some kinds only
    faults: list[Fault] = []
    for _ in range(rng.randrange(2, 9)):
        kind = rng.choice(enabled)
        node = rng.randrange(1, brokers + 1)
        if brokers > 1 and kind in ROLE_KINDS and rng.random() < 0.6:
            node = rng.choice((LEADER, LEADER, LEADER, CONTROLLER))
        other = ""
        if kind in {"cut-from", "cut-to", "cut-both"}:
            other = f"broker-{rng.choice([n for n in range(1, brokers + 1) if n != node])}"
        elif kind in {"power-cut", "power-cut-all"}:
            other = rng.choice(("torn", "torn", "lost"))
        elif kind == "power-cut-at-io":
            other = str(rng.randrange(1, 20))  # at which change of the disk from then on
        elif kind == "reassign":
            size = rng.choice((scenario.replication, scenario.replication, rng.randrange(1, brokers + 1)))
            replicas = rng.sample(range(1, brokers + 1), max(size, scenario.min_isr))
            other = f"{rng.randrange(scenario.partitions)}:{','.join(map(str, replicas))}"
        elif kind == "elect":
            other = f"{rng.randrange(scenario.partitions)}:{rng.choice((1, 1, 2))}"
        elif kind == "clock":
            other = str(rng.choice((-3_600_000, 3_600_000, 86_400_000, -10_000)))
        elif kind == "depose":
            node, other = CONTROLLER, rng.choice(("", "late", "late"))  # whether it learns of it only at the end
        for_s = rng.choice((0.01, 0.5, 2.0, 6.0, 9.0)) * (0.5 + rng.random())
        if kind == "outage":
            for_s = scenario.session_s * rng.choice((0.3, 1.05, 1.5)) * (1 + 0.2 * rng.random())
        time_s = 3.0 + rng.random() * (scenario.duration_s - 6.0)
        before = faults[-1] if faults else None
        near = rng.random()
        if before is not None and near < 0.3:  # just after another fault
            time_s = before.time_s + rng.random() * 0.5
        elif before is not None and near < 0.7:  # while it lasts, or soon after
            time_s = before.time_s + rng.random() * 1.3 * before.for_s
        when = rng.choice(MOMENTS) if brokers > 1 and rng.random() < AT_A_MOMENT_SHARE else ""
        after_s = round(rng.random() * rng.choice((0.001, 0.01)), 6) if when else 0.0
        where = ALL if kind in FOR_ALL else node
        faults.append(Fault(round(time_s, 6), kind, where, round(for_s, 6), other, when, after_s))
    if "elect" in enabled:  # leaders move to and fro while other faults last
        for _ in range(rng.randrange(2, 9)):
            close = rng.choice(faults)
            time_s, for_s = close.time_s + rng.random() * 1.3 * close.for_s, rng.choice((0.1, 0.5, 2.0)) * rng.random()
            other = f"{rng.randrange(scenario.partitions)}:{rng.choice((1, 1, 2))}"
            faults.append(Fault(round(time_s, 6), "elect", LEADER, round(for_s, 6), other))
    scenario = _with_moves(replace(scenario, faults=tuple(sorted(faults, key=lambda fault: fault.time_s))))
    return _with_corruption(scenario, share=1.0 if is_corrupt else CORRUPT_SHARE)


def _with_corruption(scenario: Scenario, *, share: float) -> Scenario:
    """Let some scenarios have short segments, and corrupt or remove some while the broker is down or runs, with dice of its own.

    Only where two other replicas have each record that counts.
    """
    rng = random.Random(f"{scenario.seed}/corruptions")
    is_safe = scenario.replication > 2 and scenario.min_isr > 1 and not scenario.is_page_cache
    if rng.random() >= share or not is_safe:
        return scenario
    corruptions: list[Fault] = []
    for _ in range(rng.randrange(1, 6)):
        time_s = 8.0 + rng.random() * (scenario.duration_s - 11.0)
        node = LEADER if rng.random() < 0.5 else rng.randrange(1, scenario.brokers + 1)
        kind = rng.choice(("corrupt-at-rest", "corrupt-at-rest", "corrupt"))
        other = f"{rng.randrange(scenario.partitions)}:{rng.choice(CORRUPTIONS)}:{rng.randrange(1 << 20)}"
        for_s = rng.choice((0.01, 0.5, 2.0)) * (0.5 + rng.random())
        corruptions.append(Fault(round(time_s, 6), kind, node, round(for_s, 6), other))
    faults = sorted([*scenario.faults, *corruptions], key=lambda fault: fault.time_s)
    return replace(scenario, segment_bytes=rng.choice((300, 1000)), faults=tuple(faults))


def _with_moves(scenario: Scenario) -> Scenario:
    """Let some scenarios have two log directories on each broker, and move logs between them around the faults.

    They have dice of their own, so that the other seeds stay what they were.
    """
    rng = random.Random(f"{scenario.seed}/moves")
    if rng.random() >= MOVES_SHARE:
        return scenario
    moves: list[Fault] = []
    for _ in range(rng.randrange(2, 9)):
        time_s = 3.0 + rng.random() * (scenario.duration_s - 6.0)
        if scenario.faults and rng.random() < 0.7:
            time_s = max(rng.choice(scenario.faults).time_s + (rng.random() - 0.7) * 2.0, 3.0)
        node = LEADER if rng.random() < 0.4 else rng.randrange(1, scenario.brokers + 1)
        moves.append(Fault(round(time_s, 6), "move-log", node, 0.0, str(rng.randrange(scenario.partitions))))
    rate = rng.choice(("2000", "20000", "200000", "9223372036854775807"))  # bytes a second: how long a move takes
    options = {**scenario.options, "replica.alter.log.dirs.io.max.bytes.per.second": rate}
    faults = sorted([*scenario.faults, *moves], key=lambda fault: fault.time_s)
    return replace(scenario, directories=2, options=options, faults=tuple(faults))


def smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Yield simpler scenarios, the greatest steps first: fewer faults, clients and partitions, shorter times."""
    faults = scenario.faults
    size = len(faults)
    while size:
        for at in range(0, len(faults), size):
            yield replace(scenario, faults=faults[:at] + faults[at + size :])
        size //= 2
    for name, least in (("transactional", 0), ("committers", 0), ("consumers", 0), ("producers", 1), ("partitions", 1)):
        if getattr(scenario, name) > least:
            changes: dict[str, Any] = {name: least}
            yield replace(scenario, **changes)
    if scenario.duration_s > 10 and (not faults or faults[-1].time_s < scenario.duration_s / 2):
        yield replace(scenario, duration_s=scenario.duration_s / 2)
    for at, fault in enumerate(faults):
        if fault.for_s > 0.2:
            yield replace(scenario, faults=(*faults[:at], replace(fault, for_s=fault.for_s / 2), *faults[at + 1 :]))
