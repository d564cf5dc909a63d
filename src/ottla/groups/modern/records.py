"""Declares the values in `__consumer_offsets` that are the same for all groups with server-side assignment."""

from __future__ import annotations

from typing import NamedTuple

from ottla.groups.assignors.spec import Partitions


class GroupMetadata(NamedTuple):
    """Holds the value of a group's epoch."""

    epoch: int
    metadata_hash: int = 0


class TargetMetadata(NamedTuple):
    """Holds the value of the epoch of a target assignment."""

    epoch: int
    wall_ms: int = 0  # 0: unknown


class TargetMember(NamedTuple):
    """Holds the value of a member's part of the target."""

    partitions: Partitions
