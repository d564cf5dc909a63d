"""Opens the store of a location: a path, or a URL whose scheme names the kind of store."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from ottla.pipeline.java import cache_directory
from ottla.pipeline.lake.lake_store import LakeStore
from ottla.pipeline.lake.local_store import LocalStore
from ottla.pipeline.lake.store_settings import StoreSettings
from ottla.pipeline.locations import UnsupportedLocation, is_object_store, lake_location, local_path


def store_at(location: str | Path, settings: StoreSettings | None = None) -> LakeStore:
    """Return the store of a location, without a look at it. Raises UnsupportedLocation."""
    text = str(location)
    if not is_object_store(text):
        return LocalStore(local_path(text))
    if importlib.util.find_spec("obstore") is None:
        raise UnsupportedLocation(f"{text} is on an object store: install ottla[objects]")
    from ottla.pipeline.lake.object_store import ObjectStore

    return ObjectStore(lake_location(text, Path()), settings or StoreSettings())


def work_beside(store: LakeStore) -> Path:
    """Return the local directory for Spark's own files of a lake."""
    if isinstance(store, LocalStore):
        return store.root.with_name(store.name + "-spark")
    return cache_directory(os.environ) / "spark" / store.name
