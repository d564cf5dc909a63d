"""What Apache Kafka left in a data directory about its cluster: the metadata log, its snapshots, the bootstrap file.

Nothing is written here. Kafka's metadata directory is the first log directory unless `metadata.log.dir` says otherwise,
so all that are given are looked at. Of a log without a snapshot the whole is read, otherwise the newest whole snapshot
and what follows it; a log that was never begun speaks through `bootstrap.checkpoint`, from which Kafka would begin it.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ottla.coordination.kraft_batches import is_whole_snapshot, values
from ottla.coordination.kraft_image import KraftImage
from ottla.coordination.kraft_records import MalformedMetadata

METADATA_LOG = "__cluster_metadata-0"
BOOTSTRAP = "bootstrap.checkpoint"
_SEGMENT = re.compile(r"(\d{20})\.log")
_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


class UnreadableMetadata(Exception):
    """A metadata log that is not as any Kafka known here writes it."""


class Trace(NamedTuple):
    """The end of a metadata log: another trace means that a Kafka has run since."""

    file: str
    size: int


def read_image(directories: Sequence[Path]) -> KraftImage | None:
    """The cluster as Kafka last had it; None where there is no metadata of a KRaft Kafka. Raises UnreadableMetadata."""
    for directory in directories:
        log = directory / METADATA_LOG
        if log.is_dir():
            image = _replayed(log)
            if image is not None:
                return image
    for directory in directories:
        if (directory / BOOTSTRAP).is_file():
            image = KraftImage()
            _replay(image, directory / BOOTSTRAP)
            return image
    return None


def trace(directories: Sequence[Path]) -> Trace | None:
    """Where the metadata log ends now, by the names and sizes of its files alone."""
    for directory in directories:
        segments = _numbered(directory / METADATA_LOG, _SEGMENT)
        if segments:
            return Trace(segments[-1].name, segments[-1].stat().st_size)
    return None


def _numbered(log: Path, pattern: re.Pattern[str]) -> list[Path]:
    """The files of a kind in the log's order."""
    return sorted(path for path in log.iterdir() if pattern.fullmatch(path.name)) if log.is_dir() else []


def _replayed(log: Path) -> KraftImage | None:
    """The image of a metadata log; None if nothing was ever written to it."""
    image, next_offset = KraftImage(), 0
    for path in reversed(_numbered(log, _SNAPSHOT)):
        if is_whole_snapshot(_mapped(path)):
            _replay(image, path)
            next_offset = int(path.name[:20])
            break
    segments = _numbered(log, _SEGMENT)
    read = next_offset > 0
    for at, path in enumerate(segments):
        if at + 1 == len(segments) or int(segments[at + 1].name[:20]) > next_offset:
            read |= _replay(image, path, from_offset=next_offset)
    return image if read else None


def _replay(image: KraftImage, path: Path, *, from_offset: int = 0) -> bool:
    """Take a file's records into account; whether there were any."""
    read = False
    try:
        for _, value in values(_mapped(path), from_offset=from_offset):
            image.replay(value)
            read = True
    except MalformedMetadata as error:
        raise UnreadableMetadata(f"Kafka's metadata in {path} cannot be read: {error}") from error
    return read


def _mapped(path: Path) -> memoryview:
    """A file's bytes, paged in as they are read (Kafka's metadata segments grow to a gigabyte) and let go unasked."""
    with path.open("rb") as file:
        empty = not path.stat().st_size
        return memoryview(b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
