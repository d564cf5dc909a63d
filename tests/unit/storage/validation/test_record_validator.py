"""Tests which batches are validated, which records are refused and named, and changes of codec."""

from __future__ import annotations

import gzip
from dataclasses import replace

import lz4.frame
import pytest

from ottla.core.errors import CorruptMessage, InvalidRecord, InvalidTimestamp, MessageTooLarge, RecordListTooLarge
from ottla.records.batch import CODEC_BITS, HEADER_BYTES, BatchHeader
from ottla.records.batch_faults import is_checksum_right
from ottla.records.codecs import Codec, TooMuch, compress, decompress
from ottla.records.record_reader import read_records
from ottla.storage.config import LogConfig
from ottla.storage.log.partition_log import AppendOrigin, PartitionLog
from ottla.storage.validation import record_validator
from ottla.storage.validation.record_validator import (
    FAULTS_MAX,
    RecordValidation,
    required_validation,
    validate_records,
)
from ottla.testing.sim_disk import SimDisk
from tests.support.batches import Written, numbered, record, with_payload
from tests.support.batches import batch as client_batch
from tests.support.storage import NOW_MS, content, everything, marker, open_log

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
DEFAULTS = LogConfig()
HEADER_ONLY = LogConfig(record_validation="header")
COMPACT = LogConfig(cleanup_policy=("compact",))
BOUNDED = LogConfig(timestamp_before_max_ms=DAY_MS)
TARGETS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


def writable(data: bytes) -> memoryview:
    return memoryview(bytearray(data))


def make(
    records: list[bytes],
    *,
    codec: int = 0,
    count: int | None = None,
    base_ms: int = NOW_MS,
    newest_ms: int = NOW_MS,
    attributes: int = 0,
) -> memoryview:
    """Build a batch of the given records, with the given header fields."""
    return writable(
        with_payload(
            compress(codec, b"".join(records)),
            count=len(records) if count is None else count,
            attributes=codec | attributes,
            base_timestamp_ms=base_ms,
            newest_ms=newest_ms,
        )
    )


def at(delta_ms: int = 0, *, offset: int = 0, key: bytes | None = b"k") -> bytes:
    return record(Written(key=key, timestamp_delta_ms=delta_ms), offset)


def appended(log: PartitionLog, batch: memoryview, *, now_ms: int = NOW_MS) -> BatchHeader:
    """Append, and read back the header that is on the disk."""
    where = log.append(batch, leader_epoch=0, now_ms=now_ms)
    stored = content(log.read(where.first_offset, max_bytes=1 << 30, end_offset=log.end_offset))
    header = BatchHeader(stored, 0)
    assert is_checksum_right(stored[: header.size_bytes], header)
    return header


# ---- When records are validated


def test_every_batch_of_a_client_is_validated_by_default() -> None:
    assert DEFAULTS.requires_record_validation
    for codec in range(5):
        header = BatchHeader(make([at()], codec=codec), 0)
        assert required_validation(header, DEFAULTS, now_ms=NOW_MS) is not None
        assert required_validation(header, DEFAULTS, now_ms=NOW_MS, from_client=False) is None


def test_with_validation_of_the_header_alone_records_are_validated_only_where_another_setting_needs_it() -> None:
    assert not HEADER_ONLY.requires_record_validation
    for codec in range(5):
        header = BatchHeader(make([at()], codec=codec), 0)
        assert required_validation(header, HEADER_ONLY, now_ms=NOW_MS) is None
        appended(open_log(SimDisk(), HEADER_ONLY), make([b"garbage"], codec=codec))
    for config in (
        replace(HEADER_ONLY, cleanup_policy=("compact",)),
        replace(HEADER_ONLY, timestamp_before_max_ms=1),
        replace(HEADER_ONLY, compression_type="gzip"),
    ):
        assert config.requires_record_validation
        with pytest.raises(InvalidRecord):
            open_log(SimDisk(), config).append(make([b"garbage"]), leader_epoch=0, now_ms=NOW_MS)


def test_with_validation_of_the_header_alone_only_a_batch_of_another_codec_than_the_topics_is_validated() -> None:
    for name, number in TARGETS.items():
        config = LogConfig(compression_type=name, record_validation="header")
        for codec in range(5):
            task = required_validation(BatchHeader(make([at()], codec=codec), 0), config, now_ms=NOW_MS)
            assert (task is None) == (codec == number)


def test_the_brokers_own_batches_are_validated_for_the_codec_alone_and_its_markers_never() -> None:
    keyless = BatchHeader(make([at(key=None)]), 0)
    for config in (COMPACT, DEFAULTS):
        assert required_validation(keyless, config, now_ms=NOW_MS, from_client=False) is None
    task = required_validation(keyless, LogConfig(compression_type="zstd"), now_ms=NOW_MS, from_client=False)
    assert task is not None and task.codec == Codec.ZSTD and not task.keyed

    log = open_log(SimDisk(), LogConfig(compression_type="zstd", cleanup_policy=("compact",)))
    own = make([at(-10 * DAY_MS, key=None)])
    log.append(own, leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    log.append(marker(9, 0, commit=True), leader_epoch=0, now_ms=NOW_MS, origin=AppendOrigin.COORDINATOR)
    stored = content(log.read(1, max_bytes=1 << 20, end_offset=2))
    assert BatchHeader(stored, 0).codec == Codec.NONE, "a marker stays as it is"


# ---- Refusals


@pytest.mark.parametrize("codec", range(5))
def test_a_compacted_topic_names_each_record_that_has_no_key(codec: int) -> None:
    log = open_log(SimDisk(), COMPACT)
    records = [at(offset=0), at(offset=1, key=None), at(offset=2, key=b""), at(offset=3, key=None)]
    with pytest.raises(InvalidRecord) as refused:
        log.append(make(records, codec=codec), leader_epoch=0, now_ms=NOW_MS)
    assert [fault.place for fault in refused.value.records] == [1, 3]
    assert log.end_offset == 0
    appended(log, make([at(offset=0), at(offset=1, key=b"")], codec=codec))


def test_of_millions_of_wrong_records_a_thousand_are_named() -> None:
    log = open_log(SimDisk(), COMPACT)
    with pytest.raises(InvalidRecord) as refused:
        log.append(make([at(offset=n, key=None) for n in range(3000)], codec=4), leader_epoch=0, now_ms=NOW_MS)
    assert [fault.place for fault in refused.value.records] == list(range(FAULTS_MAX))


def test_each_record_is_held_to_the_bounds_on_its_time_and_one_without_a_time_is_not() -> None:
    log = open_log(SimDisk(), BOUNDED)
    fine = [at(-DAY_MS, offset=0), at(HOUR_MS, offset=1), at(-1 - NOW_MS, offset=2)]
    assert appended(log, make(fine, newest_ms=NOW_MS + HOUR_MS)).max_timestamp == NOW_MS + HOUR_MS
    for wrong in (-DAY_MS - 1, HOUR_MS + 1):
        with pytest.raises(InvalidTimestamp) as refused:
            log.append(make([at(), at(wrong, offset=1)]), leader_epoch=0, now_ms=NOW_MS)
        assert [fault.place for fault in refused.value.records] == [1]
        assert str(NOW_MS + wrong) in refused.value.records[0].message


def test_a_wrong_time_beside_a_missing_key_gives_the_code_of_the_time_and_names_both() -> None:
    log = open_log(SimDisk(), LogConfig(cleanup_policy=("compact",), timestamp_before_max_ms=DAY_MS))
    records = [at(), at(offset=1, key=None), at(HOUR_MS + 1, offset=2), at(HOUR_MS + 1, offset=3, key=None)]
    with pytest.raises(InvalidTimestamp) as refused:
        log.append(make(records), leader_epoch=0, now_ms=NOW_MS)
    assert [fault.place for fault in refused.value.records] == [1, 2, 3]


def test_a_header_with_a_wrong_future_timestamp_is_validated_and_corrected() -> None:
    log = open_log(SimDisk())
    assert appended(log, make([at(5)], newest_ms=NOW_MS + 2 * HOUR_MS)).max_timestamp == NOW_MS + 5
    with pytest.raises(InvalidTimestamp) as refused:
        log.append(
            make([at(), at(2 * HOUR_MS, offset=1)], newest_ms=NOW_MS + 2 * HOUR_MS), leader_epoch=0, now_ms=NOW_MS
        )
    assert [fault.place for fault in refused.value.records] == [1]


def test_arrival_time_knows_no_bounds() -> None:
    log = open_log(SimDisk(), LogConfig(timestamp_type="LogAppendTime", timestamp_before_max_ms=1))
    header = appended(log, make([at(9 * DAY_MS), at(-9 * DAY_MS, offset=1)], newest_ms=NOW_MS + 9 * DAY_MS))
    assert header.log_append_time and header.max_timestamp == NOW_MS


@pytest.mark.parametrize("validation", ["full", "header"])
@pytest.mark.parametrize("codec", range(5))
def test_a_client_that_sets_log_append_time_is_refused_where_the_topic_sets_it_and_overruled_elsewhere(
    codec: int, validation: str
) -> None:
    records = [at(-5), at(-7, offset=1)]
    arrival = LogConfig(timestamp_type="LogAppendTime", record_validation=validation)
    log = open_log(SimDisk(), arrival)
    with pytest.raises(InvalidTimestamp) as refused:
        log.append(make(records, codec=codec, attributes=8), leader_epoch=0, now_ms=NOW_MS)
    assert [fault.place for fault in refused.value.records] == [0, 1]
    log = open_log(SimDisk(), LogConfig(record_validation=validation))
    header = appended(log, make(records, codec=codec, attributes=8))
    assert (header.attributes, header.max_timestamp) == (codec, NOW_MS), "the header's time stands for every record's"
    for wrong_ms in (-1, NOW_MS + HOUR_MS + 1):
        with pytest.raises(InvalidTimestamp) as refused:
            log.append(make(records, codec=codec, attributes=8, newest_ms=wrong_ms), leader_epoch=0, now_ms=NOW_MS)
        assert [fault.place for fault in refused.value.records] == [0, 1]


@pytest.mark.parametrize("codec", range(5))
def test_a_delete_horizon_of_a_client_stays_in_its_batch(codec: int) -> None:
    header = appended(open_log(SimDisk()), make([at()], codec=codec, attributes=0x40))
    assert header.attributes == codec | 0x40


@pytest.mark.parametrize("config", [DEFAULTS, COMPACT])
@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize(
    ("label", "records", "count"),
    [
        ("offsets out of order", [at(), at(offset=2), at(offset=1)], None),
        ("offsets that begin later", [at(offset=5), at(offset=6)], None),
        ("one offset twice", [at(), at()], None),
        ("fewer than the header says", [at()], 2),
        ("more than the header says", [at(), at(offset=1)], 1),
        ("bytes after the last", [at(), b"\0\0\0"], 1),
        ("a length beyond the batch", [b"\x7f" + at()[1:]], None),
        ("more headers than bytes", [at()[:-1] + b"\x20"], None),
        ("a number without its end", [b"\xff" * 20], 1),
        ("no records at all", [b""], 1),
        ("a length of more than 32 bits", [b"\x9c\x80\x80\x80\x80\x00" + at()[1:]], None),
        ("a header without its value", [at()[:-1] + b"\x02\x02h"], None),
        ("a key that ends after its record", [at()[:4] + b"\x40" + at()[5:]], None),
    ],
)
def test_validated_records_must_match_the_header(
    codec: int, label: str, records: list[bytes], count: int | None, config: LogConfig
) -> None:
    log = open_log(SimDisk(), config)
    with pytest.raises(InvalidRecord):
        log.append(make(records, codec=codec, count=count), leader_epoch=0, now_ms=NOW_MS)
    assert log.end_offset == 0, label


@pytest.mark.parametrize("codec", range(1, 5))
def test_bytes_that_are_not_of_their_codec_are_an_invalid_record(codec: int) -> None:
    for payload in (b"garbage" * 9, b"", compress(codec, at())[:-3]):
        batch = writable(with_payload(payload, count=1, attributes=codec, newest_ms=NOW_MS))
        with pytest.raises(InvalidRecord):
            open_log(SimDisk()).append(batch, leader_epoch=0, now_ms=NOW_MS)


def test_an_lz4_frame_that_only_some_clients_can_read_is_an_invalid_record() -> None:
    """Java's reader takes one frame of independent blocks; the codec of a JavaScript client writes others."""
    data = b"".join(record(each, offset) for offset, each in enumerate(numbered(3000)))

    def sent(payload: bytes) -> memoryview:
        made = with_payload(payload, count=3000, attributes=3, base_timestamp_ms=NOW_MS, newest_ms=NOW_MS + 2999)
        return writable(made)

    for independent in (
        lz4.frame.compress(data, block_linked=False),
        lz4.frame.compress(data, block_linked=False, block_checksum=True, content_checksum=True, store_size=False),
        lz4.frame.compress(data, block_linked=False, block_size=lz4.frame.BLOCKSIZE_MAX4MB, compression_level=9),
    ):
        appended(open_log(SimDisk()), sent(independent))
    half = len(data) // 2
    for other in (
        lz4.frame.compress(data, block_linked=True),
        lz4.frame.compress(data[:half], block_linked=False) + lz4.frame.compress(data[half:], block_linked=False),
        b"",
        lz4.frame.compress(data, block_linked=False)[:20],
    ):
        with pytest.raises(InvalidRecord):
            open_log(SimDisk()).append(sent(other), leader_epoch=0, now_ms=NOW_MS)


@pytest.mark.parametrize("codec", range(5))
def test_a_newest_time_that_is_wrong_in_the_header_is_corrected(codec: int) -> None:
    for wrong_ms in (-1, NOW_MS - 9, NOW_MS + 100):
        header = appended(open_log(SimDisk()), make([at(-8), at(5, offset=1)], codec=codec, newest_ms=wrong_ms))
        assert header.max_timestamp == NOW_MS + 5


def test_bytes_that_are_no_whole_batch_are_an_invalid_record_unless_they_show_corruption() -> None:
    log, whole = open_log(SimDisk()), client_batch(numbered(3), base_timestamp_ms=NOW_MS)
    for size in (0, 1, 11, 12, 17, 60, 61, len(whole) - 1):
        with pytest.raises(InvalidRecord):
            log.append(writable(whole[:size]), leader_epoch=0, now_ms=NOW_MS)
    with pytest.raises(InvalidRecord):
        log.append(writable(client_batch(magic=1, base_timestamp_ms=NOW_MS)), leader_epoch=0, now_ms=NOW_MS)
    for corrupt in (whole[:8] + bytes(4) + whole[12:20], client_batch(magic=3), client_batch(magic=3)[:40]):
        with pytest.raises(CorruptMessage):
            log.append(writable(corrupt), leader_epoch=0, now_ms=NOW_MS)
    assert log.end_offset == 0


# ---- Another codec


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("arrival", [False, True])
def test_a_batch_is_kept_in_the_topics_codec_with_all_that_its_producer_said(
    target: str, codec: int, arrival: bool
) -> None:
    kind = "LogAppendTime" if arrival else "CreateTime"
    log = open_log(SimDisk(), LogConfig(compression_type=target, timestamp_type=kind))
    sent = client_batch(
        numbered(50),
        attributes=codec,
        base_timestamp_ms=NOW_MS - 1000,
        producer_id=77,
        producer_epoch=3,
        base_sequence=5,
    )
    before, after = BatchHeader(sent, 0), appended(log, writable(sent), now_ms=NOW_MS)

    assert after.codec == TARGETS[target]
    assert after.attributes & ~CODEC_BITS == (8 if arrival else 0)
    kept = ("producer_id", "producer_epoch", "base_sequence", "record_count", "last_offset_delta", "base_timestamp")
    assert [getattr(after, name) for name in kept] == [getattr(before, name) for name in kept]
    assert after.max_timestamp == (NOW_MS if arrival else before.max_timestamp)
    stored = content(log.read(0, max_bytes=1 << 20, end_offset=50))
    if codec == TARGETS[target]:
        assert stored[HEADER_BYTES:] == sent[HEADER_BYTES:], "already as wanted: not touched"
    times = [NOW_MS if arrival else each.timestamp_ms for each in read_records(sent)]
    assert [each.timestamp_ms for each in read_records(stored)] == times
    assert [(each.key, each.value) for each in read_records(stored)] == [
        (each.key, each.value) for each in read_records(sent)
    ]


@pytest.mark.parametrize(
    ("codec", "small", "large"),
    [
        ("gzip", {"gzip_level": 9}, {"gzip_level": 1}),
        ("lz4", {"lz4_level": 17}, {"lz4_level": 1}),
        ("zstd", {"zstd_level": 22}, {"zstd_level": -131072}),
    ],
)
def test_the_level_of_a_codec_is_the_topics(codec: str, small: dict[str, int], large: dict[str, int]) -> None:
    sent = client_batch([Written(b"%d %d" % (n * 7919 % 10007, n)) for n in range(2000)], base_timestamp_ms=NOW_MS)
    sizes = []
    for levels in (small, large):
        log = open_log(SimDisk(), LogConfig(compression_type=codec, **levels))  # type: ignore[arg-type]
        sizes.append(appended(log, writable(sent)).size_bytes)
        assert len(everything(log)) == 2000
    assert sizes[0] < sizes[1]


def test_a_batch_that_another_codec_makes_too_large_is_refused_and_one_that_was_too_large_before_is_too() -> None:
    text = client_batch([Written(b"x" * 5000)], attributes=4, base_timestamp_ms=NOW_MS)
    for config, error in (
        (LogConfig(compression_type="uncompressed", max_message_bytes=2000), MessageTooLarge),
        (LogConfig(compression_type="uncompressed", segment_bytes=2000), RecordListTooLarge),
    ):
        log = open_log(SimDisk(), config)
        with pytest.raises(error):
            log.append(writable(text), leader_epoch=0, now_ms=NOW_MS)
        assert log.end_offset == 0
    log = open_log(SimDisk(), LogConfig(compression_type="gzip", max_message_bytes=2000))
    with pytest.raises(MessageTooLarge):
        log.append(writable(client_batch([Written(b"x" * 5000)])), leader_epoch=0, now_ms=NOW_MS)


@pytest.mark.parametrize("validation", ["full", "header"])
def test_a_record_that_is_larger_than_the_topic_takes_once_decompressed_is_refused(validation: str) -> None:
    config = LogConfig(max_decompressed_message_bytes=1000, record_validation=validation)
    records = [Written(b"small"), Written(b"x" * 999)]  # and a few bytes around the value
    for codec in range(1, 5):
        log = open_log(SimDisk(), config)
        with pytest.raises(InvalidRecord, match=r"max\.decompressed\.message\.bytes"):
            appended(log, writable(client_batch(records, attributes=codec, base_timestamp_ms=NOW_MS)))
        small = [Written(b"x" * 900)] * 3
        appended(log, writable(client_batch(small, attributes=codec, base_timestamp_ms=NOW_MS)))
        appended(log, writable(client_batch(records, base_timestamp_ms=NOW_MS)))  # it was not compressed
        assert log.end_offset == 5


def test_a_duplicate_is_known_although_its_bytes_were_changed_the_first_time() -> None:
    log = open_log(SimDisk(), LogConfig(compression_type="zstd"))
    sent = client_batch(numbered(3), base_timestamp_ms=NOW_MS, producer_id=7, producer_epoch=0, base_sequence=0)
    first = log.append(writable(sent), leader_epoch=0, now_ms=NOW_MS)
    again = log.append(writable(sent), leader_epoch=0, now_ms=NOW_MS)
    assert (again.first_offset, again.duplicate) == (first.first_offset, True)


def test_settings_count_from_the_next_batch_on() -> None:
    log = open_log(SimDisk())
    plain = client_batch(numbered(3), base_timestamp_ms=NOW_MS)
    codecs = []
    for name in ("producer", "lz4", "uncompressed", "gzip"):
        log.reconfigure(LogConfig(compression_type=name))
        codecs.append(appended(log, writable(plain)).codec)
    assert codecs == [0, 3, 0, 1]
    log.reconfigure(COMPACT)
    with pytest.raises(InvalidRecord):
        log.append(make([at(key=None)]), leader_epoch=0, now_ms=NOW_MS)
    log.reconfigure(DEFAULTS)
    appended(log, make([at(key=None)]))


def test_a_batch_that_was_validated_for_the_same_settings_is_not_validated_again() -> None:
    keyless = make([at(key=None)])
    log = open_log(SimDisk(), COMPACT)
    with pytest.raises(InvalidRecord):
        log.append(keyless, leader_epoch=0, now_ms=NOW_MS, validated_for=LogConfig(cleanup_policy=("compact",)))
    log.append(keyless, leader_epoch=0, now_ms=NOW_MS, validated_for=log.config)


# ---- Cost


def task(codec: int, level: int | None, *, recodes: bool = True) -> RecordValidation:
    names = {number: name for name, number in TARGETS.items()}
    config = LogConfig(compression_type=names[codec])
    if level is not None:
        config = replace(config, **{f"{names[codec]}_level": level})  # type: ignore[arg-type]
    return RecordValidation(config, codec, recodes, keyed=True, oldest_ms=0, newest_ms=1 << 60)


def test_a_batch_above_the_limit_raises_and_is_left_to_another_thread() -> None:
    batch = writable(client_batch([Written(bytes(100_000))], attributes=1))
    with pytest.raises(TooMuch):
        validate_records(batch, task(Codec.ZSTD, 3), limit=100_000)
    assert len(decompress(4, validate_records(batch, task(Codec.ZSTD, 3), limit=101_000)[HEADER_BYTES:])) > 100_000


def test_the_slowest_levels_are_not_for_the_loop() -> None:
    assert not any(each.loop_bytes_max(1) for each in (task(3, 17), task(3, 10), task(4, 22), task(4, 10)))
    quick = (task(1, 9), task(2, None), task(3, 9), task(4, 3), task(4, -131072), task(0, None))
    assert all(16 << 10 < each.loop_bytes_max(1) < 64 << 10 for each in quick)
    assert task(4, None, recodes=False).loop_bytes_max(1) >= 64 << 10, "to look takes little time"
    assert not any(each.loop_bytes_max(record_validator.LOOP_RECORDS_MAX + 1) for each in quick)


def test_many_records_are_walked_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece holds the interpreter; between two of them other threads get their turn."""
    monkeypatch.setattr(record_validator, "_CHUNK_RECORDS", 3)
    log = open_log(SimDisk(), COMPACT)
    for count in (1, 2, 3, 4, 6, 7):
        records = [at(offset=n) for n in range(count)]
        appended(log, make(records, codec=4))
        records[-1] = at(offset=count - 1, key=None)
        with pytest.raises(InvalidRecord) as refused:
            log.append(make(records), leader_epoch=0, now_ms=NOW_MS)
        assert [fault.place for fault in refused.value.records] == [count - 1]


def test_a_payload_of_gzip_members_is_read_whole() -> None:
    log = open_log(SimDisk(), COMPACT)
    members = gzip.compress(at()) + gzip.compress(at(offset=1))
    assert (
        appended(
            log, writable(with_payload(members, count=2, attributes=1, base_timestamp_ms=NOW_MS, newest_ms=NOW_MS))
        ).record_count
        == 2
    )
