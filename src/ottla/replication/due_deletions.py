"""Deletes the logs of partitions that this broker serves no longer.

That a topic is missing from a snapshot is no reason to delete records: without the note of its deletion the log is
kept, and served again if the topic comes back.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection

from ottla.core.errors import StorageError
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.log.partition_log import PartitionLog

log = logging.getLogger(__name__)


class LogDeletions:
    """The logs that are to be deleted, and those that wait for the note of their topic's deletion."""

    def __init__(self, noted_topics: Collection[uuid.UUID]) -> None:
        self.noted_topics = set(noted_topics)  # ids of topics whose deletion is noted in the store
        self._waiting: dict[uuid.UUID, list[tuple[LogDirectory, PartitionLog]]] = {}  # logs of topics without a note
        self._due: list[tuple[LogDirectory, PartitionLog]] = []  # also where the disk refused

    def note(self, topic_ids: Collection[uuid.UUID]) -> None:
        """Delete the logs of topics whose deletion is noted only now, too."""
        self.noted_topics.update(topic_ids)
        for topic_id in [identifier for identifier in self._waiting if identifier in topic_ids]:
            self._due += self._waiting.pop(topic_id)

    def completed(self, topic_ids: Collection[uuid.UUID]) -> None:
        """Forget the notes of topics that have no log any more."""
        self.noted_topics.difference_update(topic_ids)

    def add(self, directory: LogDirectory, gone: PartitionLog) -> None:
        """Delete a log with the next call of `run`."""
        self._due.append((directory, gone))

    def add_of_missing_topic(self, directory: LogDirectory, gone: PartitionLog, topic_id: uuid.UUID) -> None:
        """Delete the log of a topic that is missing from the snapshot once its deletion is noted."""
        if topic_id in self.noted_topics:
            self._due.append((directory, gone))
        elif topic_id == NO_TOPIC_ID:
            _set_aside(directory, gone.topic_partition)  # another topic of this name would take it
        else:
            self._waiting.setdefault(topic_id, []).append((directory, gone))

    def topic_is_back(self, topic_id: uuid.UUID) -> None:
        """Keep the logs of a topic that is served again."""
        self._waiting.pop(topic_id, None)

    def run(self) -> bool:
        """Delete what is due; return False if the disk refused some of it, which remains due."""
        logs, self._due = self._due, []
        for directory, gone in logs:
            if directory.health.failure is not None:
                continue  # an offline directory keeps it: the next start knows that its topic is gone
            try:
                directory.delete(gone)
            except StorageError:
                self._due.append((directory, gone))
        return not self._due


def _set_aside(directory: LogDirectory, topic_partition: TopicPartition) -> None:
    try:
        aside = directory.set_aside_log(topic_partition)
    except StorageError:
        return  # the directory has failed
    log.warning("%s is not known to be deleted; its log is kept as %s", topic_partition, aside)
