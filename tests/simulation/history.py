"""Records what clients did and saw, in virtual time: the only input of the checkers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from ottla.core.ids import TopicPartition


class Outcome(Enum):
    """How an operation ended, as far as its client knows."""

    OK = "ok"
    FAILED = "failed"  # it has had no effect and never will
    UNKNOWN = "unknown"  # it may have had an effect, or have one later


class Value(NamedTuple):
    """Names a record: no two sends to a partition have the same value."""

    producer: str
    counter: int  # of this producer and partition, ascending
    transaction: int = -1  # of this producer; -1 without one

    def encode(self) -> bytes:
        """Return the bytes of the record."""
        return f"{self.producer}/{self.counter}/{self.transaction}".encode()

    @classmethod
    def decode(cls, raw: bytes) -> Value:
        """Parse the bytes of a record. Raises ValueError."""
        producer, counter, transaction = raw.decode().split("/")
        return cls(producer, int(counter), int(transaction))


@dataclass(slots=True)
class Send:
    """One record that a producer sent."""

    partition: TopicPartition
    value: Value
    invoked_s: float
    completed_s: float = float("inf")
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = -1
    acks: int = -1


@dataclass(slots=True)
class Commit:
    """An offset commit of a group, or the end of a transaction."""

    name: str  # the group, or the producer
    number: int  # the offset, or the transaction
    partition: TopicPartition | None
    invoked_s: float
    completed_s: float = float("inf")
    outcome: Outcome = Outcome.UNKNOWN
    is_abort: bool = False


class Seen(NamedTuple):
    """A record that a consumer received."""

    time_s: float
    consumer: str
    partition: TopicPartition
    offset: int
    value: Value
    read_committed: bool


class Owner(NamedTuple):
    """A member that was assigned a partition in a generation of its group."""

    time_s: float
    group: str
    generation: int
    member: str
    partition: TopicPartition


class StoreWrite(NamedTuple):
    """A commit to the metadata store that began a term as controller, or wrote the states of partitions."""

    time_s: float
    node: int
    session: int  # its number in the store
    begins_term: bool
    paths: tuple[str, ...]  # of the states


class Change(NamedTuple):
    """A commit that changed what a user may do, or its password."""

    time_s: float
    user: str
    value: int  # whether it may, or the number of the password


class Use(NamedTuple):
    """A broker's answer to a request, or to a sign-in."""

    began_s: float
    ended_s: float
    node: int
    user: str
    value: int  # the one that it needs
    is_allowed: bool


class Start(NamedTuple):
    """A log start that a leader announced, as the first or a higher one of its replica."""

    time_s: float
    node: int
    partition: TopicPartition
    offset: int


class Batch(NamedTuple):
    """A batch in the file of a replica."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    raw: bytes


@dataclass(slots=True)
class ReplicaLog:
    """A replica's files at the end of a run."""

    node: int
    partition: TopicPartition
    start: int
    high_watermark: int
    batches: list[Batch]


@dataclass(slots=True)
class History:
    """All of a run."""

    sends: list[Send] = field(default_factory=list)
    transactions: list[Commit] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    owners: list[Owner] = field(default_factory=list)
    leaders: list[tuple[TopicPartition, int, int]] = field(default_factory=list)
    """(partition, leader epoch, node) of each term in which a broker served."""
    starts: list[Start] = field(default_factory=list)
    """Above 0. No records are deleted in a run."""
    store_writes: list[StoreWrite] = field(default_factory=list)
    """In the order of the commits."""
    changes: list[Change] = field(default_factory=list)
    """In the order of the commits; at first no right and password 0."""
    uses: list[Use] = field(default_factory=list)
    age_s: float = float("inf")
    """A change counts everywhere after this time."""
    final: dict[TopicPartition, list[tuple[int, Value]]] = field(default_factory=dict)
    """The records of each partition after the end, without isolation."""
    final_committed: dict[TopicPartition, list[tuple[int, Value]]] = field(default_factory=dict)
    final_commits: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    replicas: list[ReplicaLog] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What the run itself found: invariants, failed tasks, unexpected log lines, liveness."""
    unclean: frozenset[TopicPartition] = frozenset()
    """Partitions that had an unclean election, which may lose records."""

    def acknowledged(self) -> Iterable[Send]:
        """Return the sends that the cluster has acknowledged with acks=all."""
        return (send for send in self.sends if send.outcome is Outcome.OK and send.acks == -1)
