"""Keeps checksums of a sealed segment's files beside them, in `<20 digits>.sums`.

A batch's checksum leaves out its base offset, length, leader epoch and magic. Its neighbours reveal most flips there
(`range_verifier.py`), but not a base offset moved into a gap that compaction has left; and the indexes have no checksum
at all. A sealed segment does not change until it is cleaned, truncated or deleted, so its bytes can be compared with
what was written: one CRC-32C for each block of the log, and one for each index.

The scrubber writes the file after it has verified the segment. It is valid for a file of the size and time of
modification noted in it, and ignored for one that Kafka, or a copying program, has written since. Kafka ignores files
whose names it does not know. The file is one line with a CRC-32C of the rest and one of JSON.
"""

from __future__ import annotations

import base64
import json
import sys
from array import array
from collections.abc import Iterator
from pathlib import PurePath
from typing import NamedTuple

from ottla.core.checksums import crc32c
from ottla.core.files import File, FileAccess, FileSystem, read_file, replace_file
from ottla.storage.file_names import CHECKSUMS_SUFFIX
from ottla.storage.integrity.metadata_backup import BackedUpFile

BLOCK_BYTES = 128 << 10
"""Small, so that a seek reads little; large enough that the checksums of a gigabyte take 32 KiB."""

_VERSION = 0


class Block(NamedTuple):
    """A range of the log that has one checksum."""

    start: int
    end: int


class BlockChecksums(NamedTuple):
    """The checksums of one sealed segment and its indexes."""

    log_bytes: int
    log_modified_ns: int
    blocks: array[int]
    indexes: dict[str, BackedUpFile]  # by suffix; an index that is not there has none

    def first_bad(self, file: File, start: int, end: int) -> Block | None:
        """Find the first block between two positions that does not match; blocks are read whole."""
        last = min(-(-end // BLOCK_BYTES), len(self.blocks)) if start < end else 0
        for number in range(start // BLOCK_BYTES, last):
            at = number * BLOCK_BYTES
            size = min(BLOCK_BYTES, self.log_bytes - at)
            data = file.read_at(at, size)
            if len(data) < size or crc32c(data) != self.blocks[number]:
                return Block(at, at + size)
        return None

    def counts_for(self, files: FileAccess, log_path: PurePath, size_bytes: int) -> bool:
        """Return whether the checksums are those of the file as it is now, by its size and modification time."""
        return size_bytes == self.log_bytes and files.modified_ns(log_path) == self.log_modified_ns


def checksums_path(directory: PurePath, base_offset: int) -> PurePath:
    """Return the path of a segment's checksums."""
    return directory / f"{base_offset:020}{CHECKSUMS_SUFFIX}"


def checksums_of(blocks: Iterator[bytes]) -> array[int]:
    """Compute the checksum of each block."""
    return array("I", (crc32c(block) for block in blocks))


def write_checksums(files: FileSystem, path: PurePath, checksums: BlockChecksums) -> None:
    """Write the checksums of a segment. Raises OSError."""
    replace_file(files, path, render(checksums))


def read_checksums(files: FileAccess, path: PurePath) -> BlockChecksums | None:
    """Read the checksums of a segment; None if there are none or the file is corrupt itself. Raises OSError."""
    try:
        return parse(read_file(files, path))
    except FileNotFoundError:
        return None


def render(checksums: BlockChecksums) -> bytes:
    """Return the file's content."""
    blocks = array("I", checksums.blocks)
    if sys.byteorder == "big":
        blocks.byteswap()
    fields = {
        "version": _VERSION,
        "log": [checksums.log_bytes, checksums.log_modified_ns],
        "block_bytes": BLOCK_BYTES,
        "blocks": base64.b64encode(blocks.tobytes()).decode(),
        "indexes": {suffix: copy[:3] for suffix, copy in checksums.indexes.items()},
    }
    body = json.dumps(fields, separators=(",", ":")).encode()
    return b"%08x\n%s\n" % (crc32c(body), body)


def parse(data: bytes) -> BlockChecksums | None:
    """Parse the file's content; None if it is corrupt or of another version."""
    head, _, rest = data.partition(b"\n")
    try:
        if len(head) != 8 or rest[-1:] != b"\n" or crc32c(rest[:-1]) != int(head, 16):
            return None
        fields = json.loads(rest)
        if (fields["version"], fields["block_bytes"]) != (_VERSION, BLOCK_BYTES):
            return None
        blocks = array("I", base64.b64decode(fields["blocks"]))
        if sys.byteorder == "big":
            blocks.byteswap()
        size_bytes, modified_ns = fields["log"]
        indexes = {
            str(suffix): BackedUpFile(int(written_ns), int(size), int(crc))
            for suffix, (written_ns, size, crc) in fields["indexes"].items()
        }
        return BlockChecksums(size_bytes, modified_ns, blocks, indexes)
    except (ValueError, KeyError, TypeError):
        return None
