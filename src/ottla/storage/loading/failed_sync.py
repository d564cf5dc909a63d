"""Makes durable what a recovery reads after a failed fsync.

After a failed fsync Linux marks the pages that it could not write as clean. They stay in the page cache: a process that
is started again on the same machine reads records there that the disk does not have, and the next fsync succeeds
without writing them. So a failed fsync leaves a mark, a file in the log directory. It need not be synced: it has to
outlive the process and no more, because a restart of the machine empties the page cache. The next start writes again
what recovery keeps above the recovery point of each log, with the same bytes: the pages are dirty again, and the
fsync that follows proves something.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import uuid
from collections.abc import Sequence
from pathlib import PurePath

from ottla.core.errors import CorruptMessage
from ottla.core.files import FileSystem, read_file
from ottla.core.ids import TopicPartition
from ottla.core.settings import LONG_MAX
from ottla.storage.integrity.metadata_backup import backup_of
from ottla.storage.integrity.range_verifier import verify_batches
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.log.segment import Segment
from ottla.storage.small_files import PARTITION_METADATA

logger = logging.getLogger(__name__)

FILE_NAME = "ottla-failed-sync"
_CHUNK_BYTES = 1 << 20
_NAMED_MAX = 10


class FailedSyncMark:
    """The mark of one log directory: in itself or, if it takes no file, in another one."""

    __slots__ = ("_files", "_name", "_path", "_paths")

    def __init__(self, files: FileSystem, path: PurePath, others: Sequence[PurePath], directory_id: uuid.UUID) -> None:
        self._files, self._path, self._paths = files, path, (path, *others)
        self._name = f"{FILE_NAME}.{directory_id.hex}"

    def write(self, what: str) -> None:
        """Write the mark of a failed sync."""
        for path in self._paths:
            try:
                file = self._files.open(path / self._name, create=True)
            except OSError:
                continue
            with contextlib.suppress(OSError):  # the name is enough
                file.append(what.encode())
            file.close()
            return
        logger.error(
            "no log directory takes a file that marks the failed fsync of %s. Restart the machine, or unmount the file "
            "system, before the broker is started again: it would read records that are not on the disk",
            self._path,
        )

    def rewriter(self) -> Rewriter | None:
        """Return what a start has to use where there is a mark."""
        for path in self._paths:
            if not self._files.exists(path / self._name):
                continue
            what = b""  # a mark that cannot be read is one, too
            with contextlib.suppress(OSError):
                what = read_file(self._files, path / self._name)
            return Rewriter(what.decode(errors="replace"))
        return None

    def remove_if_complete(self, rewriter: Rewriter | None, *, is_complete: bool) -> None:
        """Remove the mark, once all that was written again is synced. Raises OSError.

        It stays unless `is_complete`: a log that is missing now may be put back before a later start.
        """
        if rewriter is None:
            return
        rewriter.report(self._path)
        for path in self._paths if is_complete else ():
            if self._files.exists(path / self._name):
                self._files.remove(path / self._name)


class Rewriter:
    """Writes again what the logs of a directory have above their recovery points, and reports it."""

    __slots__ = ("_bytes", "_found", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._bytes = 0
        self._found: list[tuple[TopicPartition, int, int]] = []

    def rewrite(self, log: PartitionLog, recovery_point: int) -> None:
        """Write the same bytes to the same places, for the flush that follows.

        Raises OSError, also if they are not those that recovery has read: the system may drop a clean page at any time.
        """
        size = sum(_rewrite(segment, recovery_point) for segment in log.segment_list.from_offset(recovery_point))
        if size:
            self._found.append((log.topic_partition, max(recovery_point, log.log_start_offset), log.end_offset))
            self._bytes += size
        if log.epochs.entries:
            log.pending_flush.write_epochs(log.directory, log.epochs)
        _rewrite_metadata(log)

    def report(self, path: PurePath) -> None:
        """Log what was found."""
        named = ", ".join(f"{name} from offset {first} to {end}" for name, first, end in self._found[:_NAMED_MAX])
        logger.warning(
            "an fsync in %s failed in an earlier run (%s). What %d logs have above their recovery points may be in the "
            "page cache only: %d bytes were written again and synced%s%s. Check the disk",
            path,
            self._what or "unknown",
            len(self._found),
            self._bytes,
            f" ({named}" if named else "",
            (", ...)" if len(self._found) > _NAMED_MAX else ")") if named else "",
        )


def _rewrite_metadata(log: PartitionLog) -> None:
    """Write `partition.metadata` again, unless it is corrupt: then its copy counts until it is written from that."""
    path, copy = log.directory / PARTITION_METADATA, log.pending_flush.partition_metadata_backup
    if not log.files.exists(path):
        return
    file = log.files.open(path)
    try:
        data = file.read_at(0, file.size())
        if copy is not None and not copy.fits(data):
            return  # with another modification time it would be believed
        file.write_at(0, data)
    finally:
        file.close()
    if copy is not None:
        log.pending_flush.partition_metadata_written(backup_of(log.files, path))
    log.pending_flush.add_files(path)


def _rewrite(segment: Segment, recovery_point: int) -> int:
    position, is_known = 0, True
    if segment.base_offset < recovery_point:
        try:
            batch = segment.find(recovery_point)
        except CorruptMessage:
            is_known = False  # all of it; the corruption is reported
        else:
            if batch is None:
                return 0
            position = batch.position
    begin, file = position, segment.file
    while position < segment.size_bytes:
        data = file.read_at(position, min(_CHUNK_BYTES, segment.size_bytes - position))
        if not data:
            break
        file.write_at(position, data)
        position += len(data)
    if position > begin:
        if is_known:
            _verify(segment, begin)
        segment.mark_recovered()
    return position - begin


def _verify(segment: Segment, position: int) -> None:
    """Verify the batches that were written again: now that their pages are dirty they cannot be dropped any more."""
    while position < segment.size_bytes:
        batches = verify_batches(
            segment.file,
            position,
            position + _CHUNK_BYTES,
            segment_end=segment.size_bytes,
            next_offset=None,
            end_offset=LONG_MAX,
        )
        if batches.wrong is not None or batches.end == position:
            raise OSError(errno.EIO, f"not what recovery has read: {batches.wrong}", str(segment.log_path))
        position = batches.end
