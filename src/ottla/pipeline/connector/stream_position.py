"""Encodes a stream's position for Spark's checkpoint: offsets, and the id of each topic they belong to.

    {"version": 1, "offsets": {"web": {"0": 512, "1": 498}}, "topics": {"web": "Y3J1bWItdG9waWMtaWQ"}}

Spark compares positions as texts, so equal ones are written alike. What Spark's own Kafka source wrote
(`{"web": {"0": 512, "1": 498}}`) is understood too: a running stream moves over with its checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ottla.core.ids import TopicPartition

_VERSION = 1


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """The next offset to read of each partition."""

    offsets: Mapping[TopicPartition, int]
    ids: Mapping[str, str]
    """Empty for a topic whose id is not known."""

    def as_json(self) -> dict[str, Any]:
        """Convert to what Spark keeps: keys in order, and nothing that json would write in two ways."""
        by_topic: dict[str, dict[str, int]] = {}
        for tp in sorted(self.offsets):
            by_topic.setdefault(tp.topic, {})[str(tp.partition)] = self.offsets[tp]
        ids = {topic: self.ids[topic] for topic in sorted(by_topic) if self.ids.get(topic)}
        return {"version": _VERSION, "offsets": by_topic, "topics": ids}


def position_from_json(document: Mapping[str, Any]) -> StreamPosition:
    """Read a checkpoint's position. Raises ValueError for one that neither source wrote.

    >>> position_from_json({"web": {"0": 5}}).offsets
    {TopicPartition(topic='web', partition=0): 5}
    """
    version = document.get("version", {})
    if not isinstance(version, dict) and version != _VERSION:
        raise ValueError(f"the checkpoint's position is of version {version}; known here is {_VERSION}")
    offsets, ids = (
        (document, {}) if isinstance(version, dict) else (document.get("offsets", {}), document.get("topics", {}))
    )
    try:
        return StreamPosition(
            {
                TopicPartition(str(topic), int(partition)): int(offset)
                for topic, partitions in offsets.items()
                for partition, offset in partitions.items()
            },
            dict(ids),
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"the checkpoint's position cannot be read: {document}") from error
