"""Finds the logs that the checkpoint files of a directory name, and whose directories are missing."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from pathlib import PurePath
from typing import NamedTuple

from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.storage.directories.previous_run import PreviousRun
from ottla.storage.integrity.metadata_backup import BackedUpFile, MetadataBackup
from ottla.storage.small_files import PARTITION_METADATA, parse_partition_metadata


class ReplacedLog(NamedTuple):
    """The directory of a log that a future log of the same move replaces: a crash came before it was deleted."""

    topic_partition: TopicPartition
    move_id: str
    path: PurePath
    topic_id: uuid.UUID


class LostLog(NamedTuple):
    """The entries of the checkpoint files about a log whose directory is missing."""

    topic_id: uuid.UUID
    recovery_point: int
    log_start_offset: int
    high_watermark: int
    cleaned_offset: int | None  # None if the cleaner's checkpoint does not name it
    metadata: BackedUpFile | None  # of partition.metadata


def find_lost_logs(
    held: Collection[TopicPartition], replaced: Sequence[ReplacedLog], backup: MetadataBackup, previous: PreviousRun
) -> dict[TopicPartition, LostLog]:
    """Return the logs that are not held; those that were replaced by copies are lost until the copies are found."""
    topic_ids = {log.topic_partition: log.topic_id for log in replaced}
    logs: dict[TopicPartition, LostLog] = {}
    for topic_partition in dict.fromkeys([*previous.recovery_points, *topic_ids]):
        if topic_partition in held:
            continue
        metadata = backup.entries.get(f"{topic_partition}/{PARTITION_METADATA}")
        topic_id = topic_ids.get(topic_partition)
        if topic_id in {None, NO_TOPIC_ID} and metadata is not None:
            topic_id = parse_partition_metadata(metadata.text)
        if topic_id is not None:
            logs[topic_partition] = LostLog(
                topic_id,
                previous.recovery_points.get(topic_partition, 0),
                previous.log_starts.get(topic_partition, 0),
                previous.high_watermarks.get(topic_partition, 0),
                previous.cleaned.get(topic_partition),
                metadata,
            )
    return logs
