"""Reads and writes `meta.properties`, which names the owner of a log directory."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from pathlib import PurePath
from typing import NamedTuple

from ottla.core.files import FileSystem, replace_file
from ottla.core.ids import id_text, parse_id
from ottla.storage.integrity.metadata_backup import MetadataBackup, backup_of
from ottla.storage.small_files import META_PROPERTIES, MetaProperties, meta_text, parse_meta


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
    """Read or write `meta.properties`. Raises ForeignDirectory if it names another broker or cluster, or is corrupt."""
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
    ours = {"cluster.id": cluster_id, "node.id": str(node_id)}
    node = fields.get("node.id") or fields.get("broker.id") or ""
    theirs = {"cluster.id": fields.get("cluster.id"), "node.id": node if node.isdecimal() else None}
    if lacking := [key for key in ours if not theirs[key]]:
        raise ForeignDirectory(
            f"{file} is corrupt, it has no valid {' and no valid '.join(lacking)}. If this directory belongs to this "
            f"broker, write {' and '.join(f'{key}={ours[key]}' for key in lacking)} into the file"
        )
    for key, value in ours.items():
        if theirs[key] != value:
            start = f"Start the broker with node.id={theirs[key]}, or name another directory in log.dirs. "
            raise ForeignDirectory(
                f"{file} has {key}={theirs[key]}, but this broker has {key}={value}. "
                f"{start if key == 'node.id' else ''}Only if the directory belongs to this broker and the file is "
                f"wrong, write {key}={value} into it"
            )
    if "directory.id" not in fields or fields.get("version") != "1":  # as ZooKeeper's brokers wrote it
        return MetaProperties(cluster_id, node_id, new_id())
    try:
        return MetaProperties(cluster_id, node_id, parse_id(fields["directory.id"]))
    except ValueError:
        raise ForeignDirectory(
            f"{file} is corrupt, its directory.id cannot be read. Remove the line, and the directory gets a new id"
        ) from None


class DirectoryOwner(NamedTuple):
    """The cluster and the node that a `meta.properties` names; None for each that it does not name."""

    cluster_id: str | None
    node_id: str | None


def owner_of(files: FileSystem, path: PurePath) -> DirectoryOwner | None:
    """Read the owner of a directory before it is opened; None for a new one. Raises OSError."""
    text = MetadataBackup.read(files, path).text(META_PROPERTIES).text
    if text is None and not files.exists(path / META_PROPERTIES):
        return None
    fields = parse_meta(text or "")
    return DirectoryOwner(fields.get("cluster.id") or None, fields.get("node.id") or fields.get("broker.id") or None)


def cluster_id_of(files: FileSystem, path: PurePath) -> str | None:
    """Read the cluster id of a directory before it is opened; None for a new one."""
    owner = owner_of(files, path)
    return owner.cluster_id if owner is not None else None


def make_durably(files: FileSystem, path: PurePath) -> None:
    """Create a directory durably: a power cut does not remove it with the files that are synced inside."""
    missing = [at for at in (path, *path.parents) if not files.exists(at)]
    files.make_directory(path)
    for made in missing:
        with contextlib.suppress(PermissionError):  # a parent that may be passed through but not read
            files.sync_directory(made.parent)
