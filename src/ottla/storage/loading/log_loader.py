"""Loads a log from its directory (Kafka's `LogLoader`): at once after a clean shutdown, otherwise by a scan.

The longest valid prefix is kept. Segments that end below the recovery point were synced and are not scanned. Every
later one is read whole; at the first batch that is torn, has a wrong checksum or an offset out of order, the file is
truncated and all later segments are deleted. Indexes, snapshots and leader epochs are rebuilt from what is left.
Loading twice changes nothing the second time.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from ottla.core.files import FileSystem
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.storage.config import LogConfig
from ottla.storage.file_names import (
    CHECKSUMS_SUFFIX,
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    offset_name,
)
from ottla.storage.integrity.corruption import report_corruption
from ottla.storage.integrity.metadata_backup import CheckedText
from ottla.storage.loading.clean_shutdown import CheckpointedEnd, load_after_clean_shutdown
from ottla.storage.loading.log_recovery import UncleanRecovery, delete_from
from ottla.storage.loading.swap_files import complete_swaps
from ottla.storage.log.log_parts import LoadedState, LogLocation
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.log.producer_replay import replay_producers
from ottla.storage.log.segment import Segment
from ottla.storage.log.segment_list import missing_start
from ottla.storage.small_files import PARTITION_METADATA, parse_partition_metadata
from ottla.storage.state.leader_epochs import FILE_NAME as EPOCHS_FILE
from ottla.storage.state.leader_epochs import EpochEntry, LeaderEpochs, parse_epochs
from ottla.storage.state.producer_snapshots import ProducerSnapshots
from ottla.storage.state.producer_state_manager import ProducerStateManager

logger = logging.getLogger(__name__)

_NAME_DIGITS = 20
_CACHES = (CHECKSUMS_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
_NUMBERED = frozenset({LOG_SUFFIX, SNAPSHOT_SUFFIX, *_CACHES})
_LEFTOVERS = (DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")


class DirectoryListing(NamedTuple):
    """Lists what is in a partition's directory, by kind; offsets ascending."""

    segments: list[int]
    snapshots: list[int]
    leftovers: list[str]  # of a deletion, a compaction or a write that a crash cut short
    orphans: list[str]  # indexes without their log
    has_epochs: bool  # whether there is a leader-epoch checkpoint
    swaps: list[str]  # all names, if a compaction was swapping files when the last run ended


def create_empty_log(
    location: LogLocation, topic_partition: TopicPartition, topic_id: uuid.UUID, config: LogConfig
) -> PartitionLog:
    """Create an empty log in a directory that has just been made. Raises OSError."""
    segment = Segment.create(location.files, location.directory, 0, now_ms=location.clock.wall_ms())
    state = LoadedState(
        topic_id,
        [segment],
        LeaderEpochs(),
        ProducerStateManager(),
        ProducerSnapshots(location.files, location.directory),
        log_start_offset=0,
        end_offset=0,
    )
    return PartitionLog(location, topic_partition, config, state)


class LogCheckpoint(NamedTuple):
    """Holds the entries of one log in the checkpoint files of the previous run."""

    is_clean: bool  # that run ended with a clean shutdown: all of the log was synced
    recovery_point: int  # below it everything was synced; after a clean shutdown the log's end
    log_start_offset: int
    cleaned_offset: int | None  # in the cleaner's checkpoint: compaction may have removed batches between others
    is_verified: bool  # the recovery point fits the backup of its file; what contradicts it is corruption
    is_start_verified: bool = False  # the log start, too

    @property
    def is_start_certain(self) -> bool:
        """Whether the log began at the log start, and had synced records there."""
        return self.is_start_verified and self.recovery_point > self.log_start_offset


def load_log(
    location: LogLocation,
    topic_partition: TopicPartition,
    config: LogConfig,
    checkpoint: LogCheckpoint,
    progress: Callable[[int], None],
) -> tuple[PartitionLog, bool]:
    """Load the log in a directory, recovered as far as it needs to be; `progress` gets the bytes scanned.

    The second value is False if it found or changed something that may not be on the disk yet. Raises OSError.
    """
    files, now_ms = location.files, location.clock.wall_ms()
    listed = _completed(files, location.directory)
    segments = [_segment(location, base, now_ms) for base in listed.segments]
    snapshots = ProducerSnapshots(files, location.directory, listed.snapshots)
    known, found = _known_epochs(location, segments, is_there=listed.has_epochs), _sizes(segments)
    epochs, may_have_gaps = known.cache, checkpoint.cleaned_offset is not None or config.is_compacted
    end_offset, scanned_from, scanned = _find_end(
        location, segments, known, config, checkpoint, progress, may_have_gaps=may_have_gaps
    )
    lost_start = _lost_start(location, segments, checkpoint)
    if not segments or end_offset < checkpoint.log_start_offset:
        end_offset = _restart(location, segments, epochs, snapshots, checkpoint, now_ms)
    was_scanned = scanned_from is not None
    epochs.truncate_from_end(end_offset)
    log_start_offset = max(checkpoint.log_start_offset, segments[0].base_offset)
    if was_scanned and epochs.entries and epochs.entries[0].start_offset > log_start_offset:
        epochs.clear()  # a deletion that the crash undid had removed the oldest
        _rebuild_epochs(segments, epochs)
    producers = ProducerStateManager()
    if scanned_from is not None and may_have_gaps:
        snapshots.drop_above(scanned_from)  # they may know of batches that this crash took from the middle
    rewritten = replay_producers(
        segments, producers, snapshots, end_offset=end_offset, now_ms=now_ms, scanned_from=scanned_from, scanned=scanned
    )
    metadata = location.known(PARTITION_METADATA, must_exist=True, can_parse=_has_topic_id)
    is_as_stopped = not was_scanned and not known.was_restored and not known.is_lost
    state = LoadedState(
        parse_partition_metadata(metadata.text),
        segments,
        epochs,
        producers,
        snapshots,
        log_start_offset,
        end_offset,
        cleaned_offset=checkpoint.cleaned_offset,
        is_as_stopped=is_as_stopped,
        checkpointed_start=checkpoint.log_start_offset if checkpoint.is_start_verified else None,
        lost_start=lost_start if checkpoint.is_start_verified else None,
        is_start_uncertain=lost_start is not None and not checkpoint.is_start_certain,
    )
    log = PartitionLog(location, topic_partition, config, state)
    was_flushed = checkpoint.is_verified and 0 < checkpoint.recovery_point == end_offset and found == _sizes(segments)
    log.close_files()  # a start opens every log; most are not used at once
    return log, _note_small_files(
        log, location, known, metadata, rewritten, was_scanned=was_scanned, was_flushed=was_flushed
    )


class _KnownEpochs(NamedTuple):
    """The leader-epoch checkpoint as it was found."""

    cache: LeaderEpochs
    noted: tuple[EpochEntry, ...] | None  # what the file has; None where that is nothing true
    is_lost: bool
    is_certain: bool
    was_restored: bool


class _FoundEnd(NamedTuple):
    """The end of a log, and how much of the log was read to find it."""

    end_offset: int
    scanned_from: int | None  # None if nothing was scanned
    producers: Mapping[int, Sequence[int]]  # where a scan has found batches of producers, by segment


def _find_end(
    location: LogLocation,
    segments: list[Segment],
    known: _KnownEpochs,
    config: LogConfig,
    checkpoint: LogCheckpoint,
    progress: Callable[[int], None],
    *,
    may_have_gaps: bool,
) -> _FoundEnd:
    """Find the end of a log: at once after a clean shutdown, otherwise by a recovery. Raises OSError."""
    epochs, recovery_point = known.cache, checkpoint.recovery_point
    if segments and checkpoint.is_clean:
        trusted = epochs if epochs.certain and not known.is_lost else None
        end = CheckpointedEnd(recovery_point, checkpoint.is_verified, trusted)
        end_offset, scanned_from = _after_clean_shutdown(location, segments, config, end)
        if end_offset is not None:
            if known.is_lost:
                _rebuild_epochs(segments, epochs)
            return _FoundEnd(end_offset, scanned_from, {})
    recovery = UncleanRecovery(
        epochs,
        interval_bytes=config.index_interval_bytes,
        recovery_point=0 if known.is_lost else recovery_point,
        synced_offset=recovery_point if checkpoint.is_verified else 0,
        may_have_gaps=may_have_gaps,
        progress=progress,
    )
    end_offset, scanned_from = recovery.run(segments)
    return _FoundEnd(end_offset, scanned_from, recovery.producers)


def _known_epochs(location: LogLocation, segments: Sequence[Segment], *, is_there: bool) -> _KnownEpochs:
    missing = CheckedText(None, is_certain=False)
    text, is_certain, was_restored = location.known(EPOCHS_FILE) if is_there else missing
    epochs = parse_epochs(text) if text else LeaderEpochs()
    is_lost = epochs is None or (not text and bool(segments) and segments[0].size_bytes > 0)
    epochs = epochs or LeaderEpochs()
    if text and not is_certain and not is_lost:
        epochs.mark_uncertain()
    return _KnownEpochs(epochs, None if is_lost else epochs.entries, is_lost, is_certain, was_restored)


def _note_small_files(
    log: PartitionLog,
    location: LogLocation,
    known: _KnownEpochs,
    metadata: CheckedText,
    rewritten: Sequence[PurePath],
    *,
    was_scanned: bool,
    was_flushed: bool,
) -> bool:
    """Note the copies of the small files, and what a flush has to sync; whether that is nothing. Raises OSError."""
    pending_flush = log.pending_flush
    backup = location.backup if known.is_certain and not known.was_restored else None
    pending_flush.small_files_loaded(
        known.noted,
        epochs_backup=None if backup is None else backup.entries.get(f"{location.directory.name}/{EPOCHS_FILE}"),
        # The copy of a corrupt file is kept, until the file is written again.
        partition_metadata_backup=location.copy_of(PARTITION_METADATA, metadata) if log.topic_id.int else None,
    )
    if backup is None and (known.was_restored or known.is_lost):
        pending_flush.write_epochs(location.directory, log.epochs)
    pending_flush.add_files(*rewritten)
    if was_scanned and was_flushed and known.noted == log.epochs.entries and not pending_flush:
        for segment in log.segments:  # the last run had synced all of it
            segment.mark_clean()
        return True
    if was_scanned and metadata.text is not None and not metadata.is_certain:
        pending_flush.add_files(location.directory / PARTITION_METADATA)  # its log may never have been flushed
    return not was_scanned and not rewritten


def _has_topic_id(text: str) -> bool:
    return parse_partition_metadata(text) != NO_TOPIC_ID


def _completed(files: FileSystem, directory: PurePath) -> DirectoryListing:
    """List what is in a partition's directory once what a crash cut short is finished or removed."""
    listing = list_directory(files, directory)
    if listing.swaps:
        complete_swaps(files, directory, listing.swaps)
        listing = list_directory(files, directory)
    for name in (*listing.leftovers, *listing.orphans):
        files.remove(directory / name)
    return listing


def _after_clean_shutdown(
    location: LogLocation, segments: list[Segment], config: LogConfig, end: CheckpointedEnd
) -> tuple[int | None, int | None]:
    """Return the end offset if the log can be used as it was left.

    The second value is from where on it is to be replayed, if at all.
    """
    last, now_ms = segments[-1], location.clock.wall_ms()
    base_offset = last.base_offset
    offsets, times = (location.checked_index(base_offset, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX))
    is_distrusted = offsets.is_corrupt or times.is_corrupt
    if not is_distrusted:
        last.hold_indexes(offsets.content, times.content)
    end_offset = load_after_clean_shutdown(
        segments, end, interval_bytes=config.index_interval_bytes, now_ms=now_ms, distrust=is_distrusted
    )
    last.hold_indexes(None, None)
    if end_offset is None or not location.is_corrupt(base_offset, TXN_INDEX_SUFFIX):
        return end_offset, None
    return end_offset, base_offset  # the replay rebuilds that index


def list_directory(files: FileSystem, directory: PurePath) -> DirectoryListing:
    """Sort a partition directory's names."""
    names = files.names_in(directory)
    segments: list[int] = []
    snapshots: list[int] = []
    leftovers: list[str] = []
    caches: list[tuple[str, int]] = []
    for name in names:
        suffix = name[_NAME_DIGITS:]
        if suffix in _NUMBERED and name[:_NAME_DIGITS].isdecimal():
            offset = int(name[:_NAME_DIGITS])
            if suffix == LOG_SUFFIX:
                segments.append(offset)
            elif suffix == SNAPSHOT_SUFFIX:
                snapshots.append(offset)
            else:
                caches.append((name, offset))
        elif name.endswith(_LEFTOVERS):
            leftovers.append(name)
    known = set(segments)
    orphans = [name for name, offset in caches if offset not in known]
    swaps = names if any(name.endswith(SWAP_SUFFIX) for name in names) else []
    return DirectoryListing(segments, snapshots, leftovers, orphans, EPOCHS_FILE in names, swaps)


def _segment(location: LogLocation, base_offset: int, now_ms: int) -> Segment:
    size = location.files.size_of(location.directory / offset_name(base_offset, LOG_SUFFIX))
    return Segment(location.files, location.directory, base_offset, size_bytes=size, created_ms=now_ms)


def _lost_start(location: LogLocation, segments: Sequence[Segment], checkpoint: LogCheckpoint) -> int | None:
    """Return the checkpointed log start, if the first segments, or all, are missing; log it where that is certain.

    The log start is in the checkpoint before retention deletes a file. So segments that are missing above it were
    lost. Kafka deletes them first, and leaves a start that is the first segment's out of its checkpoint: where another
    program wrote it last nothing is certain, nor where nothing above it was synced: a crash may have cut short that a
    follower began again at its leader's start.
    """
    start = checkpoint.log_start_offset
    begins = segments[0].base_offset if segments else checkpoint.recovery_point
    if begins <= start:
        return None
    if checkpoint.is_start_certain:
        report_corruption(missing_start(location.directory, start, begins))
    return start


def _sizes(segments: Sequence[Segment]) -> list[tuple[int, int]]:
    return [(segment.base_offset, segment.size_bytes) for segment in segments]


def _rebuild_epochs(segments: Iterable[Segment], epochs: LeaderEpochs) -> None:
    """Rebuild the epochs from the batches, where the checkpoint is missing or corrupt."""
    for segment in segments:
        for batch in segment.batches():
            epochs.assign(batch.header.partition_leader_epoch, batch.header.base_offset)


def _restart(
    location: LogLocation,
    segments: list[Segment],
    epochs: LeaderEpochs,
    snapshots: ProducerSnapshots,
    checkpoint: LogCheckpoint,
    now_ms: int,
) -> int:
    """Create an empty log: no segment is left, or fewer records than DeleteRecords had deleted. Returns its offset."""
    offset = checkpoint.log_start_offset
    if not segments and checkpoint.is_verified:
        offset = max(offset, checkpoint.recovery_point)  # its records are lost, but no offset is assigned twice
    delete_from(segments, 0)
    epochs.clear()
    for old in snapshots.offsets:
        snapshots.drop(old)
    segments.append(Segment.create(location.files, location.directory, offset, now_ms=now_ms))
    return offset
