"""Runs each parser on bytes: one function per parser, which returns whether the parser accepted them.

Each function expects the errors that its parser documents; any other exception, and any wrong
result (what is read and written again is read the same), is a finding. The seeds are real messages to mutate.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from ottla.core.errors import CorruptMessage, KafkaError
from ottla.metadata_store import kraft_records
from ottla.metadata_store.kraft_records import MalformedMetadata
from ottla.records.batch import HEADER_BYTES, PREFIX_BYTES, BatchHeader, split, write_crc
from ottla.records.batch_faults import is_checksum_right
from ottla.records.builder import NewRecord, build_batch
from ottla.records.codecs import Codec, TooMuch, compress, decompress
from ottla.records.record_reader import read_columns, read_records
from ottla.storage.config import LogConfig
from ottla.storage.validation.batch_validator import check_client_batch, validate_batch
from ottla.storage.validation.record_validator import RecordValidation, validate_records
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.errors import MalformedRequest
from ottla.wire.frame import FrameRefused
from ottla.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.wire.headers import encode_request_header, parse_request_header
from ottla.wire.hot.fetch import decode_fetch_request
from ottla.wire.hot.produce import decode_produce_request
from tests.support.framing import FrameDecoder, framed
from tests.support.hot_messages import fetch_request, produce_request
from tests.support.messages import MESSAGE_APIS

LIMIT = 1 << 20
EVERY_VERSION = [
    (key, version) for key, info in MESSAGE_APIS.items() for version in range(info.min_version, info.max_version + 1)
]

Harness = Callable[[bytes], bool]


def _chosen(data: bytes) -> tuple[ApiKey, int, bytes]:
    """The first two bytes choose an API and a version, the rest is its body."""
    key, version = EVERY_VERSION[int.from_bytes(data[:2], "big") % len(EVERY_VERSION)]
    return key, version, data[2:]


def request_header(data: bytes) -> bool:
    try:
        header = parse_request_header(memoryview(data))
    except MalformedRequest:
        return False
    assert header[4] <= len(data)
    return True


def request(data: bytes) -> bool:
    key, version, body = _chosen(data)
    try:
        shape = codec.decode_request(key, version, body)
    except MalformedRequest:
        return False
    encoded = codec.encode_request(key, version, shape)
    assert repr(codec.decode_request(key, version, encoded)) == repr(shape)  # repr, because a NaN is not itself
    return True


def response(data: bytes) -> bool:
    key, version, body = _chosen(data)
    try:
        shape = codec.decode_response(key, version, body)
    except MalformedRequest:
        return False
    encoded = codec.encode_response(key, version, shape)
    assert repr(codec.decode_response(key, version, encoded)) == repr(shape)
    return True


def produce(data: bytes) -> bool:
    version = 3 + data[0] % 11 if data else 9
    body = data[1:]
    try:
        shape = decode_produce_request(memoryview(body), version)
    except MalformedRequest:
        try:
            codec.decode_request(ApiKey.PRODUCE, version, body)
        except MalformedRequest:
            return False
        raise AssertionError("the hot reader refuses what the plan reads") from None
    assert produce_request(shape, version) == codec.decode_request(ApiKey.PRODUCE, version, body)
    return True


def fetch(data: bytes) -> bool:
    version = 4 + data[0] % 15 if data else 12
    body = data[1:]
    try:
        shape = decode_fetch_request(memoryview(body), version)
    except MalformedRequest:
        try:
            codec.decode_request(ApiKey.FETCH, version, body)
        except MalformedRequest:
            return False
        raise AssertionError("the hot reader refuses what the plan reads") from None
    assert fetch_request(shape) == codec.decode_request(ApiKey.FETCH, version, body)
    return True


def frames(data: bytes) -> bool:
    decoder = FrameDecoder(frame_bytes_max=256)
    taken = 0
    try:
        for at in range(0, len(data), 7):
            decoder.receive_data(data[at : at + 7])
            while (frame := decoder.next_frame()) is not None:
                taken += 4 + len(frame)
    except FrameRefused:
        return False
    finally:
        assert taken <= len(data)
    return True


def batches(data: bytes) -> bool:
    try:
        for at, header in split(data):
            assert at + header.size_bytes <= len(data)
            is_checksum_right(memoryview(data)[at:], header)
    except CorruptMessage:
        return False
    return True


def records(data: bytes) -> bool:
    try:
        found = list(read_records(data, limit=LIMIT))
    except CorruptMessage:
        return False
    header = BatchHeader(data)
    assert len(found) == header.record_count
    if not header.is_control:
        try:
            assert read_columns(data[: header.size_bytes], from_offset=-(1 << 70), limit=LIMIT).keys == [
                r.key for r in found
            ]
        except CorruptMessage as error:
            raise AssertionError("scan reads what columns refuses") from error
    return True


def inspected(data: bytes) -> bool:
    """Whatever a leader accepts can be read by every client, in the codec of the topic."""
    if len(data) < HEADER_BYTES:
        return False
    batch = bytearray(data)
    struct.pack_into(">i", batch, 8, len(batch) - PREFIX_BYTES)
    write_crc(batch, 0, len(batch))
    accepted = False
    for target in Codec:
        header = BatchHeader(batch)
        config = LogConfig(compression_type="uncompressed" if target == Codec.NONE else target.name.lower())
        task = RecordValidation(config, target, target != header.codec, keyed=True, oldest_ms=0, newest_ms=1 << 50)
        try:
            validate_batch(header, memoryview(batch), LogConfig())
            check_client_batch(header)
            found = validate_records(memoryview(bytearray(batch)), task, limit=LIMIT)
        except (KafkaError, TooMuch):
            continue
        after = BatchHeader(found)
        seen = list(read_records(found, limit=LIMIT))
        assert is_checksum_right(found, after)
        assert after.codec == target
        assert [each.offset for each in seen] == list(range(header.record_count))
        assert all(each.key is not None for each in seen)
        assert max(each.timestamp_ms for each in seen) == after.max_timestamp
        accepted = True
    return accepted


def compressed(data: bytes) -> bool:
    if not data:
        return False
    try:
        assert len(decompress(1 + data[0] % 4, data[1:], limit=LIMIT)) <= LIMIT
    except CorruptMessage:
        return False
    return True


def _requests() -> Iterator[bytes]:
    for place, (key, version) in enumerate(EVERY_VERSION):
        yield place.to_bytes(2, "big") + codec.encode_request(key, version, codec.shape_class(key, "Request")())


def _responses() -> Iterator[bytes]:
    for place, (key, version) in enumerate(EVERY_VERSION):
        yield place.to_bytes(2, "big") + codec.encode_response(key, version, codec.shape_class(key, "Response")())


def _produces() -> Iterator[bytes]:
    data = [PartitionProduceData(index=0, records=b"x" * 20), PartitionProduceData(index=1)]
    shape = ProduceRequest(acks=-1, timeout_ms=9, topic_data=[TopicProduceData(name="topic", partition_data=data)])
    for version in range(3, 14):
        yield bytes([version - 3]) + codec.encode_request(ApiKey.PRODUCE, version, shape)


def _fetches() -> Iterator[bytes]:
    topic = FetchTopic(topic="topic", partitions=[FetchPartition(partition=i, high_watermark=5) for i in range(3)])
    for version in range(4, 19):
        shape = FetchRequest(cluster_id="c", topics=[topic], rack_id="rack")
        yield bytes([version - 4]) + codec.encode_request(ApiKey.FETCH, version, shape)


def _batches() -> Iterator[bytes]:
    some = [NewRecord(b"key", b"value" * 10, 5, [("name", b"h"), ("none", None)]), NewRecord(None, None, 6)]
    for kind in Codec:
        yield bytes(build_batch(some, codec=kind) + build_batch(some, base_offset=2, codec=kind))


def _keyed_batches() -> Iterator[bytes]:
    some = [NewRecord(b"key", b"value" * 10, 5, [("name", b"h"), ("none", None)]), NewRecord(b"", None, 6)]
    return (bytes(build_batch(some, codec=kind)) for kind in Codec)


def _headers() -> Iterator[bytes]:
    for key, version in EVERY_VERSION:
        yield encode_request_header(key, version, 1, "client") + b"body"


def _compressed() -> Iterator[bytes]:
    for kind in range(4):
        yield bytes([kind]) + compress(kind + 1, b"some text " * 30)


def metadata(data: bytes) -> bool:
    try:
        record = kraft_records.decode(data)
    except MalformedMetadata:
        return False
    version = data[2] if data[2] < 0x80 and not isinstance(record, kraft_records.OpaqueRecord) else None
    assert kraft_records.decode(kraft_records.encode(record, version=version)) == record
    return True


def _metadata() -> Iterator[bytes]:
    golden = Path(__file__).parents[1] / "golden" / "cluster_metadata.json"
    return (bytes.fromhex(entry["bytes"]) for entry in json.loads(golden.read_text())["records"])


HARNESSES: dict[str, tuple[Harness, Callable[[], Iterator[bytes]]]] = {
    "request_header": (request_header, _headers),
    "request": (request, _requests),
    "response": (response, _responses),
    "produce": (produce, _produces),
    "fetch": (fetch, _fetches),
    "frames": (frames, lambda: iter([framed(b"one") + framed(b"two" * 40)])),
    "batches": (batches, _batches),
    "records": (records, _batches),
    "inspected": (inspected, _keyed_batches),
    "compressed": (compressed, _compressed),
    "metadata": (metadata, _metadata),
}

_LENGTHS = (
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff",
    b"\x7f\xff",
    b"\x00",
    b"\x80\x80\x80\x80\x08",
)


def mutated(seed: bytes, source: random.Random) -> bytes:
    """`seed` with a few of its bytes flipped, cut, doubled, or overwritten with an extreme length."""
    data = bytearray(seed)
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(data) + 1)
        match source.randrange(5):
            case 0 if data:
                data[at % len(data)] = source.randrange(256)
            case 1:
                del data[at : at + source.randint(1, 8)]
            case 2:
                data[at:at] = data[at : at + source.randint(1, 16)]
            case 3:
                data[at : at + 4] = source.choice(_LENGTHS)
            case _:
                data[at:at] = source.randbytes(source.randint(1, 4))
    return bytes(data)
