"""What a cleaning leaves of a log, batch by batch, and what makes its result worthless."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ottla.records.batch import BatchHeader
from ottla.records.batch_faults import is_checksum_right
from ottla.storage.cleaning.cleaner import run_pass
from ottla.storage.cleaning.errors import SegmentGone, Uncleanable
from ottla.storage.cleaning.log_to_clean import dirtiest_log, log_to_clean
from ottla.storage.cleaning.throttler import Throttler
from ottla.storage.loading.swap_files import complete_swaps
from ottla.storage.state.aborted_index import read_aborted
from tests.support.cleaning import batches_in, clean_once, groups_of, records_in_log, run, throttle_free
from tests.support.compacted_log import CONFIG, PARTITION, CompactedLog
from tests.support.storage import NOW_MS, TP, StillClock, batch, content, open_directory, records_in

# ---- Retained records


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_keeps_its_codec_offsets_and_sequence_when_records_go(codec: int) -> None:
    compacted = CompactedLog()
    compacted.append(
        (b"a", b"1"),
        (b"b", b"1" * 50),
        (b"a", b"2"),
        (b"c", b"1"),
        codec=codec,
        producer_id=3,
        producer_epoch=1,
        base_sequence=40,
    )
    compacted.append((b"c", b"2"))
    compacted.clean()
    (first, _) = batches_in(compacted.log)
    header = first.header
    assert [(r.offset, r.key, r.value) for r in first.records] == [(1, b"b", b"1" * 50), (2, b"a", b"2")]
    assert (header.codec, header.base_offset, header.last_offset, header.record_count) == (codec, 0, 3, 2)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (3, 1, 40)
    assert (header.base_timestamp, header.max_timestamp) == (NOW_MS + 1, NOW_MS + 2), "times are those of what is left"
    assert [record.timestamp_ms for record in first.records] == [NOW_MS + 1, NOW_MS + 2]
    assert is_checksum_right(first.raw, header)


def test_a_batch_of_which_all_stays_is_copied_byte_for_byte() -> None:
    compacted = CompactedLog()
    compacted.append((b"a", b"1"), (b"b", b"1"), codec=4)
    before = batches_in(compacted.log)[0].raw
    compacted.append((b"c", b"1"), (b"c", b"2"))
    compacted.clean()
    assert batches_in(compacted.log)[0].raw == before


def test_records_without_a_key_go_and_are_counted() -> None:
    compacted = CompactedLog()
    compacted.append((None, b"1"), (b"a", b"1"), (None, b"2"))
    compacted.settle()
    done = clean_once(compacted.directory, compacted.log, compacted.clock)
    assert done is not None
    assert (compacted.kept(), done.counts.records_without_key) == ([(1, b"a", b"1")], 2)


def test_the_last_batch_of_an_active_producer_stays_empty_and_goes_once_it_has_written_again() -> None:
    compacted = CompactedLog()
    compacted.append((b"a", b"1"), (b"a", b"2"), producer_id=3, producer_epoch=0, base_sequence=0)
    compacted.append((b"a", b"3"))
    compacted.clean()
    empty = batches_in(compacted.log)[0]
    assert (empty.header.base_offset, empty.header.last_offset, empty.header.record_count) == (0, 1, 0)
    assert (empty.header.producer_id, empty.header.base_sequence) == (3, 0)
    assert empty.header.codec == 0
    assert is_checksum_right(empty.raw, empty.header)
    compacted.append((b"b", b"1"), producer_id=3, producer_epoch=0, base_sequence=2)
    compacted.clean()
    assert [seen.header.base_offset for seen in batches_in(compacted.log)] == [2, 3]


def test_the_last_batch_of_a_pass_stays_as_a_header_so_that_the_logs_end_is_not_lost() -> None:
    compacted = CompactedLog()
    compacted.append((b"a", b"1"))
    compacted.append((None, b"1"))
    compacted.clean()
    assert [(b.header.base_offset, b.header.record_count) for b in batches_in(compacted.log)] == [(0, 1), (1, 0)]


def test_records_not_covered_by_a_full_map_wait_for_the_next_pass() -> None:
    compacted = CompactedLog()
    for number in range(40):
        compacted.append((b"key %d" % (number % 10), b"%d" % number))
    compacted.settle()
    passes = 0
    while (done := clean_once(compacted.directory, compacted.log, compacted.clock, slots=5)) is not None:
        passes += 1
        end = done.end_offset
        offsets = [offset for offset, _, _ in compacted.kept()]
        assert [offset for offset in offsets if offset >= end] == list(range(end, 40))
    assert passes > 3
    assert [offset for offset, _, _ in compacted.kept()] == list(range(30, 40))


def test_an_abort_marker_and_its_line_in_the_index_stay_while_data_was_met_and_go_a_horizon_later() -> None:
    compacted = CompactedLog()
    compacted.append((b"a", b"aborted"), producer_id=3, producer_epoch=0, base_sequence=0, transactional=True)
    compacted.end(3, commit=False)

    def control() -> list[BatchHeader]:
        return [seen.header for seen in batches_in(compacted.log) if seen.header.is_control]

    def lines() -> int:
        indexes = [read_aborted(compacted.disk, segment.path(".txnindex")) or [] for segment in compacted.log.segments]
        return sum(len(entries) for entries in indexes)

    compacted.append((b"b", b"1"))
    compacted.clean()  # its data goes
    assert (compacted.kept(), len(control()), lines()) == ([(2, b"b", b"1")], 1, 1)
    assert [seen.horizon_ms for seen in batches_in(compacted.log) if seen.header.is_control] == [None]
    compacted.log.producers.remove_expired(NOW_MS + (1 << 40), after_ms=1)
    compacted.append((b"b", b"2"))
    compacted.clean()  # and the header that held its sequence
    compacted.append((b"b", b"3"))
    compacted.clean()  # now nothing is left of it: the horizon is given
    assert [seen.horizon_ms for seen in batches_in(compacted.log) if seen.header.is_control] == [NOW_MS + 1000]
    compacted.clock.now_ms += 999
    compacted.append((b"b", b"4"))
    compacted.clean()
    assert len(control()) == 1
    compacted.clock.now_ms += 1
    compacted.append((b"b", b"5"))
    compacted.clean()
    assert (control(), lines()) == ([], 0)


def test_an_arrival_time_outlives_compaction() -> None:
    compacted = CompactedLog(replace(CONFIG, timestamp_type="LogAppendTime"))
    compacted.append((b"a", b"1"), (b"b", None), (b"a", b"2"))
    compacted.clean()
    (seen,) = batches_in(compacted.log)
    assert seen.header.log_append_time
    assert seen.horizon_ms == NOW_MS + 1000
    assert [record.timestamp_ms for record in seen.records] == [NOW_MS, NOW_MS]


# ---- Cleanable segments


def test_nothing_is_cleaned_at_or_after_the_first_open_transaction() -> None:
    compacted = CompactedLog()
    compacted.append((b"a", b"1"))
    compacted.settle()
    compacted.append((b"a", b"2"), producer_id=3, producer_epoch=0, base_sequence=0, transactional=True)
    compacted.settle()
    compacted.append((b"a", b"3"))
    compacted.settle()
    found = log_to_clean(compacted.log, now_ms=NOW_MS)
    assert found is not None
    assert [segment.base_offset for segment in found.segments] == [0]
    compacted.end(3, commit=True)
    compacted.settle()
    found = log_to_clean(compacted.log, now_ms=NOW_MS)
    assert found is not None
    assert len(found.segments) == 4


def test_nothing_is_cleaned_beyond_the_high_watermark() -> None:
    compacted = CompactedLog()
    for number in range(3):
        compacted.append((b"a", b"%d" % number))
        compacted.log.roll()
    compacted.log.flush()
    compacted.log.update_high_watermark(2)
    found = log_to_clean(compacted.log, now_ms=NOW_MS)
    assert found is not None
    assert found.first_uncleanable_offset == 2


def test_nothing_is_cleaned_that_is_not_on_the_disk_yet() -> None:
    compacted = CompactedLog()
    for number in range(3):
        compacted.append((b"a", b"%d" % number))
        compacted.log.roll()
        if number == 0:
            compacted.log.flush()
    compacted.log.update_high_watermark(3)
    found = log_to_clean(compacted.log, now_ms=NOW_MS)
    assert found is not None
    assert found.first_uncleanable_offset == 1


def test_the_dirtiest_log_comes_first_and_a_log_that_is_clean_enough_not_at_all() -> None:
    found = []
    for clean_segments in (1, 5, 2, 9):
        compacted = CompactedLog()
        for _ in range(10):
            compacted.append((b"a", b"1" * 100))
            compacted.settle()
        compacted.log.cleaner_line.cleaned_to(clean_segments)
        each = log_to_clean(compacted.log, now_ms=NOW_MS)
        assert each is not None
        found.append(each)
    assert dirtiest_log(found) is found[0]
    assert dirtiest_log(found[1:]) is found[2]
    assert dirtiest_log([found[1], found[3]]) is None


@pytest.mark.parametrize("noted", [99, -1])
def test_a_mark_from_before_a_deletion_or_a_truncation_is_passed_over(noted: int) -> None:
    compacted = CompactedLog()
    compacted.append((b"a", b"1"))
    compacted.settle()
    compacted.log.cleaner_line.cleaned_to(noted)
    found = log_to_clean(compacted.log, now_ms=NOW_MS)
    assert found is not None
    assert found.first_dirty_offset == 0


def test_the_mark_falls_with_a_truncation() -> None:
    compacted = CompactedLog()
    for number in range(6):
        compacted.append((b"%d" % number, b"1"))
        compacted.log.roll()
    compacted.clean()
    assert compacted.log.cleaner_line.cleaned_offset == 6
    compacted.log.truncate_to(2)
    assert compacted.log.cleaner_line.cleaned_offset == 2


# ---- Discarded results


def truncated(compacted: CompactedLog) -> None:
    compacted.log.truncate_to(compacted.log.end_offset - 1)


def deleted(compacted: CompactedLog) -> None:
    compacted.directory.delete_log(TP)


def made_to_delete(compacted: CompactedLog) -> None:
    compacted.log.reconfigure(replace(CONFIG, cleanup_policy=("delete",)))


def cut_at_the_start(compacted: CompactedLog) -> None:
    compacted.log.delete_records(5)
    assert compacted.log.delete_old_segments(NOW_MS) > 0


def offline(compacted: CompactedLog) -> None:
    compacted.log.health.fail("a test", OSError(5, "broken"))


@pytest.mark.parametrize("happened", [truncated, deleted, made_to_delete, cut_at_the_start, offline])
def test_a_change_of_the_log_meanwhile_makes_the_result_worthless(happened: Callable[[CompactedLog], None]) -> None:
    compacted = CompactedLog()
    for number in range(12):
        compacted.append((b"%d" % (number % 2), b"x" * 100))
    cleaning = compacted.begin()
    compacted.append((b"z", b"beyond"))
    group = next(iter(groups_of(cleaning, compacted.log, compacted.clock)))
    happened(compacted)
    directory = compacted.log.directory
    before = [(segment, segment.base_offset) for segment in compacted.log.segments]
    names = compacted.disk.names_in(directory)
    assert any(".cleaned" in name for name in names)
    assert cleaning.swap_in(group) != ""
    assert [(segment, segment.base_offset) for segment in compacted.log.segments] == before
    assert compacted.disk.names_in(directory) == names
    cleaning.discard()
    assert not any(".cleaned" in name for name in compacted.disk.names_in(directory))


def test_retention_after_the_current_group_does_not_change_it() -> None:
    compacted = CompactedLog()
    for number in range(30):
        compacted.append((b"%d" % (number % 20), b"x" * 100))
    cleaning = compacted.begin()
    groups = groups_of(cleaning, compacted.log, compacted.clock)
    assert cleaning.swap_in(next(groups)) == ""
    compacted.log.delete_records(cleaning.plan.sources[1].base_offset)
    compacted.log.delete_old_segments(NOW_MS)
    for group in groups:
        assert cleaning.swap_in(group) == ""
    assert [offset for offset, _, _ in compacted.kept() if offset >= 10] == list(range(10, 30))


def test_a_segment_that_goes_while_it_is_read_ends_the_pass() -> None:
    compacted = CompactedLog()
    for number in range(12):
        compacted.append((b"%d" % number, b"x" * 100))
    cleaning = compacted.begin()
    compacted.log.delete_records(5)
    compacted.log.delete_old_segments(NOW_MS)
    with pytest.raises(SegmentGone):
        run(cleaning, compacted.log, compacted.clock)


def test_readers_of_the_old_files_finish() -> None:
    compacted = CompactedLog()
    for number in range(12):
        compacted.append((b"a", b"%d" % number + b"x" * 100))
    compacted.settle()
    region = compacted.log.read(0, max_bytes=300, end_offset=12)
    assert region is not None
    before = region.read()
    compacted.clean()
    assert region.read() == before
    after = records_in(content(compacted.log.read(0, max_bytes=1 << 20, end_offset=12)))
    assert [record.offset for record in after] == [11]


# ---- Corruption


def flip(compacted: CompactedLog, base: int, suffix: str, bit: int) -> None:
    compacted.disk.flip_bit(PARTITION / f"{base:020}{suffix}", bit)


@pytest.mark.parametrize("byte", [3, 8, 16, 18, 22, 70])  # offset, length, magic, checksum, attributes, a record
def test_a_corrupt_batch_makes_the_log_uncleanable_and_is_left_as_it_is(byte: int) -> None:
    compacted = CompactedLog()
    for number in range(8):
        compacted.append((b"%d" % number, b"x" * 100))
    cleaning = compacted.begin()
    compacted.log.close_files()
    flip(compacted, 0, ".log", byte * 8 + 3)
    before = compacted.files()
    with pytest.raises(Uncleanable):
        run(cleaning, compacted.log, compacted.clock)
    assert compacted.files() == before


def test_a_corrupt_index_of_aborted_transactions_makes_the_log_uncleanable() -> None:
    compacted = CompactedLog()
    compacted.append((b"a", b"aborted"), producer_id=3, producer_epoch=0, base_sequence=0, transactional=True)
    compacted.end(3, commit=False)
    cleaning = compacted.begin()
    flip(compacted, 0, ".txnindex", 3)
    with pytest.raises(Uncleanable, match="aborted transactions"):
        run(cleaning, compacted.log, compacted.clock)


# ---- Leftover files of Kafka


def kafkas_swap(compacted: CompactedLog, *, suffix: str) -> None:
    """Leave what Kafka leaves when it dies after the rename of its new files: the old files still exist."""
    cleaning = compacted.begin()
    group = next(iter(groups_of(cleaning, compacted.log, compacted.clock)))
    assert group.first_source == 0
    for name in compacted.disk.names_in(PARTITION):
        if name.endswith(cleaning.plan.suffix):
            compacted.disk.rename(PARTITION / name, PARTITION / (name.removesuffix(cleaning.plan.suffix) + suffix))


def prepared() -> CompactedLog:
    compacted = CompactedLog()
    for number in range(12):
        compacted.append((b"%d" % (number % 3), b"%d" % number + b"x" * 60))
    compacted.log.reconfigure(replace(CONFIG, segment_bytes=10_000))  # so that all becomes one segment
    return compacted


def test_kafkas_swap_is_finished() -> None:
    compacted = prepared()
    kafkas_swap(compacted, suffix=".swap")
    for segment in compacted.log.segments[:-1]:
        compacted.disk.open(segment.path(".sums"), create=True)
    complete_swaps(compacted.disk, PARTITION, compacted.disk.names_in(PARTITION))
    assert not [name for name in compacted.disk.names_in(PARTITION) if name.endswith((".swap", ".sums"))]
    compacted.directory.close()
    log = open_directory(compacted.disk, CONFIG, compacted.clock).logs[TP]
    assert [record.offset for record in records_in_log(log)] == [9, 10, 11]


def test_a_swap_of_kafkas_that_is_not_whole_is_dropped() -> None:
    compacted = prepared()
    before = compacted.kept()
    kafkas_swap(compacted, suffix=".cleaned")
    base = "00000000000000000000"
    compacted.disk.rename(PARTITION / f"{base}.log.cleaned", PARTITION / f"{base}.log.swap")
    compacted.directory.close()
    log = open_directory(compacted.disk, CONFIG, compacted.clock).logs[TP]
    assert [(record.offset, record.key, record.value) for record in records_in_log(log)] == before
    assert not [name for name in compacted.disk.names_in(PARTITION) if name.endswith((".swap", ".cleaned"))]


def test_files_of_a_worker_left_over_do_not_make_kafkas_rule_apply_to_ours() -> None:
    compacted = prepared()
    kafkas_swap(compacted, suffix=".swap")
    compacted.disk.open(PARTITION / "00000000000000000000.log.0123456789abcdef.cleaned", create=True)
    compacted.directory.close()
    log = open_directory(compacted.disk, CONFIG, compacted.clock).logs[TP]
    assert [record.offset for record in records_in_log(log)] == [9, 10, 11]


# ---- Components


def test_segments_that_outgrow_their_group_when_rewritten_are_grouped_again() -> None:
    """Tombstones get longer time deltas with their horizon: two segments of just the size become too large for one."""
    compacted = CompactedLog(replace(CONFIG, segment_bytes=2000, delete_retention_ms=1 << 40))
    for number in range(2):
        compacted.append(*((b"%d %d" % (number, at), None) for at in range(70)))
        compacted.settle()
    size = compacted.log.segments[0].size_bytes
    compacted.log.reconfigure(replace(compacted.log.config, segment_bytes=2 * size + 10))
    cleaning = compacted.begin()
    groups = []
    for group in groups_of(cleaning, compacted.log, compacted.clock):
        groups.append(group)
        assert cleaning.swap_in(group) == ""
    assert [group.sources for group in groups] == [1, 1]
    assert len(compacted.kept()) == 140
    assert all(segment.size_bytes > size for segment in compacted.log.segments[:2])


def test_a_pass_takes_as_long_as_its_bytes_at_the_rate() -> None:
    compacted = CompactedLog()
    for number in range(20):
        compacted.append((b"%d" % number, b"x" * 100))
    cleaning = compacted.begin()
    clock = StillClock()

    def sleep(seconds: float) -> None:
        clock.now_ms += round(seconds * 1000)

    throttle = Throttler(100, clock=clock, sleep=sleep)
    for _ in run_pass(cleaning.plan, compacted.disk, clock=clock, throttle=throttle):
        pass
    size = sum(source.size_bytes for source in cleaning.plan.sources)
    assert (clock.now_ms - NOW_MS) / 1000 == pytest.approx(3 * size / 100, rel=0.05)  # read twice, written once


def test_nothing_of_a_pass_that_failed_is_left() -> None:
    compacted = CompactedLog()
    for number in range(12):
        compacted.append((b"%d" % number, b"x" * 100))
    cleaning = compacted.begin()
    before = compacted.disk.names_in(PARTITION)
    compacted.disk.capacity_bytes = 0
    with pytest.raises(OSError, match="No space"):
        list(run_pass(cleaning.plan, compacted.disk, clock=compacted.clock, throttle=throttle_free(compacted.clock)))
    assert compacted.disk.names_in(PARTITION) == before


def test_a_plain_record_of_a_client_is_as_good_as_any() -> None:
    compacted = CompactedLog()
    compacted.log.append(batch(b"1", key=b"a"), leader_epoch=0, now_ms=NOW_MS)
    compacted.log.append(batch(b"2", key=b"a"), leader_epoch=0, now_ms=NOW_MS)
    compacted.clean()
    assert compacted.kept() == [(1, b"a", b"2")]
