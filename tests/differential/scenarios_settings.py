"""What both brokers are asked about the settings of topics: which values they take, and what becomes of records then."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import lz4.frame

from ottla.records.batch import HEADER_BYTES, BatchHeader
from ottla.records.batch_faults import is_checksum_right
from ottla.records.codecs import compress
from ottla.records.record_reader import read_records
from tests.differential.peer import Peer
from tests.support.batches import Written, batch, numbered, record, with_payload
from tests.support.kafka_jars import NEWEST, VERSION

TOPIC = 2
OWN_SETTINGS = {"durability", "ottla.record.validation"}
SINCE_4_4 = {
    "errors.deadletterqueue.group.enable",
    "max.decompressed.message.bytes",
    "remote.copy.lag.bytes",
    "remote.copy.lag.ms",
}
NOT_COMPARED = OWN_SETTINGS if VERSION == NEWEST else OWN_SETTINGS | SINCE_4_4
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
VALUES = (
    "", "0", "1", "-1", "-2", "-3", "2", "3", "5", "9", "10", "17", "18", "22", "23", "100", "-131072", "-131073",
    "1048575", "1048576", " 7 ", "+7", "1e3", "0.5", "0.0", "1.0", "1.1", "-0.1", "NaN", "Infinity", "0x10", "7L",
    "2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808",
    "true", "TRUE", " false ", "yes", "delete", "compact", "compact,delete", "delete, compact", "delete,delete",
    "Delete", "delete,", ",", "compact,,delete", "producer", "gzip", "GZIP", "uncompressed", "none", "none,gzip",
    "zstd", "CreateTime", "createtime", "LogAppendTime", "*", "*,0:1", "0:1", "0:1,1:2", "0:1,", "a:b", "0:", "fsync",
)  # fmt: skip
TOGETHER: tuple[dict[str, str], ...] = (
    {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
    {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"},
    {"local.retention.ms": "1000", "retention.ms": "500"},
    {"local.retention.ms": "1000", "retention.ms": "-1"},
    {"local.retention.ms": "-1", "retention.ms": "500"},
    {"local.retention.bytes": "1000", "retention.bytes": "500"},
    {"local.retention.bytes": "-1", "retention.bytes": "500"},
    {"remote.storage.enable": "true", "cleanup.policy": "compact"},
    {"remote.storage.enable": "false", "remote.log.copy.disable": "true"},
    {"segment.ms": "10", "segment.jitter.ms": "20"},
    {"segment.bytes": "1048576", "max.message.bytes": "2000000"},
    {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"},
    {"preallocate": "true", "segment.bytes": "1048576"},
    {"retention.ms": "5", "no.such.setting": "1"},
)


def edge_values(peer: Peer) -> None:
    """Every topic setting with every value at the edge of some kind of value, taken or refused."""
    topic = peer.topic("edges")
    asked = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": None}
    listed = peer.quietly("describe_configs", 4, resources=[asked])["results"][0]["configs"]
    names = sorted(each["name"] for each in listed if each["name"] not in NOT_COMPARED)
    peer.note("names", "alter_configs", 1, names)
    for each in [{name: value} for name in names for value in VALUES] + list(TOGETHER):
        label = " ".join(f"{name}={value}" for name, value in each.items())
        peer.note(label, "alter_configs", 1, _taken(peer, topic, each))


def _taken(peer: Peer, topic: str, settings: dict[str, str]) -> int:
    configs = [{"name": name, "value": value} for name, value in settings.items()]
    resource = {"resource_type": TOPIC, "resource_name": topic, "configs": configs}
    answer = peer.quietly("alter_configs", 1, resources=[resource], validate_only=True)
    code: int = answer["responses"][0]["error_code"]
    return code


def _at(delta_ms: int = 0, *, offset: int = 0, key: bytes | None = b"k") -> bytes:
    return record(Written(key=key, timestamp_delta_ms=delta_ms), offset)


def _cases(now_ms: int) -> dict[str, tuple[Sequence[bytes], dict[str, Any]]]:
    """Records as they are, and what their header says besides."""
    far_ms, lying = 10 * DAY_MS, now_ms + 10 * DAY_MS
    none: dict[str, Any] = {}
    return {
        "three good ones": ([_at(offset=number) for number in range(3)], none),
        "offsets out of order": ([_at(), _at(offset=2), _at(offset=1)], none),
        "offsets that begin later": ([_at(offset=5), _at(offset=6)], none),
        "fewer than said": ([_at()], {"count": 2}),
        "more than said": ([_at(), _at(offset=1)], {"count": 1}),
        "none, and none said": ([b""], {"count": 0, "last_delta": 0}),
        "none, and a negative count": ([b""], {"count": -1}),
        "bytes after the last": ([_at(), b"\0\0\0"], {"count": 1}),
        "more headers than bytes": ([_at()[:-1] + b"\x20"], none),
        "a newest time that is too low": ([_at(5)], none),
        "a newest time that is too high": ([_at(5)], {"newest_ms": now_ms + 1000}),
        "a newest time far ahead of all": ([_at(5)], {"newest_ms": lying}),
        "one far ahead": ([_at(), _at(far_ms, offset=1), _at(offset=2)], {"newest_ms": lying}),
        "two far ahead": ([_at(far_ms), _at(offset=1), _at(far_ms, offset=2)], {"newest_ms": lying}),
        "one far ahead, which its header hides": ([_at(), _at(far_ms, offset=1)], none),
        "one long ago": ([_at(), _at(-far_ms, offset=1)], none),
        "no time": ([_at()], {"base_timestamp_ms": -1, "newest_ms": -1}),
        "one without a key": ([_at(), _at(offset=1, key=None), _at(offset=2)], none),
        "five without keys": ([_at(offset=number, key=None) for number in range(5)], none),
        "one without a key, one far ahead": (
            [_at(), _at(offset=1, key=None), _at(far_ms, offset=2), _at(far_ms, offset=3, key=None)],
            {"newest_ms": lying},
        ),
        "a length of 33 bits": ([b"\x9c\x80\x80\x80\x80\x00" + _at()[1:]], none),
        "a key that ends after its record": ([_at()[:4] + b"\x40" + _at()[5:]], none),
        "a header without its value": ([_at()[:-1] + b"\x02\x02h"], none),
        "a record that its parts do not fill": ([b"\x1e" + _at()[1:] + b"\0"], none),
        "log append time": ([_at(-5), _at(-7, offset=1)], {"attributes": 8}),
        "log append time, none": ([_at(-5)], {"attributes": 8, "newest_ms": -1}),
        "log append time, far ahead": ([_at(-5), _at(offset=1)], {"attributes": 8, "newest_ms": lying}),
        "log append time, one without a key": ([_at(), _at(offset=1, key=None)], {"attributes": 8}),
        "a delete horizon": ([_at(-5), _at(-7, offset=1)], {"attributes": 0x40}),
        "a delete horizon, a newest time that is too low": ([_at(5)], {"attributes": 0x40}),
        "a bit without a meaning": ([_at()], {"attributes": 0x80}),
        "a bit without a meaning, a newest time that is too low": ([_at(5)], {"attributes": 0x80}),
        "a leader epoch": ([_at()], {"leader_epoch": 7}),
    }


def _frames_of_lz4(now_ms: int) -> dict[str, bytes]:
    """LZ4 frames that some clients write and not all can read."""
    records = [_at(offset=number) for number in range(3)]
    data, times = b"".join(records), {"base_timestamp_ms": now_ms, "newest_ms": now_ms}
    first, rest = records[0], b"".join(records[1:])
    frames = {
        "linked blocks": lz4.frame.compress(data, block_linked=True),
        "independent blocks": lz4.frame.compress(data, block_linked=False),
        "checksums of blocks": lz4.frame.compress(data, block_linked=False, block_checksum=True),
        "a checksum of the content": lz4.frame.compress(data, block_linked=False, content_checksum=True),
        "no size of the content": lz4.frame.compress(data, block_linked=False, store_size=False),
        "blocks of 4 MiB": lz4.frame.compress(data, block_linked=False, block_size=lz4.frame.BLOCKSIZE_MAX4MB),
        "two frames": lz4.frame.compress(first, block_linked=False) + lz4.frame.compress(rest, block_linked=False),
        "bytes after the frame": lz4.frame.compress(data, block_linked=False) + b"\0\0\0",
        "cut short": lz4.frame.compress(data, block_linked=False)[:-6],
        "no bytes": b"",
    }
    return {label: with_payload(frame, count=3, attributes=3, **times) for label, frame in frames.items()}


KINDS: dict[str, dict[str, str]] = {
    "plain": {},
    "compact": {"cleanup.policy": "compact"},
    "both": {"cleanup.policy": "compact,delete"},
    "bounded": {"message.timestamp.before.max.ms": str(DAY_MS), "message.timestamp.after.max.ms": str(DAY_MS)},
    "arrival": {"message.timestamp.type": "LogAppendTime"},
    "gzip": {"compression.type": "gzip"},
    "uncompressed": {"compression.type": "uncompressed"},
}


def looking_inside(peer: Peer) -> None:
    """The same records to every kind of topic, in every codec: what is refused, which records are named, what is kept."""
    for kind, config in KINDS.items():
        topic = peer.topic(f"look-{kind}", config=config)
        for codec in range(5):
            now_ms = time.time_ns() // 1_000_000
            for label, (records, said) in _cases(now_ms).items():
                header = {"count": len(records), "base_timestamp_ms": now_ms, "newest_ms": now_ms, **said}
                header["attributes"] = header.get("attributes", 0) | codec
                made = with_payload(compress(codec, b"".join(records)), **header)
                _written(peer, f"{kind}, codec {codec}, {label}", topic, made, now_ms)
            if codec:
                garbage = with_payload(
                    b"garbage" * 9, count=3, attributes=codec, base_timestamp_ms=now_ms, newest_ms=now_ms
                )
                _written(peer, f"{kind}, codec {codec}, bytes of no codec", topic, garbage, now_ms)
        for label, made in _frames_of_lz4(time.time_ns() // 1_000_000).items():
            _written(peer, f"{kind}, lz4, {label}", topic, made, BatchHeader(made, 0).base_timestamp)


def _written(peer: Peer, label: str, topic: str, records: bytes, now_ms: int) -> None:
    """Write down the outcome, and of what was taken what the log then holds."""
    part = {"index": 0, "records": records}
    said = peer.quietly(
        "produce", 9, acks=-1, timeout=20_000, topic_data=[{"name": topic, "partition_data": [part]}]
    )["responses"][0]["partition_responses"][0]  # fmt: skip
    outcome = {
        "error_code": said["error_code"],
        "records": [each["batch_index"] for each in said["record_errors"]],
        "arrival": said["log_append_time"] is not None and said["log_append_time"] > 0,
    }
    if not said["error_code"]:
        outcome["kept"] = _kept(peer, topic, said["base_offset"], now_ms, records)
    peer.note(label, "produce", 9, outcome)


def _kept(peer: Peer, topic: str, offset: int, now_ms: int, written: bytes) -> dict[str, Any]:
    """A batch as a consumer gets it, times relative to when it was written, and whether its records are as they were."""
    part = {
        "partition": 0, "current_leader_epoch": -1, "fetch_offset": offset, "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }  # fmt: skip
    answer = peer.quietly(
        "fetch", 11, replica_id=-1, max_wait=100, min_bytes=1, max_bytes=1 << 20,
        topics=[{"topic": topic, "partitions": [part]}],
    )  # fmt: skip
    stored = bytes(answer["responses"][0]["partitions"][0]["records"])
    header = BatchHeader(stored, 0)

    def since(time_ms: int) -> int | str:
        if time_ms < 0:
            return time_ms
        return "arrival" if header.log_append_time else time_ms - now_ms

    found: dict[str, Any] = {
        name: getattr(header, name) for name in ("attributes", "last_offset_delta", "record_count")
    }
    found["newest"] = since(header.max_timestamp)
    found["checksum"] = is_checksum_right(stored, header)
    if header.codec == written[22] & 7:
        found["base"] = header.base_timestamp if header.base_timestamp < 0 else header.base_timestamp - now_ms
        found["as written"] = stored[HEADER_BYTES : header.size_bytes] == written[HEADER_BYTES:]
    found |= {name: getattr(header, name) for name in ("producer_epoch", "base_sequence")}
    try:
        found["inside"] = [
            [each.offset - offset, since(each.timestamp_ms), each.key, each.value] for each in read_records(stored)
        ]
    except Exception as error:  # noqa: BLE001 - whatever was let in
        found["inside"] = type(error).__name__
    return found


def recompression(peer: Peer) -> None:
    """From every codec to every codec, with times of the producer's and of arrival; sizes are judged before and after."""
    for target in ("uncompressed", "gzip", "snappy", "lz4", "zstd"):
        for kind in ("CreateTime", "LogAppendTime"):
            config = {"compression.type": target, "message.timestamp.type": kind}
            topic = peer.topic(f"to-{target}-{kind}", config=config)
            for codec in range(5):
                now_ms = time.time_ns() // 1_000_000
                made = batch(numbered(20), attributes=codec, base_timestamp_ms=now_ms)
                _written(peer, f"{codec} to {target}, {kind}", topic, made, now_ms)
                one = batch(
                    numbered(5), attributes=codec, base_timestamp_ms=now_ms, producer_id=1000 + codec,
                    producer_epoch=3, base_sequence=0,
                )  # fmt: skip
                _written(peer, f"{codec} to {target}, {kind}, idempotent", topic, one, now_ms)
                _written(peer, f"{codec} to {target}, {kind}, idempotent, again", topic, one, now_ms)
    now_ms = time.time_ns() // 1_000_000
    large = [Written(b"v" * 5000)]
    for codec in range(5) if VERSION == NEWEST else ():
        topic = peer.topic(f"decompressed-{codec}", config={"max.decompressed.message.bytes": "1000"})
        for label, values in (("small", [900, 900]), ("large", [10, 990]), ("just", [992]), ("just too large", [993])):
            made = batch([Written(b"v" * size) for size in values], attributes=codec, base_timestamp_ms=now_ms)
            _written(peer, f"{label}, decompressed from {codec}", topic, made, now_ms)
    for label, config, codec in (
        ("larger than a message then", {"compression.type": "uncompressed", "max.message.bytes": "2000"}, 4),
        ("larger than a message before", {"compression.type": "gzip", "max.message.bytes": "2000"}, 0),
        ("larger than a segment then", {"compression.type": "uncompressed", "internal.segment.bytes": "2000"}, 4),
    ):
        topic = peer.topic(label.replace(" ", "-"), config=config)
        _written(peer, label, topic, batch(large, attributes=codec, base_timestamp_ms=now_ms), now_ms)
