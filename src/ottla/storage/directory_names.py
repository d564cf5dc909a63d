"""Builds and parses the names of the directories below a log directory, in Kafka's forms.

web-0                                            the log of a partition
web-0.<32 hex>-delete                            a deleted log, until its files are removed
web-0.<32 hex>-stray                             a log of an unknown topic, set aside
web-0.<32 hex>-future, web-0.<32 hex>-replaced   a copy of a log of another directory, and the log that it replaces
"""

from __future__ import annotations

import re
import sys
import uuid
from pathlib import PurePath
from typing import NamedTuple

from ottla.core.ids import METADATA_TOPIC, TopicPartition

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
FUTURE_SUFFIX = "-future"
REPLACED_SUFFIX = "-replaced"
NAME_CHARS_MAX = 255

_PARTITION = r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>[0-9]+)"
_LOG = re.compile(_PARTITION)
_DELETED = re.compile(r".+\.[0-9a-f]{32}-delete")
_STRAY = re.compile(_PARTITION + r"\.[0-9a-f]{32}-stray")
_MOVE = re.compile(_PARTITION + r"\.(?P<move>[0-9a-f]{32})-(?P<kind>future|replaced)")
_FOREIGN_TOPICS = frozenset({METADATA_TOPIC})  # KRaft's own log, which is none of ours


class MovedLog(NamedTuple):
    """The parts of the name of a future log, or of the log it replaces."""

    topic_partition: TopicPartition
    move_id: str
    is_replaced: bool


def parse_log_name(name: str) -> TopicPartition | None:
    """Return the partition whose log a directory of this name has; None for any other name.

    >>> parse_log_name("web-access-3"), parse_log_name("web-0.0000-stray")
    (TopicPartition(topic='web-access', partition=3), None)
    """
    return _parsed(_LOG.fullmatch(name))


def parse_partition_directory(name: str) -> TopicPartition | None:
    """Return the partition whose log a directory of this name has, set aside or not; None for any other name.

    >>> parse_partition_directory("web-0"), parse_partition_directory("ottla-copies")
    (TopicPartition(topic='web', partition=0), None)
    """
    topic_partition = _parsed(_LOG.fullmatch(name) or _STRAY.fullmatch(name) or _MOVE.fullmatch(name))
    return None if topic_partition is None or is_foreign(topic_partition) else topic_partition


def parse_moved_log(name: str) -> MovedLog | None:
    """Return the parts of the name of a future log, or of the log it replaces; None for any other name."""
    match = _MOVE.fullmatch(name)
    if match is None:
        return None
    return MovedLog(
        TopicPartition(sys.intern(match["topic"]), int(match["partition"])),
        match["move"],
        is_replaced=match["kind"] == "replaced",
    )


def is_deleted(name: str) -> bool:
    """Return whether a directory of this name has a deleted log."""
    return _DELETED.fullmatch(name) is not None


def is_stray(name: str) -> bool:
    """Return whether a directory of this name has a log that was set aside."""
    return _STRAY.fullmatch(name) is not None


def is_foreign(topic_partition: TopicPartition) -> bool:
    """Return whether a log belongs to another program: KRaft's controllers keep theirs in the same directory."""
    return topic_partition.topic in _FOREIGN_TOPICS


def renamed_directory(topic_partition: TopicPartition, identifier: uuid.UUID, suffix: str) -> str:
    """Return `<topic>-<partition>.<32 hex><suffix>`, the topic cut if the name is too long for a file system."""
    suffix = f"-{topic_partition.partition}.{identifier.hex}{suffix}"
    return topic_partition.topic[: NAME_CHARS_MAX - len(suffix)] + suffix


def future_directory_name(topic_partition: TopicPartition, move_id: uuid.UUID) -> str:
    """Return the name of a future log's directory, as in Kafka. It may be too long for a file system.

    >>> len(future_directory_name(TopicPartition("web", 0), uuid.UUID(int=0)))
    45
    """
    return f"{topic_partition}.{move_id.hex}{FUTURE_SUFFIX}"


def move_id_of(directory: PurePath) -> str:
    """Return the id of the move that a future log, or the log it replaces, belongs to."""
    moved = parse_moved_log(directory.name)
    assert moved is not None
    return moved.move_id


def _parsed(match: re.Match[str] | None) -> TopicPartition | None:
    return TopicPartition(sys.intern(match["topic"]), int(match["partition"])) if match is not None else None
