"""Opens everything of a broker that is on disks, in the right order: log directories, metadata store, an import.

The metadata store is in one directory: `metadata.log.dir`, or the first of `log.dirs`. Without it no topic is known, so
a broker does not start without it; any other directory may be missing. The store lists the directories that have ever
been used: a partition that is not found may be in a missing one, and an empty log in its place would lose its records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar
from uuid import UUID

from ottla.broker.config import BrokerConfig, log_dirs_of
from ottla.core.clock import Clock
from ottla.core.errors import StorageError
from ottla.core.files import FileAccess, FileSystem
from ottla.core.ids import id_text
from ottla.core.runtime import new_uuid
from ottla.metadata_store import broker_registration, znodes
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore, EmbeddedSession
from ottla.metadata_store.sqlite_file import EXPORTED_SUFFIX
from ottla.metadata_store.sqlite_file import FILE_NAME as METADATA_FILE
from ottla.metadata_store.store import Create, MetadataStore, OutcomeUnknown, Put
from ottla.storage.directories.directory_identity import (
    DirectoryOwner,
    ForeignDirectory,
    cluster_id_of,
    make_durably,
    owner_of,
)
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.directories.space_reserve import SpaceReserve
from ottla.storage.integrity.metadata_backup import FILE_NAME as BACKUP_FILE
from ottla.storage.small_files import META_PROPERTIES

if TYPE_CHECKING:  # needed at a first start only
    from ottla.broker.migration.import_from_kafka import ImportPlan

log = logging.getLogger(__name__)

OpenStore = Callable[[], Awaitable[MetadataStore]]
"""Opens a session with a metadata store that several brokers share."""

_TOPICS_NAMED_MAX = 10
_THREADS = 16
"""A journaling file system commits the fsyncs of several threads together."""


class NoUsableDirectory(Exception):
    """Reports directories with which the broker cannot start, and why."""


class OpenedStorage(NamedTuple):
    """Holds the opened log directories and the metadata store."""

    directories: LogManager
    store: MetadataStore
    missing: str  # description of the missing directories that had logs; empty if none
    is_complete: bool  # every directory that was ever used is here, and none was replaced by an empty one
    deleted_topics: frozenset[UUID]  # with deletions that were begun
    reserves: list[SpaceReserve]


def log_directories(config: BrokerConfig) -> list[Path]:
    """Return the directories of `log.dirs`. Raises NoUsableDirectory if one is named twice."""
    given = log_dirs_of(config.server)
    for at, path in enumerate(given):
        if path.resolve() in {other.resolve() for other in given[:at]}:
            raise NoUsableDirectory(f"log.dirs contains {path} twice")
    return given


def metadata_directory(config: BrokerConfig, paths: Sequence[Path]) -> Path:
    """Return the directory of the metadata store."""
    given = config.server.metadata_log_dir
    return Path(given).expanduser().absolute() if given else paths[0]


def _two_clusters(owners: Iterable[Path], cluster_id: str, store: Path, id_of_store: str) -> ForeignDirectory:
    """Return the error of directories and a metadata store of different clusters."""
    return ForeignDirectory(
        f"{_named(path / META_PROPERTIES for path in owners)} has cluster.id={cluster_id}, but the metadata "
        f"store {store} has cluster.id={id_of_store}. If both belong to this broker, write "
        f"cluster.id={id_of_store} into {META_PROPERTIES}"
    )


async def open_storage(
    config: BrokerConfig, paths: Sequence[Path], *, clock: Clock, files: FileSystem, open_store: OpenStore | None = None
) -> OpenedStorage:
    """Open directories and store; on an error nothing stays open. Locks come first, to leave other brokers alone.

    `open_store` opens the store that the brokers of a cluster share; without it the store is a file of this broker.
    Raises OSError, KafkaError, DirectoryInUse, ForeignDirectory, DuplicateLog, NoUsableDirectory.
    """
    if open_store is not None:
        return await _open_with_shared_store(config, paths, clock, files, open_store)
    place = metadata_directory(config, paths)
    owners = await asyncio.to_thread(_owners, files, paths)
    known = next((owner.cluster_id for owner in owners.values() if owner.cluster_id), None)
    found, is_new = None, _are_empty(_all_places(paths, place))
    if not _is_there(files, place / METADATA_FILE):
        check_store_directory(files, paths, place, known)
        found = None if is_new else _plan_import(config, paths, place)
    elif not _agree(owners, config.server.node_id):
        known = _cluster_of_store(place / METADATA_FILE, owners, config.server.node_id) or known
    proposed = known or id_text(new_uuid())
    has_run_here = any(_is_there(files, path / BACKUP_FILE) for path in paths) and not _is_there(
        files, place / (METADATA_FILE + EXPORTED_SUFFIX)
    )
    overrides = found.overrides if found else None
    opening = partial(LogManager.open, files, paths, clock, config.log, threads=_THREADS, topic_overrides=overrides)
    directories = await _open_off_loop(partial(opening, node_id=config.server.node_id, cluster_id=proposed))
    store = None
    try:
        _check_usable(directories, place)
        if place not in paths:
            make_durably(files, place)
        reserves = {
            directory.path: SpaceReserve(files, directory.path, directory.health) for directory in directories.opened
        }
        if place not in reserves:
            reserves[place] = SpaceReserve(files, place)
        open_file = partial(EmbeddedMetadataStore.open, place / METADATA_FILE, reserves[place].release)
        store = (await _open_off_loop(open_file)).session()
        cluster_id = await broker_registration.join_cluster(store, proposed)
        if cluster_id != proposed:
            raise _two_clusters(owners, proposed, place / METADATA_FILE, cluster_id)
        _check_node(place / METADATA_FILE, await store.children(znodes.LOG_DIRS), owners, config.server.node_id)
        if not is_new:
            await _import_from_kafka(config, paths, place, store, directories, found, has_run_here=has_run_here)
        missing, is_complete = await _missing(store, directories, config.server.node_id)
        await warn_of_absent_nodes(store, config.server.node_id)
        deleted = znodes.decode_deleted_topic_ids(await store.children(znodes.DELETED_TOPICS))
        return OpenedStorage(directories, store, missing, is_complete, deleted, list(reserves.values()))
    except BaseException:
        directories.close()
        if store is not None:
            await store.close()
        raise


async def _open_with_shared_store(
    config: BrokerConfig, paths: Sequence[Path], clock: Clock, files: FileSystem, open_store: OpenStore
) -> OpenedStorage:
    """Open the store first: it has the cluster id, which new log directories get and others must have."""
    node_id = config.server.node_id
    owners = await asyncio.to_thread(_owners, files, paths)
    known = next((owner.cluster_id for owner in owners.values() if owner.cluster_id), None)
    store = await open_store()
    directories = None
    try:
        cluster_id = await broker_registration.join_cluster(store, known or id_text(new_uuid()))
        directories = await _open_off_loop(
            partial(
                LogManager.open,
                files,
                paths,
                clock,
                config.log,
                node_id=node_id,
                cluster_id=cluster_id,
                threads=_THREADS,
            )
        )
        _check_usable(directories)
        await _check_other_nodes(store, directories, node_id)
        missing, is_complete = await _missing(store, directories, node_id, may_be_replaced=True)
        deleted = znodes.decode_deleted_topic_ids(await store.children(znodes.DELETED_TOPICS))
        reserves = [SpaceReserve(files, directory.path, directory.health) for directory in directories.opened]
        return OpenedStorage(directories, store, missing, is_complete, deleted, reserves)
    except BaseException:
        if directories is not None:
            directories.close()
        await store.close()
        raise


class _Closable(Protocol):
    def close(self) -> None: ...


_C = TypeVar("_C", bound=_Closable)


async def _open_off_loop(open_files: Callable[[], _C]) -> _C:
    """Open log directories, or the metadata store, in a thread: of thousands of partitions that takes seconds.

    A start that is stopped meanwhile waits for it: what was opened is closed again.
    """
    opening = asyncio.ensure_future(asyncio.to_thread(open_files))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        with suppress(Exception):
            (await opening).close()
        raise


# ---- Owner of the directories


def _owners(files: FileSystem, paths: Sequence[Path]) -> dict[Path, DirectoryOwner]:
    """Read the owner of each directory that has one; opening a directory refuses another owner."""
    found = {}
    for path in paths:
        try:
            owner = owner_of(files, path)
        except OSError:
            continue  # opening it reports the error
        if owner is not None:
            found[path] = owner
    return found


def _agree(owners: Mapping[Path, DirectoryOwner], node_id: int) -> bool:
    """Return whether every directory names the same cluster and this node."""
    clusters = {owner.cluster_id for owner in owners.values()}
    return len(clusters) == 1 and None not in clusters and {o.node_id for o in owners.values()} == {str(node_id)}


def _cluster_of_store(file: Path, owners: Mapping[Path, DirectoryOwner], node_id: int) -> str | None:
    """Read the cluster id from the metadata store; None if it cannot be read, which opening it reports.

    Raises ForeignDirectory if the store belongs to another node.
    """
    try:
        store = EmbeddedMetadataStore.open(file)
    except StorageError:
        return None
    try:
        nodes, cluster = store.child_names.get(znodes.LOG_DIRS, set()), store.nodes.get(znodes.CLUSTER_ID)
    finally:
        store.close()
    _check_node(file, nodes, owners, node_id)
    return znodes.decode_cluster_id(cluster.node.value) if cluster is not None else None


def _check_node(file: Path, nodes: Collection[str], owners: Mapping[Path, DirectoryOwner], node_id: int) -> None:
    """Raise ForeignDirectory if the store belongs to another node: no partition of it would have a leader here."""
    if not nodes or str(node_id) in nodes:
        return
    own = min(nodes, key=int)
    wrong = [path / META_PROPERTIES for path, owner in owners.items() if owner.node_id != own]
    write = f" and write node.id={own} into {_named(wrong)}" if wrong else ""
    raise ForeignDirectory(
        f"the metadata store {file} belongs to node {own}, but this broker has node.id={node_id}. "
        f"Start it with node.id={own}{write}"
    )


async def _check_other_nodes(store: MetadataStore, directories: LogManager, node_id: int) -> None:
    """Raise ForeignDirectory if another node of the cluster has used a directory: no partition of it would be led."""
    here = {id_text(directory.meta.directory_id): directory.path for directory in directories.opened}
    for name in await store.children(znodes.LOG_DIRS):
        node = await store.get(f"{znodes.LOG_DIRS}/{name}")
        if name == str(node_id) or node is None:
            continue
        with suppress(ValueError, znodes.MalformedNode):  # no reason for another broker not to start
            for directory_id in here.keys() & znodes.decode_log_dirs(int(name), node.value):
                path = here[directory_id]
                raise ForeignDirectory(
                    f"{path} belongs to node {name} of the cluster, but this broker has node.id={node_id}. "
                    f"Start it with node.id={name} and write node.id={name} into {path / META_PROPERTIES}"
                )


def _named(paths: Iterable[Path]) -> str:
    return " and ".join(map(str, paths))


def _is_there(files: FileAccess, path: Path) -> bool:
    try:
        return files.exists(path)
    except OSError:
        return False


def check_store_directory(files: FileSystem, paths: Sequence[Path], place: Path, known: str | None) -> None:
    """Raise NoUsableDirectory if a new store would replace one that exists elsewhere: it would lose every topic."""
    for path in paths:
        if _is_there(files, path / METADATA_FILE):
            raise NoUsableDirectory(
                f"the metadata store is in {path}, not in {place}. Name {path} first in log.dirs, or set "
                f"metadata.log.dir={path}"
            )
    if known is not None and place in paths:
        try:
            is_fresh = cluster_id_of(files, place) is None
        except OSError:
            return  # opening it reports the error
        if is_fresh:
            raise NoUsableDirectory(
                f"{place} is new, but the other log directories belong to cluster {known}. If its disk is not "
                "mounted, mount it. A new directory must not be the first of log.dirs, which holds the metadata store"
            )


def _check_usable(directories: LogManager, place: Path | None = None) -> None:
    """Raise if the broker cannot start; log the directories without which it starts."""
    unusable = directories.unusable
    if not directories.opened:
        if len(unusable) == 1:
            raise unusable[0].error
        listed = "; ".join(f"{each.path}: {each.error}" for each in unusable)
        raise NoUsableDirectory(f"no log directory is usable: {listed}")
    for each in unusable:
        if each.path == place:
            raise NoUsableDirectory(
                f"the metadata store is in {place}, which is not usable: {each.error}. Without it no topic is known"
            )
        log.error("log directory %s is offline until a restart: %s", each.path, each.error)


# ---- Import from Kafka


def _plan_import(config: BrokerConfig, paths: Sequence[Path], place: Path) -> ImportPlan | None:
    """Plan the import of what a Kafka left here. Raises ForeignDirectory before anything is changed."""
    from ottla.broker.migration.import_from_kafka import plan_import

    return plan_import(_all_places(paths, place), config)


async def _import_from_kafka(
    config: BrokerConfig,
    paths: Sequence[Path],
    place: Path,
    store: EmbeddedSession,
    directories: LogManager,
    found: ImportPlan | None,
    *,
    has_run_here: bool,
) -> None:
    """Create the topics that are on the disk in a store that was never used (broker/migration/)."""
    new = await store.get(znodes.CONTROLLER_EPOCH) is None
    if not new and await store.get(znodes.KAFKA_IMPORT) is None:
        return
    from ottla.broker.migration import import_commit

    places = _all_places(paths, place)
    if not await import_commit.is_unused(store):
        await import_commit.check_unchanged_since_import(store, places, place / METADATA_FILE)
        return
    found = found or _plan_import(config, paths, place)
    if found is not None:
        logs = {held.topic_partition: held for _, held in directories.logs()}
        await import_commit.commit_import(found, store, logs, places, node_id=config.server.node_id)
        if not found.has_metadata or has_run_here:
            log.warning("%s", _lost_settings(found, place / METADATA_FILE))


def _lost_settings(found: ImportPlan, file: Path) -> str:
    """Describe what a start without the metadata store could not restore."""
    names = [topic.name for topic in found.topics]
    listed = ", ".join(names[:_TOPICS_NAMED_MAX]) + (", ..." if len(names) > _TOPICS_NAMED_MAX else "")
    if found.has_metadata:
        what = "settings that were changed since the import from Kafka were lost"
        kept = "The topics have the settings of Kafka's metadata"
    else:
        what = "their settings were lost"
        kept = "Nothing is deleted or compacted in them (retention.ms=-1) until their settings are changed"
    return (
        f"there was no metadata store {file}, and a new one was created for {len(names)} topics ({listed}): {what}. "
        f"{kept}. Stop the broker and restore the file from a backup, or set them again with `ottla config`"
    )


def _are_empty(places: Sequence[Path]) -> bool:
    """Return whether certainly nothing is in any of them."""
    try:
        return not any(path.is_dir() and any(path.iterdir()) for path in places)
    except OSError:
        return False  # opening it reports the error


def _all_places(paths: Sequence[Path], place: Path) -> list[Path]:
    return list(dict.fromkeys((*paths, place)))


# ---- Missing directories


async def _missing(
    store: MetadataStore, directories: LogManager, node_id: int, *, may_be_replaced: bool = False
) -> tuple[str, bool]:
    """Store which directories are used; describe those that were used and are missing, and return if all are here.

    With `may_be_replaced` an empty directory at the same path takes the place of one that is lost: the replicas in it
    are fetched again from other brokers.
    """
    node = await store.get(znodes.log_dirs_path(node_id))
    known = znodes.decode_log_dirs(node_id, node.value) if node else {}
    here = _here(directories)
    if here.items() - known.items():
        await _note(store, node_id, {**known, **here})
    why = {str(path): reason for path, reason in directories.offline.items()}
    replaced = set(here.values()) if may_be_replaced else set[str]()
    absent = [path for directory_id, path in known.items() if directory_id not in here]
    gone = sorted({path for path in absent if path not in replaced})
    return "; ".join(f"{path} is missing ({why.get(path, 'it does not exist')})" for path in gone), not absent


async def warn_of_absent_nodes(store: MetadataStore, first: int, count: int = 1) -> None:
    """Log which partitions are offline if fewer brokers share the store than before (`ottla server --workers`)."""
    absent = await broker_registration.absent_nodes(store, range(first, first + count))
    if absent:
        log.warning(
            "partitions of the nodes %s are offline: start with --workers %d to serve them",
            ", ".join(map(str, absent)),
            absent[-1] - first + 1,
        )


async def forget_missing(storage: OpenedStorage, node_id: int) -> None:
    """Remove the directories that are not here any more from the store: no partition is offline without them."""
    await _note(storage.store, node_id, _here(storage.directories))


def _here(directories: LogManager) -> dict[str, str]:
    return {id_text(directory.meta.directory_id): str(directory.path) for directory in directories.opened}


async def _note(store: MetadataStore, node_id: int, known: dict[str, str]) -> None:
    path, value = znodes.log_dirs_path(node_id), znodes.encode_log_dirs(known)
    while True:
        exists = await store.get(path) is not None
        try:
            await store.commit([Put(path, value) if exists else Create(path, value)])
        except OutcomeUnknown:
            await store.sync()  # written or not: no other broker writes this node
        else:
            return
