"""What a consumer does when brokers do what brokers do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.client.addresses import Address
from ottla.client.cluster import ClientOptions, Cluster
from ottla.client.consumer import Consumer, ConsumerOptions
from ottla.core.errors import CorruptMessage, OffsetOutOfRange, RequestTimedOut
from ottla.core.ids import TopicPartition
from ottla.records.builder import NewRecord, build_batch
from ottla.wire.apis import ApiKey
from ottla.wire.generated.fetch import AbortedTransaction, FetchableTopicResponse, FetchResponse, PartitionData
from tests.unit.client.scripted_broker import HANG_UP, Answer, once, scripted_broker

TP = TopicPartition("t", 0)


def batch(base_offset: int, *values: bytes, **more: Any) -> bytes:
    return bytes(build_batch([NewRecord(None, value, 1000) for value in values], base_offset=base_offset, **more))


def fetched(records: bytes = b"", *, aborted: list[AbortedTransaction] | None = None, **more: Any) -> FetchResponse:
    data = PartitionData(partition_index=0, records=records, aborted_transactions=aborted, high_watermark=99, **more)
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])


def consume(
    answer: Answer, *, start: int = 0, end: int = 5, options: ConsumerOptions | None = None
) -> tuple[list[tuple[int, bytes | None]], list[int], int]:
    """What is read from `start` to `end`, the offsets asked for, and the position after."""

    async def scenario() -> tuple[list[tuple[int, bytes | None]], list[int], int]:
        async with scripted_broker() as broker:
            broker.answers[ApiKey.FETCH] = answer
            seeds = [Address("127.0.0.1", broker.port)]
            async with await Cluster.connect(seeds, options=ClientOptions(retry_s=2, request_timeout_s=1)) as cluster:
                async with Consumer(cluster, {TP: start}, end={TP: end}, options=options) as consumer:
                    got = [(r.offset, r.value) async for _, records in consumer.chunks() for r in records]
                asked = [f.topics[0].partitions[0].fetch_offset for f in broker.requests(ApiKey.FETCH)]
                return got, asked, consumer.positions[TP]

    return asyncio.run(scenario())


def test_records_outside_the_requested_range_are_left_out() -> None:
    log = batch(0, b"0", b"1", b"2") + batch(3, b"3", b"4", b"5")
    got, asked, position = consume(lambda _: fetched(log), start=1, end=5)
    assert got == [(1, b"1"), (2, b"2"), (3, b"3"), (4, b"4")]
    assert asked == [1]
    assert position == 5


def test_a_partial_batch_at_the_end_is_left_for_the_next_fetch() -> None:
    first, second = batch(0, b"0", b"1", b"2"), batch(3, b"3", b"4")
    got, asked, _ = consume(once(fetched(first + second[:-1]), then=lambda _: fetched(second)))
    assert [value for _, value in got] == [b"0", b"1", b"2", b"3", b"4"]
    assert asked == [0, 3]


def test_a_late_answer_to_an_earlier_fetch_does_not_move_the_position_back() -> None:
    """A partition with another leader is fetched there while the fetch from the old one is in flight."""
    first, rest = batch(0, b"0", b"1", b"2"), batch(3, b"3", b"4")
    got, asked, _ = consume(once(fetched(first), then=once(fetched(batch(0, b"0")), then=lambda _: fetched(rest))))
    assert [value for _, value in got] == [b"0", b"1", b"2", b"3", b"4"]
    assert asked == [0, 3, 3]


def test_gaps_of_compaction_are_skipped_up_to_the_end() -> None:
    gap = batch(0, b"0", last_offset=6)
    got, _, position = consume(lambda _: fetched(gap), end=7)
    assert got == [(0, b"0")]
    assert position == 7


@pytest.mark.parametrize("trouble", [fetched(error_code=6), fetched(error_code=74), fetched(error_code=3), HANG_UP])
def test_a_fetch_is_retried_at_the_new_leader(trouble: Any) -> None:
    got, asked, _ = consume(once(trouble, then=lambda _: fetched(batch(0, b"0", b"1", b"2", b"3", b"4"))))
    assert len(got) == 5
    assert asked == [0, 0]


def test_a_deleted_position_is_out_of_range_and_the_error_names_the_log_start() -> None:
    with pytest.raises(OffsetOutOfRange, match="t-0 has no offset 0; it begins at 3"):
        consume(lambda _: fetched(error_code=1, log_start_offset=3))


def test_a_batch_with_a_wrong_checksum_is_corrupt_unless_checks_are_off() -> None:
    garbled = bytearray(batch(0, b"0", b"1", b"2", b"3", b"4"))
    garbled[-1] ^= 1
    with pytest.raises(CorruptMessage, match="the batch at offset 0 does not match its checksum"):
        consume(lambda _: fetched(bytes(garbled)), options=ConsumerOptions(check_crcs=True))


def test_aborted_records_and_markers_are_hidden_from_read_committed_only() -> None:
    log = b"".join(
        (
            batch(0, b"kept"),
            batch(1, b"aborted", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True),
            bytes(
                build_batch(
                    [NewRecord(b"\0\0\0\0", b"\0\0\0\0\0\0")],
                    base_offset=2,
                    producer_id=7,
                    producer_epoch=0,
                    transactional=True,
                    control=True,
                )
            ),
            batch(3, b"kept too", producer_id=7, producer_epoch=0, base_sequence=1, transactional=True),
        )
    )
    answer = fetched(log, aborted=[AbortedTransaction(producer_id=7, first_offset=1)])
    committed, _, position = consume(lambda _: answer, end=4, options=ConsumerOptions(read_committed=True))
    everything, _, _ = consume(lambda _: answer, end=4)
    assert committed == [(0, b"kept"), (3, b"kept too")]
    assert everything == [(0, b"kept"), (1, b"aborted"), (3, b"kept too")]
    assert position == 4


def test_a_partition_without_progress_before_its_end_times_out() -> None:
    with pytest.raises(RequestTimedOut, match="t-0: the broker returns no records from offset 0 on"):
        consume(lambda _: fetched(), end=5)


def test_an_empty_range_sends_no_fetch() -> None:
    assert consume(lambda _: fetched(), start=5, end=5) == ([], [], 5)
