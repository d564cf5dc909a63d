"""Sets when the garbage collector of a broker's process runs: a collection of the oldest objects holds the event loop.

It takes about 0.4 microseconds for each object: 26 to 63 ms with 1,000 partitions. Reference counts free almost
everything; connections, requests and refusals have no cycles (docs/design/requests.md). So the oldest objects are
collected only while they are few, and what survives is excluded from later collections.

CPython 3.14 collects the oldest objects piece by piece and ignores their threshold: there its own collector goes on.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEVER = 1 << 30
_COLLECTIONS_MAX = 3
"""After so many collections of the middle generation, each of which adds up to 7,000 objects, the oldest are many."""


@contextmanager
def paused() -> Iterator[None]:
    """Import modules or load logs without collections: these make many objects, and almost all of them live on."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def take_over() -> None:
    """Leave collections of the oldest objects to `collect`; the younger ones run as CPython runs them.

    For a process that is a broker and nothing else: a program that embeds one keeps its own collector.
    """
    gc.collect()
    gc.freeze()
    youngest, middle, _ = gc.get_threshold()
    gc.set_threshold(youngest, middle, _NEVER)


def collect() -> None:
    """Collect the objects that were made since the last call, and exclude those that live on.

    Where many were made at once, as by a request that creates thousands of partitions, they are excluded unseen: cycles
    among them stay until the process ends.
    """
    if not _is_taken_over():
        return
    if gc.get_count()[2] > _COLLECTIONS_MAX:
        exclude_present_objects()
    gc.collect()
    gc.freeze()


def exclude_present_objects() -> None:
    """Exclude the objects that exist from later collections, after many were made that live on."""
    if _is_taken_over():
        gc.collect(1)
        gc.freeze()


def _is_taken_over() -> bool:
    """Return whether the threshold is ours; never where CPython ignores it."""
    return gc.get_threshold()[2] == _NEVER
