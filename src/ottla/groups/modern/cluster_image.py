"""Holds what groups with server-side assignment need of the cluster: its topics, and the groups' own settings."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ottla.groups.modern.topics import TopicsImage
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import ClusterView

_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


class ClusterImage:
    """Follows the cluster's snapshots; one for all groups of a coordinator."""

    def __init__(self) -> None:
        self._view = ClusterView()
        self.topics = TopicsImage(self._view)

    def follow(self, view: ClusterView) -> frozenset[str]:
        """Take the next snapshot into use; returns the topics that changed."""
        older, self._view = self.topics, view
        self.topics = older.followed_by(view)
        return self.topics.changed_since(older)

    @property
    def unreadable_topics(self) -> frozenset[str]:
        """Return the topics that exist, and of which nothing is known."""
        return self._view.unreadable_topics

    def settings_of(self, group_id: str) -> Mapping[str, str]:
        """Return what is set for one group."""
        found = self._view.configs.get(znodes.GROUPS_KIND, {}).get(group_id)
        return _NO_SETTINGS if found is None else found.values
