"""Holds the settings that the state machine of a consumer group depends on; a group may have its own (KIP-848)."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ottla.groups.assignors import range_assignor, uniform
from ottla.groups.assignors.spec import Assignor
from ottla.groups.classic.settings import ClassicSettings

ASSIGNORS: dict[str, Assignor] = {uniform.NAME: uniform.assign, range_assignor.NAME: range_assignor.assign}
"""The assignors by name, the default first."""


class MigrationPolicy(Enum):
    """Lists the values of `group.consumer.migration.policy`: which groups with members may change their protocol."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def may_upgrade(self) -> bool:
        """Return whether a classic group becomes a consumer group when a member of the new protocol joins."""
        return self in {MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE}

    @property
    def may_downgrade(self) -> bool:
        """Return whether a consumer group becomes a classic one when its last member of the new protocol leaves."""
        return self in {MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE}


class ConsumerSettings(NamedTuple):
    """Holds the settings of one group."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    max_size: int = 2**31 - 1
    classic: ClassicSettings = ClassicSettings()  # of the group after a downgrade
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    assignors: tuple[str, ...] = tuple(ASSIGNORS)  # the default first
    regex_refresh_interval_ms: int = 600_000
