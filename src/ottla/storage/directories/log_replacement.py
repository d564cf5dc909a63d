"""Replaces a log by its copy in another log directory (KIP-113), so that a crash at any moment leaves one good log.

    A/web-0                    B/web-0.<id>-future      the copy has all records, and all is synced
    A/web-0.<id>-replaced      B/web-0.<id>-future      A is synced: from here on the copy counts
    A/web-0.<id>-replaced      B/web-0                  B is synced: from here on it is written
    A/web-0.<other id>-delete  B/web-0

A log of this name that comes later than the second line (the broker started without B, and fetched the records again
from other brokers) has replaced both. So has any log of this name, if a power cut took the topic id of the first.

Nothing is written to either log in between. A start that finds one of the middle states completes the replacement:
`complete_replacements`. Kafka renames the copy first, so that a crash leaves two logs with the same name and its next
start refuses both.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import PurePath

from ottla.core.errors import StorageError, SyncFailed
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.directories.lost_logs import ReplacedLog
from ottla.storage.directory_names import FUTURE_SUFFIX, REPLACED_SUFFIX, move_id_of
from ottla.storage.log.future_log import has_all_of, write_small_files
from ottla.storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)


def replace_log(source: LogDirectory, target: LogDirectory, topic_partition: TopicPartition) -> PartitionLog:
    """Replace the log in `source` by its future log in `target`; returns the latter, which is the log now.

    Raises StorageError where a disk refuses, or if the copy does not have everything; then the log in `source` is used
    on, unless `source` has failed. If `target` fails when the copy has the name already, the copy is returned, which is
    offline with its directory: no log may be written that the next start does not take.
    """
    current, future = source.logs[topic_partition], target.future_logs[topic_partition]
    source.health.check()
    target.health.check()
    if not has_all_of(future, current):
        raise StorageError(f"the copy of {topic_partition} in {target.path} does not have all of its records")
    try:
        target.repair_topic_id(future, current.topic_id)
        write_small_files(future, current)
    except OSError as error:
        raise future.refused(f"copying the state of {topic_partition}", error) from error
    future.flush()
    assert not future.pending_flush, "all paths of the copy are about to change"
    new_path = target.path / str(topic_partition)
    if current.files.exists(new_path):
        raise StorageError(f"{new_path} exists already")
    aside = source.path / (future.directory.name.removesuffix(FUTURE_SUFFIX) + REPLACED_SUFFIX)
    _set_aside(source, current, aside)
    try:
        target.promote_future_log(topic_partition)
    except StorageError:
        if topic_partition in target.future_logs:  # it was not renamed
            _undo(source, current, aside)
            raise
        logger.exception(
            "%s is offline until %s can be used again: it has replaced the log", future.directory, target.path
        )
    del source.logs[topic_partition]
    future.replaces(current)
    current.moved(aside)
    if target.health.failure is None:
        source.delete_replaced_log(topic_partition, aside, current)
    return future


def _set_aside(source: LogDirectory, current: PartitionLog, aside: PurePath) -> None:
    """Rename the log, durably. Raises StorageError; then it has its name, or the directory has failed."""
    what, files = f"replacing {current.topic_partition}", current.files
    try:
        files.rename(current.directory, aside)
    except OSError as error:
        raise current.refused(what, error) from error
    try:
        files.sync_directory(source.path)
    except SyncFailed as error:
        raise source.health.fail(what, error) from error
    except OSError as error:  # it may not be durable
        _undo(source, current, aside)
        raise source.health.refused(what, error) from error


def _undo(source: LogDirectory, current: PartitionLog, aside: PurePath) -> None:
    """Use the log on: the copy has not got its name. Raises StorageError: the directory has failed then."""
    try:
        current.files.rename(aside, current.directory)
        current.files.sync_directory(source.path)
    except OSError as error:
        raise source.health.fail(f"using {current.topic_partition} on", error) from error


def complete_replacements(directories: Sequence[LogDirectory]) -> None:
    """Complete the replacements that a crash cut short. Never raises: a disk that refuses is offline then."""
    for source in directories:
        for replaced in source.replaced:
            try:
                is_complete = _complete(source, replaced, directories)
            except (OSError, StorageError) as error:
                logger.warning("the replacement of %s is not complete: %s", replaced.path, error)
            else:
                if is_complete:
                    source.lost_logs.pop(replaced.topic_partition, None)
        source.replaced = []


def _complete(source: LogDirectory, replaced: ReplacedLog, directories: Sequence[LogDirectory]) -> bool:
    """Return whether the copy was found. If not, the log stays a lost one. Raises OSError and StorageError."""
    topic_partition, move_id = replaced.topic_partition, replaced.move_id
    held = [directory.logs[topic_partition].topic_id for directory in directories if topic_partition in directory.logs]
    for target in directories:
        future = target.future_logs.get(topic_partition)
        if future is None or move_id_of(future.directory) != move_id:
            continue
        if future.topic_id in held:  # it was created again while this directory was missing
            target.delete_future_log(topic_partition)
            continue
        if topic_partition in target.corrupt_future_logs:
            continue  # neither was written since: the log may be well
        held.append(future.topic_id)
        target.promote_future_log(topic_partition)
        logger.info("%s is in %s now: the last run was replacing it", topic_partition, target.path)
    if replaced.topic_id in held or (held and replaced.topic_id == NO_TOPIC_ID):
        source.delete_replaced_log(topic_partition, replaced.path)
        return True
    logger.error(
        "%s was replaced by a copy in another log directory, and no directory that can be used has a copy that is "
        "not corrupt. Restore that directory; if it is lost, stop the broker and rename this one to %s",
        replaced.path,
        topic_partition,
    )
    return False


def remove_stale_copies(directories: Sequence[LogDirectory]) -> None:
    """Delete all but the longest where several directories have a copy of one log. Never raises."""
    copies: dict[TopicPartition, list[LogDirectory]] = {}
    for directory in directories:
        for topic_partition in directory.future_logs:
            copies.setdefault(topic_partition, []).append(directory)
    for topic_partition, held in copies.items():
        longest = max(held, key=lambda each: each.future_logs[topic_partition].end_offset)
        for directory in held:
            if directory is longest:
                continue
            try:
                directory.delete_future_log(topic_partition)
            except StorageError as error:
                logger.warning("a copy of %s that is not needed is kept: %s", topic_partition, error)
