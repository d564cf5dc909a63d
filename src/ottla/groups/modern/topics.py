"""Answers the questions about topics that groups with server-side assignment ask of a cluster snapshot.

A group notices a change of its topics by a hash of their metadata (KIP-1101): id, name, number of partitions and the
racks of the replicas. The hash is ours; a group that Apache Kafka wrote gets one new group epoch when it is loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, KeysView, Mapping
from typing import NamedTuple
from uuid import UUID

from ottla.metadata_store.cluster_view import BrokerInfo, ClusterView, TopicView

NO_METADATA_HASH = 0
"""The hash of a group without topics, as in Kafka."""

_HASH_BYTES = 8


class TopicMetadata(NamedTuple):
    """Holds what an assignment of a topic's partitions depends on."""

    name: str
    topic_id: UUID
    partitions: int
    metadata_hash: int


class TopicsImage:
    """Holds the topics of one cluster snapshot. Create the next one with `followed_by`, which reuses what is equal."""

    __slots__ = ("_cache", "_racks", "_view", "version")

    def __init__(self, view: ClusterView, version: int = 1) -> None:
        self.version = version  # grows with every snapshot that has a new topic
        self._view = view
        self._racks = _racks(view.brokers)
        self._cache: dict[str, tuple[TopicView, TopicMetadata]] = {}

    def followed_by(self, view: ClusterView) -> TopicsImage:
        """Return the image of the next snapshot."""
        known = self._view.topics
        has_new_topic = view.topics is not known and any(
            name in view.topics and name not in known for name in view.changes_since(self._view).topics
        )
        image = TopicsImage(view, self.version + has_new_topic)
        if image._racks == self._racks:
            image._cache = self._cache
        return image

    @property
    def names(self) -> KeysView[str]:
        """Return the names of all topics."""
        return self._view.topics.keys()

    def get(self, name: str) -> TopicMetadata | None:
        """Return a topic, or None if it does not exist."""
        topic = self._view.topics.get(name)
        if topic is None:
            return None
        cached = self._cache.get(name)
        if cached is None or cached[0] is not topic:
            cached = self._cache[name] = (topic, self._metadata(topic))
        return cached[1]

    def name_of(self, topic_id: UUID) -> str | None:
        """Return the name of a topic, or None if it does not exist."""
        topic = self._view.topic_by_id.get(topic_id.bytes)
        return None if topic is None else topic.name

    def changed_since(self, older: TopicsImage) -> frozenset[str]:
        """Return the topics that were created, deleted or changed since an older image."""
        if older is self or (older._view.topics is self._view.topics and older._racks == self._racks):
            return frozenset()
        changed = frozenset(self._view.changes_since(older._view).topics)
        return changed if older._racks == self._racks else changed.union(self.names)

    def _metadata(self, topic: TopicView) -> TopicMetadata:
        digest = hashlib.blake2b(digest_size=_HASH_BYTES)
        digest.update(topic.topic_id.bytes)
        digest.update(len(topic.partitions).to_bytes(4, "big"))
        for part in topic.partitions:
            racks = sorted({self._racks[replica] for replica in part.replicas if replica in self._racks})
            digest.update("".join(f"{len(rack)}:{rack}" for rack in racks).encode() + b";")
        digest.update(topic.name.encode())
        return TopicMetadata(topic.name, topic.topic_id, len(topic.partitions), _signed(digest))


def group_metadata_hash(names: Iterable[str], image: TopicsImage) -> int:
    """Hash the metadata of the existing topics among `names`."""
    found = sorted(
        (topic.name, topic.metadata_hash) for topic in (image.get(name) for name in names) if topic is not None
    )
    if not found:
        return NO_METADATA_HASH
    digest = hashlib.blake2b(digest_size=_HASH_BYTES)
    for name, metadata_hash in found:
        digest.update(f"{name}:{metadata_hash};".encode())
    return _signed(digest)


def _signed(digest: hashlib.blake2b) -> int:
    return int.from_bytes(digest.digest(), "big", signed=True)


def _racks(brokers: Mapping[int, BrokerInfo]) -> dict[int, str]:
    return {node_id: broker.rack for node_id, broker in brokers.items() if broker.rack is not None}
