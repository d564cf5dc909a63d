"""Holds one member of a consumer group (KIP-848). Immutable: the machine replaces it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias
from uuid import UUID

from ottla.groups.assignors.spec import Partitions

AssignedPartitions: TypeAlias = Mapping[UUID, Mapping[int, int]]
"""Partitions by topic id, each with the epoch in which the member got it (KIP-1251). No topic is empty."""


class MemberState(Enum):
    """Lists the states of a member's assignment; the values are those of Kafka's records."""

    STABLE = 0
    """It has its part of the target, or its part of an older one and has not reported since."""

    UNREVOKED_PARTITIONS = 1
    """It must release partitions before it gets others."""

    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that other members have not released."""

    UNKNOWN = 127
    """Kafka wrote a state that this version does not know."""


@dataclass(frozen=True, slots=True)
class ClassicProtocol:
    """Holds what a member of the classic protocol sent in JoinGroup; `protocols` are (name, metadata)."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """Holds one member: what it asked for, and what it has."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topics: frozenset[str] = frozenset()
    regex: str = ""  # empty: none
    assignor: str | None = None
    classic: ClassicProtocol | None = None
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: AssignedPartitions = field(default_factory=dict)
    pending_revocation: AssignedPartitions = field(default_factory=dict)

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Return whether it has its part of the target of this epoch."""
        return self.state is MemberState.STABLE and self.epoch == target_epoch


def without_epochs(assigned: AssignedPartitions) -> Partitions:
    """Return the partitions alone."""
    return {topic_id: frozenset(partitions) for topic_id, partitions in assigned.items()}
