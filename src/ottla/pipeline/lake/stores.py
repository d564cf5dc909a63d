"""Opens the store of a location: a path, or a URL whose scheme names the kind of store."""

from __future__ import annotations

from pathlib import Path

from ottla.pipeline.lake.lake_store import LakeStore
from ottla.pipeline.lake.local_store import LocalStore
from ottla.pipeline.locations import local_path


def store_at(location: str | Path) -> LakeStore:
    """Return the store of a location, without a look at it. Raises UnsupportedLocation."""
    return LocalStore(local_path(str(location)))


def work_beside(store: LakeStore) -> Path:
    """Return the local directory for Spark's own files of a lake."""
    assert isinstance(store, LocalStore)
    return store.root.with_name(store.name + "-spark")
