"""Declares what a server-side assignor gets and returns (KIP-848): members with their subscriptions, and partitions.

An assignor is a pure function. The group's type decides whether a partition may have several owners: those of consumer
groups give each partition to one member, those of share groups may give it to many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias
from uuid import UUID

Partitions: TypeAlias = Mapping[UUID, frozenset[int]]
"""Partitions by topic id. No topic has an empty set."""

NO_PARTITIONS: Partitions = {}


class MemberSpec(NamedTuple):
    """Holds one member: the existing topics that it subscribes to, and its partitions of the current target."""

    topics: frozenset[UUID]
    assigned: Partitions = NO_PARTITIONS
    instance_id: str | None = None
    rack_id: str | None = None


class GroupSpec(NamedTuple):
    """Holds a group: its members, and the number of partitions of every topic that one of them subscribes to."""

    members: Mapping[str, MemberSpec]
    partitions: Mapping[UUID, int]

    @property
    def is_homogeneous(self) -> bool:
        """Return whether all members subscribe to the same topics."""
        return len({member.topics for member in self.members.values()}) <= 1


TargetAssignment: TypeAlias = dict[str, Partitions]
"""The target assignment of every member."""

Assignor: TypeAlias = Callable[[GroupSpec], TargetAssignment]
