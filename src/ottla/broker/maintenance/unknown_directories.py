"""Finds and removes the directories of partitions that belong to no topic of the cluster, for a stopped broker.

A broker keeps such directories for ever: a lost or restored metadata store does not know topics whose records are still
wanted. Only `ottla log remove-unknown` removes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from ottla.core.files import FileSystem
from ottla.core.ids import id_text, may_be_topic_id
from ottla.metadata_store.cluster_view import ClusterView
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore
from ottla.metadata_store.metadata_cache import MetadataCache
from ottla.metadata_store.sqlite_file import FILE_NAME as METADATA_FILE
from ottla.storage.directory_names import STRAY_SUFFIX, parse_partition_directory
from ottla.storage.small_files import LOCK, PARTITION_METADATA, parse_partition_metadata, text_or_none


class UnknownDirectory(NamedTuple):
    """A partition's directory that belongs to no topic of the cluster."""

    path: Path
    topic: str
    partition: int
    topic_id: str
    size_bytes: int


class CannotDecide(Exception):
    """Reports in one line why the known topics cannot be determined."""


def unknown_directories(files: FileSystem, directories: Sequence[Path], *, remove: bool) -> list[UnknownDirectory]:
    """List the directories of unknown topics and, if asked, remove them.

    `directories` include the one with the metadata store. Raises CannotDecide, KafkaError and OSError.
    """
    store = next((path / METADATA_FILE for path in directories if files.exists(path / METADATA_FILE)), None)
    if store is None:
        raise CannotDecide(
            f"there is no {METADATA_FILE} in {directories[0]}, so the known topics cannot be determined. Name the "
            "directory of the metadata store too (metadata.log.dir, or the first of log.dirs)"
        )
    with ExitStack() as held:
        for directory in directories:
            try:
                held.callback(files.lock(directory / LOCK).release)
            except BlockingIOError:
                raise CannotDecide(f"{directory} is in use. Stop its broker first") from None
        view = asyncio.run(_read_view(store))
        found = [unknown for directory in directories for unknown in _unknown_in(files, directory, view)]
        if remove:
            for unknown in found:
                files.remove_tree(unknown.path)
            for directory in {unknown.path.parent for unknown in found}:
                files.sync_directory(directory)
        return found


async def _read_view(store: Path) -> ClusterView:
    session = EmbeddedMetadataStore.open(store).session()
    try:
        view = await MetadataCache(session).load()
    finally:
        await session.close()
    if not view.controller_epoch:
        raise CannotDecide(f"no broker has used the metadata store {store} yet. Start the broker once and stop it")
    if view.unreadable_topics:
        raise CannotDecide(
            f"the metadata store {store} has malformed nodes of {', '.join(sorted(view.unreadable_topics))}"
        )
    return view


def _unknown_in(files: FileSystem, directory: Path, view: ClusterView) -> Iterator[UnknownDirectory]:
    for name in files.names_in(directory):
        path, partition = directory / name, parse_partition_directory(name)
        if partition is None or not files.is_directory(path):
            continue
        topic_id = parse_partition_metadata(text_or_none(files, path / PARTITION_METADATA))
        topic = view.topics.get(partition.topic)
        is_used = not name.endswith(STRAY_SUFFIX) and view.partition(*partition) is not None
        if topic is not None and is_used and may_be_topic_id(topic_id, topic.topic_id):
            continue
        size = sum(files.size_of(path / each) for each in files.names_in(path))
        yield UnknownDirectory(path, partition.topic, partition.partition, id_text(topic_id), size)
