"""Reads the cluster metadata that Apache Kafka left in a data directory: metadata log, snapshots, bootstrap file.

Nothing is written here. Kafka's metadata directory is the first log directory unless `metadata.log.dir` is set, so all
given directories are searched. A log without a snapshot is read from its start, otherwise from the newest complete
snapshot on; for a log that was never started `bootstrap.checkpoint` is read, from which Kafka would start it.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ottla.core.ids import METADATA_TOPIC
from ottla.metadata_store.kraft_batches import is_whole_snapshot, values
from ottla.metadata_store.kraft_image import KraftImage
from ottla.metadata_store.kraft_records import MalformedMetadata

METADATA_LOG = f"{METADATA_TOPIC}-0"
BOOTSTRAP = "bootstrap.checkpoint"
_SEGMENT = re.compile(r"(\d{20})\.log")
_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


class UnreadableMetadata(Exception):
    """Reports a metadata log that no Kafka version known here writes."""


class MetadataLogEnd(NamedTuple):
    """Identifies the end of a metadata log: another end means that a Kafka has run since."""

    file: str
    size: int


def read_image(directories: Sequence[Path]) -> KraftImage | None:
    """Read the cluster's last state; None if there is no KRaft metadata. Raises UnreadableMetadata."""
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


def metadata_log_end(directories: Sequence[Path]) -> MetadataLogEnd | None:
    """Find where the metadata log ends now, from the names and sizes of its files alone."""
    for directory in directories:
        segments = _numbered(directory / METADATA_LOG, _SEGMENT)
        if segments:
            return MetadataLogEnd(segments[-1].name, segments[-1].stat().st_size)
    return None


def _numbered(log: Path, pattern: re.Pattern[str]) -> list[Path]:
    """List the files of one kind in the order of the log."""
    return sorted(path for path in log.iterdir() if pattern.fullmatch(path.name)) if log.is_dir() else []


def _replayed(log: Path) -> KraftImage | None:
    """Replay a metadata log; None if nothing was ever written to it."""
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
    """Apply the records of a file to the image and return whether there were any."""
    read = False
    try:
        for _, value in values(_mapped(path), from_offset=from_offset):
            image.replay(value)
            read = True
    except MalformedMetadata as error:
        raise UnreadableMetadata(f"Kafka's metadata in {path} cannot be read: {error}") from error
    return read


def _mapped(path: Path) -> memoryview:
    """Map a file, so that it is paged in as it is read: Kafka's metadata segments grow to a gigabyte."""
    with path.open("rb") as file:
        empty = not path.stat().st_size
        return memoryview(b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
