"""Moves replicas between the log directories of this broker, while they are written and read (KIP-113).

A future log in the other directory is a follower of the log: batches are copied as they are, and what the log truncates
or deletes the copy truncates or deletes too. Once the copy has everything and is on the disk, it replaces the log
between two turns of the loop (`storage/directories/log_replacement.py`), unnoticed by producers and readers. A restart
continues the copies that it finds.

One task for each directory that is copied to; it ends with the last move.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from ottla.core.errors import CorruptMessage, KafkaError, StorageError
from ottla.core.files import FileRegion
from ottla.core.ids import TopicPartition
from ottla.replication.group_commit import GroupCommit
from ottla.replication.partition import Partition
from ottla.replication.replication_context import ReplicationContext
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.directories.log_replacement import replace_log
from ottla.storage.log.faulty_ranges import is_faulty
from ottla.storage.log.future_log import truncate_to_common_prefix
from ottla.storage.log.partition_log import PartitionLog

log = logging.getLogger(__name__)

CHUNK_BYTES = 256 << 10
"""Bytes that are read and written in one piece; a larger batch comes whole."""

TURN_BYTES = 16 * CHUNK_BYTES
"""Bytes of one move, after which the next move of the directory has its turn."""

FLUSH_BYTES = 32 << 20
"""Bytes that are synced together, in a thread: the fewer, the shorter is the sync for which the replacement waits."""

LAST_BYTES = 4 * CHUNK_BYTES
"""The most that the replacement copies itself, of what came during the last sync."""

RETRY_SECONDS = 1.0
RETRY_SECONDS_MAX = 60.0
TRUNCATION_SECONDS = 0.01
"""Pause while the log is being truncated."""
THROTTLE_CHECK_SECONDS = 1.0  # a changed limit has an effect after this time
_UNKNOWN = -1


class LogDirMove:
    """A replica on its way to another log directory."""

    __slots__ = (
        "aligned_at",
        "checkpointed_start",
        "current",
        "failures",
        "future",
        "not_before_s",
        "partition",
        "source",
        "target",
        "unsynced_bytes",
        "verified_to",
        "verify_to",
    )

    def __init__(self, partition: Partition, source: LogDirectory, target: LogDirectory, future: PartitionLog) -> None:
        self.partition, self.current = partition, partition.log
        self.source, self.target, self.future = source, target, future
        self.aligned_at = _UNKNOWN  # the truncation count of the log when the copy was compared with it
        self.verified_to, self.verify_to = future.log_start_offset, future.end_offset  # what an earlier run has copied
        self.unsynced_bytes = FLUSH_BYTES  # its new directory is synced first
        self.checkpointed_start = (_UNKNOWN, _UNKNOWN)  # the log start that the checkpoint files have: see `_start_of`
        self.failures, self.not_before_s = 0, 0.0

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition."""
        return self.current.topic_partition

    @property
    def offset_lag(self) -> int:
        """Offsets that are still to be copied."""
        return max(self.partition.log.end_offset - self.future.end_offset, 0)

    @property
    def is_truncating(self) -> bool:
        """Whether the log is being truncated, or waits for it: its truncation would go on after a replacement."""
        return self.partition.is_truncating or self.current.is_truncating


class AlterLogDirs:
    """All moves of a broker between its log directories."""

    def __init__(self, commits: Mapping[LogDirectory, GroupCommit], context: ReplicationContext) -> None:
        self.moves: dict[TopicPartition, LogDirMove] = {}
        self._commits, self._context = commits, context
        self._tasks: dict[LogDirectory, asyncio.Task[None]] = {}
        self._closing = asyncio.Event()

    def start(self, partition: Partition, source: LogDirectory, target: LogDirectory) -> None:
        """Copy into the future log that `target` has, and replace the log by it."""
        topic_partition = partition.topic_partition
        future = target.future_logs[topic_partition]
        self.moves[topic_partition] = LogDirMove(partition, source, target, future)
        log.info("%s moves from %s to %s", topic_partition, source.path, target.path)
        if target not in self._tasks:
            self._tasks[target] = asyncio.get_running_loop().create_task(
                self._run(target), name=f"alter log dirs {target.path}"
            )

    def stop(self, topic_partition: TopicPartition) -> LogDirMove | None:
        """Stop a move, if there is one. The copy stays."""
        return self.moves.pop(topic_partition, None)

    def cancel(self, topic_partition: TopicPartition) -> None:
        """Stop a move, if there is one, and delete the copy. Raises StorageError."""
        move = self.stop(topic_partition)
        if move is not None:
            log.info("the move of %s to %s is cancelled", topic_partition, move.target.path)
            move.target.delete_future_log(topic_partition)

    async def close(self) -> None:
        """Stop all moves: the next start continues them."""
        self._closing.set()
        for topic_partition in tuple(self.moves):
            self.stop(topic_partition)
        await asyncio.gather(*self._tasks.values())  # a sync that has begun must be completed before a clean stop

    def _is_active(self, move: LogDirMove) -> bool:
        """Return whether it was not stopped, and both directories are well."""
        return (
            self.moves.get(move.topic_partition) is move
            and move.partition.log is move.current
            and move.partition.failed is None
            and move.source.health.failure is None
            and move.target.health.failure is None
        )

    # ---- Copying

    async def _run(self, target: LogDirectory) -> None:
        """Work on the moves to one directory in turns, until there is none."""
        try:
            while moves := [log_dir_move for log_dir_move in self.moves.values() if log_dir_move.target is target]:
                now_s = self._context.clock.monotonic()
                due = [move for move in moves if move.not_before_s <= now_s]
                for move in due:
                    await self._turn(move)
                if not due:
                    await self._sleep(RETRY_SECONDS)
        finally:
            del self._tasks[target]

    async def _sleep(self, seconds: float) -> None:
        """Sleep until the broker stops at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closing.wait()

    async def _turn(self, move: LogDirMove) -> None:
        """Copy a part of the log, or replace it. What fails is tried again later, as long as both disks work."""
        try:
            copied = 0
            while copied < TURN_BYTES and self._is_active(move):
                wait_s = self._context.alter_log_dirs_quota.wait_s(self._context.clock.monotonic())
                if wait_s:
                    await self._sleep(min(wait_s, THROTTLE_CHECK_SECONDS))
                    continue
                step = await self._step(move)
                if not step:
                    break
                copied += step
            move.failures = 0
        except (KafkaError, OSError) as error:
            self._failed(move, error)
        except Exception:
            log.exception("the move of %s failed", move.topic_partition)
            self._failed(move, None)
        if not self._is_active(move) and self.moves.get(move.topic_partition) is move:
            self.stop(move.topic_partition)

    def _failed(self, move: LogDirMove, error: BaseException | None) -> None:
        seconds = min(RETRY_SECONDS * 2**move.failures, RETRY_SECONDS_MAX)
        move.failures += 1
        move.not_before_s = self._context.clock.monotonic() + seconds
        move.aligned_at = _UNKNOWN
        if error is not None and self._is_active(move):
            log.warning(
                "%s cannot be copied to %s: %s; retrying in %g s",
                move.topic_partition,
                move.target.path,
                error,
                seconds,
            )

    async def _step(self, move: LogDirMove) -> int:
        """Verify or copy one chunk, or replace the log at its end; returns how many bytes were read or written."""
        current, future = move.current, move.future
        if move.verified_to < move.verify_to:
            return await self._verify(move)
        if move.unsynced_bytes >= FLUSH_BYTES:
            await self._flush(move)
            if not self._is_active(move):
                return 0
        if move.is_truncating:
            await asyncio.sleep(TRUNCATION_SECONDS)
            return 0
        if is_faulty(current):  # it is fetched again first: a copy would count as whole
            await self._sleep(RETRY_SECONDS)
            return 0
        self._follow(move)
        region = _region(current, future)
        if region is not None:
            truncations, position = current.truncation_count, future.end_offset
            data = await asyncio.to_thread(region.read)
            if len(data) < region.size:
                raise StorageError(f"{current.directory} has a file that has become shorter")
            if self._is_active(move) and current.truncation_count == truncations and future.end_offset == position:
                self._append(move, data)
            return len(data)
        await self._flush(move)
        if not self._is_active(move):
            return 0
        start = _start_of(future)
        if move.checkpointed_start != start:
            try:
                while not await asyncio.to_thread(move.target.begin_checkpoint().run):
                    pass
            except OSError as error:  # a failed fsync takes the directory offline
                raise move.target.health.refused("checkpoint", error) from error
            move.checkpointed_start = start
        if self._is_active(move):
            self._replace(move)
        await asyncio.sleep(0)
        return 1 if self._is_active(move) else 0

    async def _verify(self, move: LogDirMove) -> int:
        """Verify a part of what an earlier run has copied; begin again if it is corrupt."""
        future = move.future
        await asyncio.sleep(0)
        if not self._is_active(move):
            return 0
        try:
            offset = max(move.verified_to, future.log_start_offset)
            region = future.read(offset, max_bytes=CHUNK_BYTES, end_offset=move.verify_to)
        except CorruptMessage as error:
            log.warning("the copy of %s is corrupt and is made again: %s", move.topic_partition, error)
            future.truncate_fully_and_start_at(move.current.log_start_offset)
            region = None
        if region is None:
            move.verified_to = move.verify_to
            return 1
        move.verified_to = future.segment_list.region_end_offset
        return region.size

    def _follow(self, move: LogDirMove) -> None:
        """Truncate and delete what the log has truncated and deleted since. Raises StorageError."""
        current, future = move.current, move.future
        if current.log_start_offset < future.log_start_offset:  # its first segments were lost, and fetched again
            future.truncate_fully_and_start_at(current.log_start_offset)
        if current.cleaner_line.is_written:
            future.note_gaps()
        if move.aligned_at != current.truncation_count or future.end_offset < current.log_start_offset:
            truncate_to_common_prefix(future, current)
            move.aligned_at = current.truncation_count
        high_watermark = min(current.high_watermark, future.end_offset)
        if high_watermark > future.high_watermark:
            future.update_high_watermark(high_watermark)
        start = min(current.log_start_offset, future.high_watermark)
        if start > future.log_start_offset:
            future.delete_records(start)

    def _append(self, move: LogDirMove, data: bytes) -> None:
        """Append whole batches. Raises CorruptMessage and StorageError."""
        future, records = move.future, memoryview(data)
        future.append_as_follower(records, now_ms=self._context.clock.wall_ms())
        self._context.alter_log_dirs_quota.record(len(data), self._context.clock.monotonic())
        move.unsynced_bytes += len(data)

    async def _flush(self, move: LogDirMove) -> None:
        """Sync the copy in a thread. Raises StorageError."""
        if self._is_active(move) and move.future.is_dirty:
            job = move.future.begin_flush()
            await asyncio.to_thread(job.run_without_raising)
            if job.error is not None or move.target.future_logs.get(move.topic_partition) is move.future:
                move.future.complete_flush(job)  # otherwise it was deleted
        move.unsynced_bytes = 0

    # ---- Replacement

    def _replace(self, move: LogDirMove) -> None:
        """Copy the rest and replace the log. Nothing happens if too much has come. Raises KafkaError and OSError."""
        current, future, partition = move.current, move.future, move.partition
        if move.is_truncating:
            return
        copied = 0
        self._follow(move)
        while (region := _region(current, future)) is not None:
            if copied >= LAST_BYTES:
                return
            self._append(move, region.read())
            copied += region.size
            self._follow(move)
        if _start_of(future) != move.checkpointed_start:
            return  # deleted records would come back after a crash
        if future.is_dirty:
            future.flush()
        replace_log(move.source, move.target, move.topic_partition)
        partition.replace_log(future, self._commits[move.target])
        del self.moves[move.topic_partition]
        if move.target.health.failure is None:
            log.info("%s is in %s now", move.topic_partition, move.target.path)


def _start_of(future: PartitionLog) -> tuple[int, int]:
    """Return the log start and the number of truncations: one of these may have lowered the start for a while."""
    return future.log_start_offset, future.truncation_count


def _region(current: PartitionLog, future: PartitionLog) -> FileRegion | None:
    """Return what to copy next; None at the end. Raises CorruptMessage, OSError and StorageError."""
    if future.end_offset >= current.end_offset:
        return None
    region = current.read(
        max(future.end_offset, current.log_start_offset), max_bytes=CHUNK_BYTES, end_offset=current.end_offset
    )
    if region is None:
        if not current.may_have_gaps:
            raise StorageError(f"{current.topic_partition} has no batch at offset {future.end_offset}")
        future.skip_gap(current.end_offset)
    return region
