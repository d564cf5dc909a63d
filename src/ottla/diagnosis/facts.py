"""Declares what is known of a cluster when rules look at it: values only, gathered by gather.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ottla.client.admin import ClusterDescription
from ottla.client.cluster_health import ClusterHealth
from ottla.client.group_lag import GroupLag
from ottla.client.metadata import TopicInfo
from ottla.client.quota_admin import EntityQuotas
from ottla.client.transaction_admin import OpenTransaction
from ottla.core.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """An event that a broker has recorded (core/events.py)."""

    time_ms: int
    broker: int
    kind: str
    cause: str
    topic: str = ""
    partition: int = -1
    group: str = ""
    client: str = ""
    node: int = -1
    error: str = ""
    count: int = 1
    last_ms: int = 0
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchSample:
    """The last batches of a topic."""

    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    uncompressed: int = 0  # batches


@dataclass(slots=True)
class TopicFacts:
    """One topic; what could not be read is empty."""

    info: TopicInfo
    config: Mapping[str, str] = field(default_factory=dict)
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)  # high watermarks
    stable_ends: Mapping[TopicPartition, int] = field(default_factory=dict)  # for readers of committed records
    newest_ms: Mapping[TopicPartition, int] = field(default_factory=dict)  # the largest timestamp
    sizes: Mapping[TopicPartition, int] = field(default_factory=dict)  # bytes, of one replica
    open_transactions: Sequence[OpenTransaction] = ()
    sample: BatchSample = field(default_factory=BatchSample)
    refusal: str = ""  # why its offsets cannot be read

    def number(self, key: str, default: int = -1) -> int:
        """Return a setting as a number."""
        try:
            return int(self.config.get(key, default))
        except ValueError:
            return default

    @property
    def records(self) -> int:
        """Return how many offsets are kept."""
        return sum(max(0, end - self.starts.get(tp, 0)) for tp, end in self.ends.items())


@dataclass(slots=True)
class GroupFacts:
    """One group with its lag."""

    lag: GroupLag
    ages_s: Mapping[TopicPartition, float] = field(default_factory=dict)  # of the first unread record
    assignors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # that a member offers, if known


@dataclass(slots=True)
class Facts:
    """All that was gathered; `unread` says what could not be, and why."""

    now_ms: int
    health: ClusterHealth
    topics: dict[str, TopicFacts] = field(default_factory=dict)
    groups: dict[str, GroupFacts] = field(default_factory=dict)
    all_groups: Sequence[str] = ()
    group_states: Mapping[str, str] = field(default_factory=dict)
    broker_configs: dict[int, Mapping[str, str]] = field(default_factory=dict)
    quotas: Sequence[EntityQuotas] = ()
    versions: Mapping[int, Mapping[str, int]] = field(default_factory=dict)  # by broker: API -> newest version
    certificates: Mapping[int, float] = field(default_factory=dict)  # by broker: days until it expires
    unreachable: Mapping[int, str] = field(default_factory=dict)  # advertised addresses that do not answer
    clock_skews_s: Mapping[int, float] = field(default_factory=dict)  # of brokers that report their time
    events: Sequence[SeenEvent] | None = None  # None: brokers have none, or they cannot be read
    unread: dict[str, str] = field(default_factory=dict)

    @property
    def described(self) -> ClusterDescription:
        """Return the brokers of the cluster."""
        return self.health.described

    def happened(
        self, *kinds: str, group: str = "", topic: str = "", client: str = "", node: int = -1, within_s: float = 3_600
    ) -> list[SeenEvent]:
        """Return events of these kinds that concern something, the newest first."""
        chosen = [
            event
            for event in self.events or ()
            if event.kind in kinds
            and (not group or event.group == group)
            and (not topic or event.topic == topic)
            and (not client or event.client == client)
            and (node < 0 or node in {event.node, event.broker})
            and self.now_ms - max(event.time_ms, event.last_ms) <= within_s * 1000
        ]
        return sorted(chosen, key=lambda event: -max(event.time_ms, event.last_ms))

    def config(self, key: str, default: str = "") -> str:
        """Return a setting of the brokers, of the first that has it."""
        return next((config[key] for config in self.broker_configs.values() if config.get(key)), default)


def total(events: Iterable[SeenEvent]) -> int:
    """Return how often events happened."""
    return sum(event.count for event in events)
