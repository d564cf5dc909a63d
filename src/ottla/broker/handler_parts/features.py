"""Lists the features of the cluster (KIP-584) with the levels that this broker serves, for ApiVersions.

A client that sees a level expects all of it, so a row is added with the last API that the level needs.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.transactions.metadata import SERVER_VERSION


class Feature(NamedTuple):
    """Holds the supported levels of a feature, and the one in use."""

    name: str
    min_level: int
    max_level: int
    level: int


FEATURES = (
    Feature("group.version", 0, 1, 1),  # consumer groups of the new protocol (KIP-848)
    Feature("share.version", 0, 2, 2),  # share groups (KIP-932), with dead letter queues (KIP-1191)
    Feature("transaction.version", 0, SERVER_VERSION, SERVER_VERSION),
)

EPOCH = sum(feature.level for feature in FEATURES)
"""Clients keep the levels with the highest epoch they have seen, so it must grow when a level does."""
