"""Declares the events of a share group's state machine (`machine.py`) and its answers (KIP-932). Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol
from uuid import UUID

from ottla.groups.assignors.spec import Partitions
from ottla.groups.classic import events as classic
from ottla.groups.machine import CommonEvent
from ottla.groups.modern.events import TopicsChanged


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHeartbeat:
    """ShareGroupHeartbeat. None: unchanged since the last heartbeat."""

    member_id: str
    member_epoch: int
    rack_id: str | None = None
    topics: frozenset[str] | None = None
    client_id: str = ""
    client_host: str = ""


@dataclass(frozen=True, slots=True)
class StatesInitialized:
    """These partitions have a share state now."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class StatesDeleted:
    """The share states of these topics are deleted."""

    topics: frozenset[UUID]


@dataclass(frozen=True, slots=True)
class OffsetsAltered:
    """Offsets are about to be altered: the group's epoch, which is their state epoch, grows. It creates a new group."""


Event = (
    ShareHeartbeat
    | StatesInitialized
    | StatesDeleted
    | OffsetsAltered
    | TopicsChanged
    | classic.Join
    | classic.Sync
    | classic.Heartbeat
    | classic.Leave
    | CommonEvent
)


class StateSummary(NamedTuple):
    """Holds the place of a share partition: -1 as start offset before it is used."""

    start_offset: int
    leader_epoch: int
    delivery_complete_count: int


class ShareStates(Protocol):
    """Port: the states of share partitions, which the share coordinator keeps. All methods raise KafkaError."""

    async def initialize(
        self, group_id: str, topic_id: UUID, partition: int, state_epoch: int, start_offset: int
    ) -> None:
        """Begin or reset a state. -1 as start offset: the group's setting determines it."""
        ...

    async def delete(self, group_id: str, topic_id: UUID, partition: int) -> None:
        """Delete a state."""
        ...

    async def summary(self, group_id: str, topic_id: UUID, partition: int) -> StateSummary:
        """Read the place of a share partition."""
        ...
