"""Declares the coordinator's view of a group of any type. Offsets are kept apart from it (`offsets.py`).

The types: `classic/group.py`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ottla.core.errors import ErrorCode
from ottla.core.ids import GroupType
from ottla.internal_topics.topic_log import KeyValue


class GroupSummary(NamedTuple):
    """Holds one group of a ListGroups response."""

    group_id: str
    type: GroupType
    protocol_type: str
    state: str


class OffsetExpiry(NamedTuple):
    """Determines from when on the retention of a group's offsets counts (KIP-211)."""

    since_wall_ms: int | None = None  # the group lost its last member then; None: each offset counts from its commit


class Group(Protocol):
    """Port: a group of any type, to be read only."""

    @property
    def group_id(self) -> str:
        """Return its id, which is unique among the groups of all types."""
        ...

    @property
    def summary(self) -> GroupSummary:
        """Return its type and state."""
        ...

    @property
    def is_unused(self) -> bool:
        """Return whether it has no member and no pending write, so that it may be deleted with its last offset."""
        ...

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether members are known to consume the topic: then its offsets are not deleted."""
        ...

    def offset_expiry(self) -> OffsetExpiry | None:
        """Return when offsets of topics to which no member subscribes expire; None if they do not."""
        ...

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> ErrorCode:
        """Validate that this member may read the offsets."""
        ...

    def validate_offset_deletion(self) -> ErrorCode:
        """Validate that offsets of topics to which no member subscribes may be deleted."""
        ...

    def tombstones(self) -> list[KeyValue]:
        """Return the records that delete the group from the log."""
        ...
