"""Keeps a checksummed copy of a log directory's small files, because Kafka's formats for them have no checksum.

A flipped bit in a checkpoint is another valid number, and a log start offset or a recovery point that is too high costs
records without an error. So whenever Ottla writes these files it also writes `ottla-copies` beside them: each file's
content, its CRC-32C and its modification time. At a start:

    same content                         verified
    other content, same time             corrupt: the copy is used instead, and the log reports it
    other content, another time          another program (Kafka, an operator) has written it since: it is accepted if it
                                         can be parsed, as is every file without a copy. A topic's id that cannot is
                                         what a power cut left: the copy is used

Corruption does not change a file's modification time; a program that writes does. A directory that was copied without
its modification times is accepted like one that Kafka wrote. `ottla-copies` is one line with a CRC-32C and one of JSON;
Kafka ignores plain files that it does not know. It is replaced before the files it covers, in one step with one sync:
after a crash between the two the older files are accepted as if another program had written them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import NamedTuple

from ottla.core.checksums import crc32c
from ottla.core.files import FileSystem, read_file, replace_file
from ottla.storage.integrity.corruption import CACHE_ADVICE, CHECKPOINT_ADVICE, Corruption, report_corruption

FILE_NAME = "ottla-copies"
_VERSION = 0


class BackedUpFile(NamedTuple):
    """The modification time, size, checksum and copy of one small file."""

    modified_ns: int
    size_bytes: int
    crc: int
    text: str | None = None  # None for a file that can be rebuilt from the log

    @classmethod
    def of(cls, data: bytes, modified_ns: int, *, keep_text: bool = True) -> BackedUpFile:
        """Create the entry of a file with this content."""
        return cls(modified_ns, len(data), crc32c(data), data.decode() if keep_text else None)

    def fits(self, data: bytes) -> bool:
        """Return whether this is the content of the entry."""
        return len(data) == self.size_bytes and crc32c(data) == self.crc


class CheckedText(NamedTuple):
    """The text of a small file, and whether it is verified."""

    text: str | None
    is_certain: bool
    was_restored: bool = False  # the file is corrupt, this is the copy


class CheckedCache(NamedTuple):
    """The content of a file that can be rebuilt, if it is there, and whether it is certainly corrupt."""

    content: bytes | None
    is_corrupt: bool


class MetadataBackup:
    """The entries of `ottla-copies` of a log directory. Names are relative to it: `web-0/leader-epoch-checkpoint`."""

    def __init__(
        self,
        files: FileSystem,
        root: PurePath,
        entries: Mapping[str, BackedUpFile] | None = None,
        *,
        on_corruption: Callable[[Corruption], None] = report_corruption,
    ) -> None:
        self._on_corruption = on_corruption
        self._files = files
        self._root = root
        self.entries = dict(entries or {})
        self.findings: list[Corruption] = []

    @classmethod
    def read(
        cls, files: FileSystem, root: PurePath, *, on_corruption: Callable[[Corruption], None] = report_corruption
    ) -> MetadataBackup:
        """Read the file; if it is missing or itself corrupt, there are no entries."""
        path = root / FILE_NAME
        try:
            data = read_file(files, path)
        except FileNotFoundError:
            return cls(files, root, on_corruption=on_corruption)
        entries = parse(data)
        backup = cls(files, root, entries, on_corruption=on_corruption)
        if entries is None:
            backup._report(
                Corruption(path, "its checksum does not match; the files it covers are not verified", CACHE_ADVICE)
            )
        return backup

    def text(
        self, name: str, *, must_exist: bool = True, can_parse: Callable[[str], bool] | None = None
    ) -> CheckedText:
        """Read a small text file, or its copy if it is corrupt. Unless it `must_exist` a missing one stays missing."""
        data, copy = self._data(name), self.entries.get(name)
        if copy is None or copy.text is None or (data is None and not must_exist):
            return CheckedText(_decoded(data), is_certain=False)
        if data is not None and copy.fits(data):
            return CheckedText(copy.text, is_certain=True)
        path = self._root / name
        if data is not None and self._files.modified_ns(path) != copy.modified_ns:
            text = _decoded(data)
            if can_parse is None or (text is not None and can_parse(text)):
                return CheckedText(text, is_certain=False)
        self._report(
            Corruption(
                path,
                "it is missing" if data is None else "it does not match its copy",
                CHECKPOINT_ADVICE,
                0,
                0 if data is None else len(data),
            )
        )
        return CheckedText(copy.text, is_certain=True, was_restored=True)

    def is_corrupt(self, name: str) -> bool:
        """Return whether a file that can be rebuilt is certainly corrupt."""
        return name in self.entries and self.cache(name).is_corrupt

    def cache(self, name: str) -> CheckedCache:
        """Read a file that can be rebuilt."""
        data, copy = self._data(name), self.entries.get(name)
        if copy is None or (data is not None and copy.fits(data)):
            return CheckedCache(data, is_corrupt=False)
        path = self._root / name
        if data is not None and self._files.modified_ns(path) != copy.modified_ns:
            return CheckedCache(data, is_corrupt=False)
        what = "it is missing" if data is None else "it does not match its checksum"
        self._report(Corruption(path, what, CACHE_ADVICE, 0, 0 if data is None else len(data)))
        return CheckedCache(data, is_corrupt=True)

    def _data(self, name: str) -> bytes | None:
        try:
            return self._files.read(f"{self._root}/{name}")
        except FileNotFoundError:
            return None

    def _report(self, corruption: Corruption) -> None:
        self.findings.append(corruption)
        self._on_corruption(corruption)


def backup_of(files: FileSystem, path: PurePath, *, keep_text: bool = True) -> BackedUpFile | None:
    """Create the entry of a file as it is now; None if there is no file or it is not text."""
    try:
        return BackedUpFile.of(read_file(files, path), files.modified_ns(path), keep_text=keep_text)
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def replace_files(
    files: FileSystem, root: PurePath, contents: Mapping[str, bytes], others: Mapping[str, BackedUpFile]
) -> dict[str, BackedUpFile]:
    """Replace small files of one directory, and the copies of these and `others`. Raises OSError.

    Each file is replaced as a whole; a crash may leave some of them new and some old. Returns the entries.
    """
    written: dict[str, BackedUpFile] = {}
    asides = {name: root / f"{name}.tmp" for name in contents}
    for name, data in contents.items():
        files.remove(asides[name])
        file = files.open(asides[name], create=True)
        try:
            file.append(data)
            file.sync()
        finally:
            file.close()
        written[name] = BackedUpFile.of(data, files.modified_ns(asides[name]))
    replace_file(files, root / FILE_NAME, render({**others, **written}))
    for name, aside in asides.items():
        files.rename(aside, root / name)
    files.sync_directory(root)
    return written


def render(entries: Mapping[str, BackedUpFile]) -> bytes:
    """Return the file's content."""
    body = json.dumps({"version": _VERSION, "files": entries}, separators=(",", ":")).encode()
    return b"%08x\n%s\n" % (crc32c(body), body)


def parse(data: bytes) -> dict[str, BackedUpFile] | None:
    """Parse the file's content; None if it is corrupt or of another version."""
    head, _, rest = data.partition(b"\n")
    try:
        if len(head) != 8 or rest[-1:] != b"\n" or crc32c(rest[:-1]) != int(head, 16):
            return None
        fields = json.loads(rest)
        if fields["version"] != _VERSION:
            return None
        texts: dict[str, str] = {}  # the partitions of a topic have the same ones
        return {
            str(name): BackedUpFile(modified_ns, size, crc, text and texts.setdefault(text, text))
            for name, (modified_ns, size, crc, text) in fields["files"].items()
        }
    except (ValueError, KeyError, TypeError):
        return None


def _decoded(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None
