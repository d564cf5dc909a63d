"""Lists the bugs. Each is a realistic mistake: an omitted check, a forgotten sync, a reversed order."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from ottla.broker.remote.transaction_verification import TransactionVerification, TransactionVerifier
from ottla.core.errors import ErrorCode
from ottla.records.batch_reader import read_headers
from ottla.replication.partition import Partition
from ottla.storage.cleaning import batch_filter, log_to_clean
from ottla.storage.cleaning.batch_filter import BatchFilter
from ottla.storage.cleaning.cleaned_transactions import CleanedTransactions
from ottla.storage.cleaning.cleaning_pass import CleaningPass
from ottla.storage.cleaning.offset_map import OffsetMap
from ottla.storage.directories.checkpoint_job import CheckpointJob
from ottla.storage.directories.log_directory import LogDirectory
from ottla.storage.loading import log_recovery
from ottla.storage.loading.log_recovery import UncleanRecovery, ValidPrefix
from ottla.storage.log import partition_log, producer_replay
from ottla.storage.log.flush import FlushJob
from ottla.storage.log.partition_log import PartitionLog
from ottla.storage.log.pending_flush import PendingFlush
from ottla.storage.log.segment import Segment
from ottla.storage.log.truncation import TruncationState
from ottla.storage.log.truncation_steps import TruncationSync
from ottla.storage.state import producer_snapshots, producer_state_manager
from ottla.storage.state.leader_epochs import LeaderEpochs
from ottla.storage.state.producer_snapshots import ProducerSnapshots
from ottla.storage.state.producer_state_manager import ProducerStateManager
from ottla.testing.sim_disk import SimDisk, SimFile
from tests.mutation_tests.consumer_group_bugs import CONSUMER_GROUP_BUGS
from tests.mutation_tests.group_bugs import GROUP_BUGS
from tests.mutation_tests.moving_bugs import MOVING_BUGS
from tests.mutation_tests.patching import Bug, Make, Patch
from tests.mutation_tests.share_bugs import SHARE_BUGS
from tests.mutation_tests.transaction_bugs import TRANSACTION_BUGS

# ---- Small mutations


def does(nothing: object = None) -> Make:
    """Instead of what it does: nothing, and this is what it gives."""
    return lambda original: lambda *args, **kwargs: nothing


def after(what: Callable[..., object]) -> Make:
    """As it was, and then something more."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def buggy(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            what(*args, **kwargs)
            return result

        return buggy

    return make


def before(what: Callable[..., object]) -> Make:
    """Something more first."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def buggy(*args: Any, **kwargs: Any) -> Any:
            what(*args, **kwargs)
            return original(*args, **kwargs)

        return buggy

    return make


def given(**other: object) -> Make:
    """As it was, but for these arguments."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def buggy(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **kwargs | {key: value for key, value in other.items() if key in names})

        names = inspect.signature(original).parameters
        missing = other.keys() - names
        assert not missing, f"{original} takes no {missing}"
        return buggy

    return make


def within(context: Callable[..., Any]) -> Make:
    """As it was, inside something that spoils it."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def buggy(*args: Any, **kwargs: Any) -> Any:
            with context(*args, **kwargs):
                return original(*args, **kwargs)

        return buggy

    return make


# ---- Larger mutations


def _rescan(segment: Segment, epochs: LeaderEpochs, start: int, interval_bytes: int) -> ValidPrefix:
    """A recovery that looks at headers only, from some position on."""
    segment.start_rebuild()
    end, end_offset, producers = start, segment.base_offset, []
    for found in read_headers(segment.file, start, segment.size_bytes):
        header = found.header
        segment.note_batch(
            last_offset=header.last_offset, position=found.position, size_bytes=header.size_bytes,
            max_timestamp=header.max_timestamp, interval_bytes=interval_bytes,
        )  # fmt: skip
        epochs.assign(header.partition_leader_epoch, header.base_offset)
        end, end_offset = found.end, header.last_offset + 1
        if header.producer_id >= 0:
            producers.append(found.position)
    return ValidPrefix(end, end_offset, producers)


def _believes_headers(segment: Segment, epochs: LeaderEpochs, *, interval_bytes: int, **more: object) -> ValidPrefix:
    return _rescan(segment, epochs, 0, interval_bytes)


def _believes_the_index(segment: Segment, epochs: LeaderEpochs, *, interval_bytes: int, **more: object) -> ValidPrefix:
    """What lies before the last entry of the old index has been seen, surely."""
    entry = segment.offset_index.last()
    return _rescan(segment, epochs, 0 if entry is None else entry.position, interval_bytes)


def _tries_again(original: Callable[..., Any]) -> Callable[..., Any]:
    def run(job: FlushJob) -> None:
        try:
            original(job)
        except Exception:  # noqa: BLE001 - that is the bug
            job.is_done, job.error = False, None
            original(job)

    return run


def _says_done(job: FlushJob) -> None:
    job.is_done = True


def _begins_without_a_lower_recovery_point(of: TruncationState, *_: int) -> Iterator[None]:
    of.count += 1
    return iter(())


def _ends_without_a_checkpoint(of: TruncationState) -> Iterator[None]:
    of.count += 1
    of._limit = None
    return iter(())


@contextmanager
def _with_end_for_flushed(of: LogDirectory, *args: object) -> Iterator[None]:
    flushed = {log: log.flushed_offset for log in of.logs.values()}
    for log in flushed:
        log.flushed_offset = log.end_offset
    try:
        yield
    finally:
        for log, offset in flushed.items():
            log.flushed_offset = offset


@contextmanager
def _with_start_zero(of: LogDirectory, *args: object) -> Iterator[None]:
    starts = {log: log.log_start_offset for log in of.logs.values()}
    for log in starts:
        log.log_start_offset = 0
    try:
        yield
    finally:
        for log, offset in starts.items():
            log.log_start_offset = offset


@contextmanager
def _without_cutting_logs(*args: object, **kwargs: object) -> Iterator[None]:
    truncate = SimFile.truncate

    def only_others(file: SimFile, size: int) -> None:
        if not file._path.name.endswith(".log"):
            truncate(file, size)

    with patch.object(SimFile, "truncate", only_others):
        yield


def _keeps_high_watermark(original: Callable[..., Any]) -> Callable[..., Any]:
    def cut(log: PartitionLog, offset: int) -> None:
        high_watermark = log.high_watermark
        original(log, offset)
        log.high_watermark = high_watermark

    return cut


def _keeps_the_epochs(original: Callable[..., Any]) -> Callable[..., Any]:
    def cut(log: PartitionLog, offset: int) -> None:
        with patch.object(LeaderEpochs, "truncate_from_end", lambda self, end_offset: False):
            original(log, offset)

    return cut


def _keeps_the_directory(of: LogDirectory, topic_partition: Any) -> None:
    of.logs.pop(topic_partition, None)


def _ignores_the_names(of: PendingFlush, *paths: Any) -> None:
    of._paths |= frozenset(paths)


def _believes_the_marker(original: Callable[..., Any]) -> Callable[..., Any]:
    def load(of: LogDirectory, overrides: Any) -> None:
        remove = SimDisk.remove
        keeping = lambda disk, path: None if path.name == ".kafka_cleanshutdown" else remove(disk, path)  # noqa: E731
        with patch.object(SimDisk, "remove", keeping):
            original(of, overrides)

    return load


def _overtakes(job: CheckpointJob) -> None:
    job._newest[0] = job._number


def _forgets_the_transaction(of: ProducerStateManager, now_ms: int, *, after_ms: int) -> int:
    gone = [info.producer_id for info in of.describe() if now_ms - info.last_timestamp >= after_ms]
    for producer_id in gone:
        del of._entries[producer_id]
        of._ongoing.pop(producer_id, None)
    return len(gone)


async def _verifies_nothing(of: TransactionVerifier, verification: TransactionVerification) -> None:
    verification.error = ErrorCode.NONE


def _keeps_the_guard(original: Callable[..., Any]) -> Callable[..., Any]:
    def append_end_marker(of: ProducerStateManager, producer_id: int, *args: Any, **kwargs: Any) -> Any:
        guard = of._verifications.get(producer_id)
        result = original(of, producer_id, *args, **kwargs)
        if guard is not None:
            of._verifications[producer_id] = guard
        return result

    return append_end_marker


def _is_blind_to_epochs(original: Callable[..., Any]) -> Callable[..., Any]:
    def has_ongoing_transaction(of: ProducerStateManager, producer_id: int, epoch: int) -> bool:
        entry = of.entry(producer_id)
        return original(of, producer_id, epoch if entry is None else entry.epoch)  # type: ignore[no-any-return]

    return has_ongoing_transaction


def _is_blind_to_old_epochs(original: Callable[..., Any]) -> Callable[..., Any]:
    def check(of: ProducerStateManager, producer_id: int, epoch: int, guard: Any) -> None:
        return original(of, producer_id, 1 << 15, guard)  # type: ignore[no-any-return]

    return check


def _ignores_batches_without_sequence(original: Callable[..., Any]) -> Callable[..., Any]:
    def update(of: ProducerStateManager, header: Any, *args: Any) -> Any:
        if header.base_sequence < 0 and not header.is_control:
            return None
        return original(of, header, *args)

    return update


def _forgets_open_transactions(original: Callable[..., Any]) -> Callable[..., Any]:
    def encode(producers: ProducerStateManager) -> bytes:
        kept = copy.deepcopy(producers)
        for _, entry in kept.entries():
            entry.txn_first_offset = -1
        return original(kept)  # type: ignore[no-any-return]

    return encode


def _knows_one_batch(of: ProducerStateManager, producer_id: int, *args: object, **kwargs: object) -> None:
    producer = of.entry(producer_id)
    assert producer is not None
    while len(producer.batches) > 1:
        producer.batches.popleft()


def _cuts_the_epoch_with_the_start(original: Callable[..., Any]) -> Callable[..., Any]:
    def cut_start(of: LeaderEpochs, start_offset: int) -> bool:
        of._entries = [entry for entry in of._entries if entry.start_offset >= start_offset]
        return True

    return cut_start


def _is_blind_to_wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
    def check(
        of: ProducerStateManager, producer_id: int, epoch: int, first_sequence: int, count: int, **more: Any
    ) -> Any:
        producer = of.entry(producer_id)
        if producer is not None and producer.epoch == epoch and producer.last_sequence == (1 << 31) - 1:
            first_sequence += 1 << 31
        return original(of, producer_id, epoch, first_sequence, count, **more)

    return check


def _discards_first(original: Callable[..., Any]) -> Callable[..., Any]:
    def swap_in(of: CleaningPass, group: Any) -> Any:
        of._log._delete_segment_files(of._segments[group.first_source : group.first_source + group.sources])
        with patch.object(PartitionLog, "_delete_segment_files", lambda *_: None):
            return original(of, group)

    return swap_in


@contextmanager
def _with_end_for_high_watermark(of: PartitionLog, *args: object, **kwargs: object) -> Iterator[None]:
    flushed, high_watermark = of.flushed_offset, of.high_watermark
    of.flushed_offset = of.high_watermark = of.end_offset
    try:
        yield
    finally:
        of.flushed_offset, of.high_watermark = flushed, high_watermark


@contextmanager
def _with_nothing_undecided(*args: object, **kwargs: object) -> Iterator[None]:
    with patch.object(ProducerStateManager, "first_unstable_offset", lambda *_: None):
        yield


def bug(name: str, what: str, suite: str, *patches: Patch, seed: int = 1, within: int = 400, quick: bool = True) -> Bug:
    return Bug(name, what, suite, patches, seed, within, quick)


STORAGE_BUGS: tuple[Bug, ...] = (
    # Recovery
    bug("recovery-without-crc", "recovery believes every header and checks no checksum", "crash tests of appends",
        Patch(log_recovery, "recover_valid_prefix", lambda original: _believes_headers)),
    bug("index-trusted-past-the-log", "recovery begins where the old index ends, and does not check what is before",
        "crash tests of rolls", Patch(log_recovery, "recover_valid_prefix", lambda original: _believes_the_index)),
    bug("torn-tail-accepted", "recovery notices a torn tail and leaves it in the file", "crash tests of appends",
        Patch(UncleanRecovery, "_recover_segment", within(_without_cutting_logs))),
    bug("gaps-accepted", "recovery accepts batches after missing ones", "crash tests of rolls",
        Patch(log_recovery, "recover_valid_prefix", given(may_have_gaps=True)), Patch(UncleanRecovery, "__init__", given(may_have_gaps=True))),
    bug("segments-after-a-truncation-kept", "recovery truncates a segment and keeps the later ones", "crash tests of rolls",
        Patch(log_recovery, "delete_from", does())),
    bug("recovery-not-synced", "what survived a kill counts as durable although only the system holds it",
        "crash tests of stops", Patch(LogDirectory, "_begin_recovered", does([]))),
    bug("clean-marker-left", "the clean marker is read and not taken away", "crash tests of stops",
        Patch(LogDirectory, "_load", _believes_the_marker)),
    bug("producers-not-replayed", "recovery loads the newest snapshot and does not replay the batches after it",
        "crash tests of producers", Patch(producer_replay, "replay_batch", does())),
    bug("snapshot-too-new-trusted", "a snapshot from beyond the log end is loaded", "crash tests of truncations",
        Patch(ProducerSnapshots, "load_newest", given(not_after=1 << 60, end_offset=1 << 60))),
    bug("aborted-not-rebuilt", "recovery does not make the index of aborted transactions again",
        "crash tests of transactions", Patch(producer_replay, "replace_aborted", does(False))),
    bug("epoch-not-noted", "a new leader's epoch is written into the batches only", "log against list",
        Patch(PartitionLog, "assign_epoch", does())),
    # What must be synced, and when
    bug("flush-without-fsync", "a flush is done without a sync", "crash tests of appends",
        Patch(FlushJob, "run", lambda original: _says_done)),
    bug("ack-before-fsync", "the high watermark follows the write, not the sync", "acks at stops",
        Patch(Partition, "append_as_leader", after(lambda of, *_, **__: of._advance(of.log.end_offset)))),
    bug("retry-after-failed-fsync", "a failed fsync is tried again, and then it works", "acks at failed syncs",
        Patch(FlushJob, "run", _tries_again)),
    bug("directory-not-synced", "new files are synced and their names are not", "crash tests of rolls",
        Patch(PendingFlush, "add_files", lambda original: _ignores_the_names),
        Patch(PendingFlush, "add_directories", does())),
    bug("sealed-segment-not-synced", "a flush syncs the active segment only", "crash tests of rolls",
        Patch(PendingFlush, "add_sealed", does())),
    bug("recovery-point-before-flush", "a checkpoint notes the end of the log as its recovery point",
        "crash tests of checkpoints", Patch(LogDirectory, "begin_checkpoint", within(_with_end_for_flushed)), quick=False),
    bug("checkpoint-overtaken", "a checkpoint that was begun before a cut is written after it",
        "crash tests of checkpoints", Patch(CheckpointJob, "run", before(_overtakes)), quick=False),
    bug("topic-id-not-synced", "partition.metadata is written and never synced", "crash tests of topics",
        Patch(PartitionLog, "mark_created", lambda original: lambda of, *paths: original(of))),
    # Cutting
    bug("truncation-not-synced", "a truncation leaves the sync to the next flush", "crash tests of truncations",
        Patch(TruncationSync, "run", does()), quick=False),
    bug("epochs-not-cut", "leader epochs outlive the records that a truncation takes", "crash tests of epochs",
        Patch(PartitionLog, "_truncate_suffix", _keeps_the_epochs), quick=False),
    bug("high-watermark-above-end", "a truncation leaves the high watermark where it was", "log against list",
        Patch(PartitionLog, "_truncate_suffix", _keeps_high_watermark)),
    bug("recovery-point-not-lowered", "a truncation leaves the recovery point above the new end",
        "crash tests of truncations", Patch(TruncationState, "begin", lambda _: _begins_without_a_lower_recovery_point),
        Patch(TruncationState, "end", lambda _: _ends_without_a_checkpoint), quick=False),
    bug("log-start-not-kept", "DeleteRecords moves the start in memory only", "crash tests of deletions",
        Patch(LogDirectory, "begin_checkpoint", within(_with_start_zero)), quick=False),
    bug("undurable-segment-retained-away", "retention takes segments above the high watermark", "log against list",
        Patch(partition_log, "LogEnds", given(high_watermark=1 << 60)), quick=False),
    bug("deleted-directory-reused", "a deleted topic's directory is left for the next of its name", "crash tests of topics",
        Patch(LogDirectory, "delete_log", lambda original: _keeps_the_directory)),
    bug("epoch-cut-with-start", "the epoch that holds the new log start is forgotten", "epochs against oracle",
        Patch(LeaderEpochs, "truncate_from_start", _cuts_the_epoch_with_the_start)),
    # Producers, transactions, indexes
    bug("sequence-not-checked", "every batch of an idempotent producer is taken", "producers against oracle",
        Patch(ProducerStateManager, "check_data_batch", does())),
    bug("one-batch-remembered", "only a repeat of the very last batch is known", "producers against oracle",
        Patch(ProducerStateManager, "append_data_batch", after(_knows_one_batch))),
    bug("sequence-does-not-wrap", "after 2^31-1 a producer should go on with 2^31", "producers against oracle",
        Patch(ProducerStateManager, "check_data_batch", _is_blind_to_wrapping), quick=False),
    bug("open-transaction-expired", "a silent producer is forgotten with its open transaction",
        "producers against oracle", Patch(ProducerStateManager, "remove_expired", lambda original: _forgets_the_transaction)),
    bug("open-transaction-readable", "readers of committed records are not held up by open transactions",
        "crash tests of transactions", Patch(ProducerStateManager, "first_unstable_offset", does())),
    bug("transaction-not-verified", "the coordinator is not asked whether a partition belongs to a transaction", "delayed batches",
        Patch(TransactionVerifier, "verify", lambda original: _verifies_nothing)),
    bug("guard-not-checked-at-the-append", "a verification counts although a marker was written meanwhile",
        "verification against reference", Patch(ProducerStateManager, "_check_verified", does())),
    bug("guard-kept-over-a-marker", "the end of a transaction leaves its verification in force",
        "verification against reference", Patch(ProducerStateManager, "append_end_marker", _keeps_the_guard)),
    bug("open-transaction-of-another-epoch", "a batch of the next epoch needs no verification while the last transaction is open",
        "verification against reference", Patch(ProducerStateManager, "has_ongoing_transaction", _is_blind_to_epochs)),
    bug("fatal-error-for-an-old-epoch", "a batch of a fenced epoch is refused as unverified (KAFKA-19690)",
        "verification against reference", Patch(ProducerStateManager, "_check_verified", _is_blind_to_old_epochs)),
    bug("later-batch-overtakes", "a batch is appended before an earlier one that is still to be verified",
        "verification against reference", Patch(ProducerStateManager, "_check_first_sequence", does())),
    bug("marker-of-the-same-epoch", "a marker of the second version need not have a higher epoch",
        "verification against reference", Patch(ProducerStateManager, "check_epoch_bump", does())),
    bug("coordinator-not-fenced", "the marker of a replaced coordinator is written", "verification against reference",
        Patch(producer_state_manager, "_check_marker", does())),
    bug("batches-without-sequence-ignored", "offsets that a group commits do not open a transaction in the log",
        "crash tests of offset-commits", Patch(ProducerStateManager, "update", _ignores_batches_without_sequence)),
    bug("transaction-not-in-snapshot", "a snapshot leaves out the open transactions", "producers against oracle",
        Patch(producer_snapshots, "encode_snapshot", _forgets_open_transactions)),
    bug("marker-not-noted", "an abort marker is written without an index entry", "indexes against scan",
        Patch(PendingFlush, "add_aborted", does())),
    bug("last-time-not-sealed", "a sealed segment's time index lacks its greatest time", "indexes against scan",
        Patch(Segment, "seal", does())),
    bug("time-off-by-one", "a look-up by time skips records of just that time", "indexes against scan",
        Patch(Segment, "first_batch_reaching", lambda original: lambda of, timestamp: original(of, timestamp + 1))),
    # Compaction
    bug("tombstone-dropped-at-once", "a tombstone goes with the first pass that sees it", "crash tests of compactions",
        Patch(OffsetMap, "choose", given(drops_tombstones=True)), quick=False),
    bug("delete-horizon-not-set", "the first pass does not note when a tombstone may go", "cleaner against dict",
        Patch(batch_filter, "_rewritten", given(sets_horizon=False))),
    bug("swap-order-reversed", "the old segments go before the new one counts", "crash tests of compactions",
        Patch(CleaningPass, "swap_in", _discards_first), quick=False),
    bug("cleaner-past-high-watermark", "what is not flushed replaces what is", "crash tests of compactions",
        Patch(log_to_clean, "log_to_clean", within(_with_end_for_high_watermark)), quick=False),
    bug("cleaner-past-open-transaction", "records of an open transaction count as committed",
        "crash tests of compacted-transactions", Patch(log_to_clean, "log_to_clean", within(_with_nothing_undecided)), quick=False),
    bug("last-batch-of-producer-dropped", "an emptied batch goes although its producer's sequence is in it alone",
        "cleaner against dict", Patch(BatchFilter, "_holds_sequence", does(False)), quick=False),
    bug("aborted-records-replace", "the latest value of a key may be an aborted one", "cleaner against dict",
        Patch(CleanedTransactions, "data", does(False))),
    bug("old-segments-not-removed", "the compacted segment takes its name and the old ones stay",
        "crash tests of compactions", Patch(PartitionLog, "_delete_segment_files", does())),
)  # fmt: skip

BUGS = (*STORAGE_BUGS, *GROUP_BUGS, *CONSUMER_GROUP_BUGS, *SHARE_BUGS, *MOVING_BUGS, *TRANSACTION_BUGS)
