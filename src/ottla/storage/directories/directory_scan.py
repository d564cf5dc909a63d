"""Finds the logs in a log directory by the names of the directories in it."""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple

from ottla.core.files import FileSystem
from ottla.core.ids import TopicPartition
from ottla.storage.directories.lost_logs import ReplacedLog
from ottla.storage.directory_names import is_deleted, is_foreign, parse_log_name, parse_moved_log
from ottla.storage.loading.found_log import FoundLog
from ottla.storage.small_files import PARTITION_METADATA, parse_partition_metadata, text_or_none


class DirectoryScan(NamedTuple):
    """The directories of a log directory, by kind."""

    logs: list[FoundLog]
    replaced: list[ReplacedLog]
    deleted: list[PurePath]  # to be removed: of deleted logs, and of moves that were cancelled


def scan_directory(files: FileSystem, path: PurePath) -> DirectoryScan:
    """List the directories in a log directory. Raises OSError."""
    scan = DirectoryScan([], [], [])
    all_names = files.names_in(path)
    held, copied = set(all_names), set[TopicPartition]()
    for name in all_names:
        directory = path / name
        if is_deleted(name):
            scan.deleted.append(directory)
        elif (moved := parse_moved_log(name)) is not None:
            topic_partition = moved.topic_partition
            if moved.is_replaced:
                topic_id = parse_partition_metadata(text_or_none(files, directory / PARTITION_METADATA))
                scan.replaced.append(ReplacedLog(topic_partition, moved.move_id, directory, topic_id))
            elif str(topic_partition) in held or topic_partition in copied:  # of a move that was cancelled
                scan.deleted.append(directory)
            else:
                copied.add(topic_partition)
                scan.logs.append(FoundLog(topic_partition, directory, is_future=True))
        elif (log := parse_log_name(name)) is not None and not is_foreign(log) and files.is_directory(directory):
            scan.logs.append(FoundLog(log, directory, is_future=name != str(log)))
    return scan
