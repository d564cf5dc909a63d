"""Declares what a test reads of groups; apart from `groups.py`, which imports all coordinators."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.core.ids import TopicPartition
from ottla.testing.kit.assertions.lookups import UnknownGroup


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group, and the partitions that are assigned to it."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The committed offset of a group in a partition (of a share group: its start), and what is left."""

    topic: str
    partition: int
    committed: int | None
    end: int
    lag: int


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """All of a group at one moment."""

    group_id: str
    type: str  # classic, consumer or share
    state: str
    members: tuple[Member, ...]
    partitions: tuple[PartitionLag, ...]

    @property
    def lag(self) -> int:
        """Return the lag of all partitions. Raises UnknownGroup if the group has none yet: it may be joining."""
        if not self.partitions:
            raise UnknownGroup(f"group {self.group_id!r} has no committed offsets, and its members no topics yet")
        return sum(partition.lag for partition in self.partitions)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Records of a partition that a share group has in flight, in one state."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    state: str  # available, acquired, acknowledged, archiving or archived
    delivery_count: int
    member_id: str | None  # that acquired them

    @property
    def count(self) -> int:
        """Return the number of offsets."""
        return self.last_offset - self.first_offset + 1
