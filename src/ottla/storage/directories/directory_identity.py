"""Whose log directory it is: `meta.properties`, read or written when a directory is opened."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from pathlib import PurePath

from ottla.core.files import FileSystem, replace_file
from ottla.core.ids import id_text, parse_id
from ottla.storage.checkpoint_files import META_PROPERTIES, MetaProperties, meta_text, parse_meta
from ottla.storage.integrity.metadata_backup import MetadataBackup, backup_of


class ForeignDirectory(Exception):
    """The directory belongs to another broker or another cluster."""


def identity(
    backup: MetadataBackup,
    path: PurePath,
    files: FileSystem,
    *,
    now_ms: int,
    node_id: int,
    cluster_id: str,
    new_id: Callable[[], uuid.UUID],
) -> MetaProperties:
    """Read or write `meta.properties`. Raises ForeignDirectory where it names another broker or cluster, or nothing."""
    file = path / META_PROPERTIES
    text, is_certain, was_restored = backup.text(META_PROPERTIES)
    if is_certain or files.exists(file):
        meta = _identity_in(file, text or "", node_id=node_id, cluster_id=cluster_id, new_id=new_id)
    else:
        meta = MetaProperties(cluster_id, node_id, new_id())
    if not text or was_restored or id_text(meta.directory_id) not in text:
        replace_file(files, file, meta_text(meta, now_ms=now_ms).encode())
    copy = backup_of(files, file)
    if copy is not None:
        backup.entries[META_PROPERTIES] = copy
    return meta


def _identity_in(
    file: PurePath, text: str, *, node_id: int, cluster_id: str, new_id: Callable[[], uuid.UUID]
) -> MetaProperties:
    fields = parse_meta(text)
    for key, ours in (("cluster.id", cluster_id), ("node.id", str(node_id))):
        theirs = fields.get(key) or (fields.get("broker.id") if key == "node.id" else None)
        if theirs is None:
            raise ForeignDirectory(
                f"{file} is damaged, it has no {key}: if this is the broker's own directory, write {key}={ours} into it"
            )
        if theirs != ours:
            raise ForeignDirectory(f"{file} says {key}={theirs}, but this broker has {key}={ours}")
    if "directory.id" not in fields or fields.get("version") != "1":  # as ZooKeeper's brokers wrote it
        return MetaProperties(cluster_id, node_id, new_id())
    try:
        return MetaProperties(cluster_id, node_id, parse_id(fields["directory.id"]))
    except ValueError:
        raise ForeignDirectory(
            f"{file} is damaged, its directory.id cannot be read: take the line away and it gets a new one"
        ) from None


def cluster_id_of(files: FileSystem, path: PurePath) -> str | None:
    """The cluster a directory belongs to, before it is opened; None for a new one."""
    return parse_meta(MetadataBackup.read(files, path).text(META_PROPERTIES).text or "").get("cluster.id")


def make_durably(files: FileSystem, path: PurePath) -> None:
    """Make a directory such that a power cut does not take it away with all that will be synced inside."""
    missing = [at for at in (path, *path.parents) if not files.exists(at)]
    files.make_directory(path)
    for made in missing:
        with contextlib.suppress(PermissionError):  # a parent that may be passed through but not read
            files.sync_directory(made.parent)
