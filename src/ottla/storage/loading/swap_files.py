"""Completes or removes at the start what a crash in the middle of a swap has left.

    .cleaned    being written: dropped, the old segments are all there
    .swap       whole and synced, and its `.log` renamed last: from then on it counts. What it covers is deleted, if it
                is there still, and the new files get their names. Where its `.log` is still `.cleaned` it is dropped
    .deleted    on its way out: dropped

Kafka's own leftovers look alike and mean the same, with one difference: it renames `.log.cleaned` first and the
indexes after it. So a `.swap` beside or after a `.cleaned` of Kafka's is not whole, and goes. (Ours have a token in
their names.)
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from pathlib import PurePath

from ottla.core.files import FileSystem
from ottla.records.batch_reader import read_headers
from ottla.storage.file_names import (
    CHECKSUMS_SUFFIX,
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    offset_name,
)

_NAME = re.compile(r"(?P<base>[0-9]{20})(?P<kind>\.log|\.index|\.timeindex|\.txnindex)(?P<state>|\.cleaned|\.swap)")
_OUR_CLEANED_LOG = re.compile(r"(?P<base>[0-9]{20})\.log\.[^.]+\.cleaned")
_CHUNK_BYTES = 1 << 20
logger = logging.getLogger(__name__)


def complete_swaps(files: FileSystem, directory: PurePath, names: Collection[str]) -> None:
    """Bring what is in a partition's directory to one side of its swap. Doing it twice changes nothing more.

    Nothing is synced: what reaches the disk does so in this order, and what does not is done again. Raises OSError.
    """
    matches = [match for name in names if (match := _NAME.fullmatch(name)) is not None]
    begun = {int(match["base"]) for match in matches if match["state"] == CLEANED_SUFFIX}
    plain = {(int(match["base"]), match["kind"]) for match in matches if not match["state"]}
    swaps = {(int(match["base"]), match["kind"]) for match in matches if match["state"] == SWAP_SUFFIX}
    # Of ours `.log` gets its `.swap` last: before that the others are the new segment's, and the log is the old one's.
    unready = {int(match["base"]) for name in names if (match := _OUR_CLEANED_LOG.fullmatch(name)) is not None}
    for base, kind in sorted(swaps):
        is_ours_unready = base in unready and (base, LOG_SUFFIX) not in swaps
        if is_ours_unready or (begun and base >= min(begun)):
            files.remove(_path(directory, base, kind, SWAP_SUFFIX))
            swaps.discard((base, kind))
    for base, kind in sorted(swaps):
        if kind == LOG_SUFFIX:
            _make_way(files, directory, base, plain)
    for suffix in SEGMENT_SUFFIXES:  # `.log` first: an index by itself is no sign that something is left to do
        for base, kind in sorted(swaps):
            if kind == suffix:
                files.rename(_path(directory, base, kind, SWAP_SUFFIX), _path(directory, base, kind))


def _make_way(files: FileSystem, directory: PurePath, base: int, plain: set[tuple[int, str]]) -> None:
    """Delete the segments that a compacted one replaces: those that begin where its batches are."""
    end = base
    path = _path(directory, base, LOG_SUFFIX, SWAP_SUFFIX)
    file = files.open(path)
    try:
        for batch in read_headers(file, 0, file.size(), chunk_bytes=_CHUNK_BYTES):
            end = batch.header.last_offset + 1
    finally:
        file.close()
    logger.info("a compaction that a crash cut short is finished: %s", path)
    for old, kind in sorted(plain):
        # The old `.log` of the same name is replaced in one step: there is never none.
        if base < old < end or (old == base and kind != LOG_SUFFIX):
            files.remove(_path(directory, old, kind))
            files.remove(_path(directory, old, CHECKSUMS_SUFFIX))


def _path(directory: PurePath, base: int, kind: str, state: str = "") -> PurePath:
    return directory / offset_name(base, kind + state)
