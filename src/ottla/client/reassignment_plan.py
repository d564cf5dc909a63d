"""Plans where replicas go, with as few moves as possible: pure functions of the replicas and the brokers of now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ottla.core.ids import TopicPartition

Replicas = tuple[int, ...]


class ImpossiblePlan(ValueError):
    """Reports that there are too few brokers."""


@dataclass(frozen=True, slots=True)
class Move:
    """The replicas of a partition, the preferred leader first, and those it is to get."""

    tp: TopicPartition
    replicas: Replicas
    wanted: Replicas

    @property
    def added(self) -> int:
        """Return how many replicas have to be copied."""
        return len(set(self.wanted) - set(self.replicas))


def plan_reassignment(
    current: Mapping[TopicPartition, Replicas],
    racks: Mapping[int, str | None],
    *,
    targets: Collection[int],
    replication_factor: int | None = None,
) -> list[Move]:
    """Plan to have the replicas of these partitions on the target brokers, evenly, leaders too.

    `racks` names the rack of each live broker. A replica stays where it is if it may and if that is even enough; those
    of a partition go to different racks as far as possible. Without `replication_factor` each partition keeps its own.
    Returns the partitions that change. Raises ImpossiblePlan.
    """
    placement = _Placement(racks, targets)
    wanted: dict[TopicPartition, list[int]] = {}
    for tp, replicas in sorted(current.items()):
        factor = len(replicas) if replication_factor is None else replication_factor
        if factor > len(placement.targets):
            raise ImpossiblePlan(f"{tp} needs {factor} brokers, and there are {len(placement.targets)} to place it on")
        wanted[tp] = [replica for replica in replicas if replica in placement.targets][:factor]
        placement.replicas.update(wanted[tp])
    for tp, chosen in wanted.items():
        factor = len(current[tp]) if replication_factor is None else replication_factor
        while len(chosen) < factor:
            placement.add(chosen)
    placement.level(wanted)
    placement.choose_leaders(wanted)
    return [Move(tp, current[tp], tuple(found)) for tp, found in wanted.items() if tuple(found) != current[tp]]


def plan_drain(
    current: Mapping[TopicPartition, Replicas], racks: Mapping[int, str | None], *, broker: int
) -> list[Move]:
    """Plan to replace one broker in each partition that has a replica on it; the others stay. Raises ImpossiblePlan."""
    placement = _Placement(racks, racks.keys() - {broker})
    for replicas in current.values():
        placement.replicas.update(replica for replica in replicas if replica != broker)
    moves = []
    for tp, replicas in sorted(current.items()):
        if broker not in replicas:
            continue
        rest = [replica for replica in replicas if replica != broker]
        if not placement.targets - set(rest):
            raise ImpossiblePlan(f"{tp} has a replica on every broker: no broker can take the place of {broker}")
        wanted = list(rest)
        placement.add(wanted)
        at = replicas.index(broker)
        moves.append(Move(tp, replicas, (*rest[:at], wanted[-1], *rest[at:])))
    return moves


class _Placement:
    """Counts the replicas of each broker while a plan grows."""

    def __init__(self, racks: Mapping[int, str | None], targets: Collection[int]) -> None:
        missing = sorted(set(targets) - racks.keys())
        if missing:
            raise ImpossiblePlan(f"broker {missing[0]} is not alive")
        self.targets = set(targets)
        self.replicas: Counter[int] = Counter(dict.fromkeys(self.targets, 0))
        self._racks = racks

    def add(self, replicas: list[int]) -> None:
        """Add the broker with the fewest replicas, from a rack that the partition has not if there is one."""
        used = {self._racks.get(replica) for replica in replicas}
        best = min(
            self.targets.difference(replicas),
            key=lambda broker: (self._racks[broker] in used, self.replicas[broker], broker),
        )
        replicas.append(best)
        self.replicas[best] += 1

    def level(self, wanted: Mapping[TopicPartition, list[int]]) -> None:
        """Move replicas from full brokers to empty ones until no two differ by more than one, where racks allow it."""
        is_moving = True
        while is_moving:
            is_moving = False
            for replicas in wanted.values():
                for at, full in enumerate(replicas):
                    rest = [*replicas[:at], *replicas[at + 1 :]]
                    used = {self._racks.get(replica) for replica in rest}
                    free = [
                        broker
                        for broker in self.targets.difference(replicas)
                        if self._racks[broker] not in used or self._racks.get(full) in used
                    ]
                    empty = min(free, key=lambda broker: (self.replicas[broker], broker), default=None)
                    if empty is not None and self.replicas[full] - self.replicas[empty] > 1:
                        replicas[at] = empty
                        self.replicas[full] -= 1
                        self.replicas[empty] += 1
                        is_moving = True

    def choose_leaders(self, wanted: Mapping[TopicPartition, list[int]]) -> None:
        """Put the replicas first that are to lead, so that each broker leads as many partitions as the others."""
        share = -(-len(wanted) // max(len(self.targets), 1))
        led: dict[int, dict[TopicPartition, None]] = {broker: {} for broker in self.targets}
        for tp, replicas in wanted.items():
            leader = replicas[0]
            if len(led[leader]) >= share:
                leader = min(replicas, key=lambda broker: (len(led[broker]), replicas.index(broker)))
            led[leader][tp] = None
        while path := _path_to_fewer_leaders(wanted, led):
            for tp, old, new in path:
                del led[old][tp]
                led[new][tp] = None
        for leader, partitions in led.items():
            for tp in partitions:
                replicas = wanted[tp]
                replicas.insert(0, replicas.pop(replicas.index(leader)))


_Step = tuple[TopicPartition, int, int]
"""A partition that another broker is to lead: the leader, and the next one."""


def _path_to_fewer_leaders(
    wanted: Mapping[TopicPartition, Sequence[int]], led: Mapping[int, Collection[TopicPartition]]
) -> list[_Step]:
    """Find changes of leaders by which one broker leads one partition less, and one that leads two fewer one more.

    Each broker between them gives one partition to the next. Empty if all lead equally many, as far as they can.
    """
    for full in sorted(led, key=lambda broker: -len(led[broker])):
        reached: dict[int, _Step | None] = {full: None}
        queue = [full]
        for broker in queue:
            if len(led[broker]) <= len(led[full]) - 2:
                return _steps_to(broker, reached)
            for tp in led[broker]:
                for other in wanted[tp]:
                    if other not in reached:
                        reached[other] = tp, broker, other
                        queue.append(other)
    return []


def _steps_to(broker: int, reached: Mapping[int, _Step | None]) -> list[_Step]:
    steps: list[_Step] = []
    while (step := reached[broker]) is not None:
        steps.append(step)
        broker = step[1]
    return steps


def leaders_by_broker(current: Mapping[TopicPartition, tuple[int, Sequence[int]]]) -> dict[int, tuple[int, int, int]]:
    """Count for each broker the partitions it leads, those it is the preferred leader of, and its replicas.

    `current` has the leader and the replicas of each partition.
    """
    led: Counter[int] = Counter(leader for leader, _ in current.values() if leader >= 0)
    preferred: Counter[int] = Counter(replicas[0] for _, replicas in current.values() if replicas)
    held: Counter[int] = Counter(replica for _, replicas in current.values() for replica in replicas)
    return {broker: (led[broker], preferred[broker], held[broker]) for broker in sorted({*led, *preferred, *held})}
