"""Batches as librdkafka builds them: produced to its own mock cluster, and fetched from there as raw bytes."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from ottla.records.batch import split
from ottla.records.batch_faults import is_checksum_right
from ottla.records.record_reader import read_columns
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.headers import encode_request_header, parse_response_header
from tests.support.framing import FrameDecoder, framed

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
VERSION = 11
RECORDS = [(f"key {i}".encode(), b"a line of a log " * (i % 7), 1_700_000_000_000 + i) for i in range(500)]


def fetched(address: tuple[str, int], topic: str) -> Iterator[bytes]:
    """Fetch partition 0, response by response, until one is empty."""
    offset = 0
    decoder = FrameDecoder(frame_bytes_max=1 << 24)
    with socket.create_connection(address, timeout=20) as connection:
        while True:
            partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
            request = FetchRequest(max_wait_ms=0, topics=[FetchTopic(topic=topic, partitions=[partition])])
            header = encode_request_header(ApiKey.FETCH, VERSION, 1, "test")
            connection.sendall(framed(header, codec.encode_request(ApiKey.FETCH, VERSION, request)))
            while (frame := decoder.next_frame()) is None:
                decoder.receive_data(connection.recv(1 << 16))
            _, body_at = parse_response_header(frame, ApiKey.FETCH, VERSION)
            data = codec.decode_response(ApiKey.FETCH, VERSION, frame, body_at).responses[0].partitions[0]
            assert data.error_code == 0
            if not data.records:
                return
            yield data.records
            offset = max(header.last_offset for _, header in split(data.records)) + 1


@pytest.mark.parametrize("name", CODECS)
def test_batches_of_librdkafka_are_scanned_in_every_codec(name: str) -> None:
    producer = Producer(
        {
            "test.mock.num.brokers": 1,
            "bootstrap.servers": "mock",
            "compression.type": name,
            "linger.ms": 20,
            "enable.idempotence": True,
        }
    )
    for key, value, when_ms in RECORDS:
        producer.produce(
            "log", key=key, value=value, timestamp=when_ms, partition=0, headers=[("h", b"x"), ("n", None)]
        )
    assert producer.flush(20) == 0
    (broker,) = producer.list_topics(timeout=20).brokers.values()

    found: list[tuple[bytes | None, bytes | None, int]] = []
    codecs: set[int] = set()
    for answer in fetched((broker.host, broker.port), "log"):
        for at, header in split(answer):
            assert is_checksum_right(memoryview(answer)[at:], header)
            codecs.add(header.codec)
        rows = read_columns(answer)
        assert rows.headers == [[("h", b"x"), ("n", None)]] * len(rows.offsets)
        found += zip(rows.keys, rows.values, rows.timestamps_ms, strict=True)
    assert found == RECORDS
    assert codecs == {CODECS[name]}
