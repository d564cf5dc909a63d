"""The clients: librdkafka as users have it, and bare sockets with ready-made frames where the broker alone shall count.

A bare-socket client sends the very bytes a Java or C client would (Produce v9, Fetch v11) but spends next to nothing of
its own, so that on a small machine the broker is what is measured and not the client.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import cast

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.support.batches import Written, batch
from tests.support.wire_client import Wire, encode

READ_BYTES = 4 << 20
IN_FLIGHT = 5  # what Java's and librdkafka's idempotent producers allow
OnCount = Callable[[int], None]
NO_SECURITY: Mapping[str, str] = MappingProxyType({})


class WrongCount(Exception):
    """Fewer or more records than were sent, or an error in an answer."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """What synchronous producers saw."""

    per_second: float
    p50_ms: float
    p99_ms: float


def make_topic(port: int, name: str) -> None:
    """One partition, ready to be written."""
    with Wire(port) as wire:
        create_and_wait(wire, name)


def create_and_wait(wire: Wire, name: str) -> None:
    """Create a topic of one partition by this connection, and wait until it can be written."""
    new = {"name": name, "num_partitions": 1, "replication_factor": 1}
    made = wire.call("create_topics", 5, topics=[new], timeout=20_000)["topics"][0]["error_code"]
    if made:
        raise WrongCount(f"creating {name} gave error {made}")
    while not _has_leader(wire, name):
        time.sleep(0.01)
    while _end(wire, name) is None:
        time.sleep(0.01)


def _has_leader(wire: Wire, name: str) -> bool:
    found = wire.call("metadata", 9, topics=[{"name": name}])["topics"][0]["partitions"]
    return bool(found) and not found[0]["error_code"]


def _end(wire: Wire, name: str) -> int | None:
    part = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    found = wire.call("list_offsets", 5, replica_id=-1, topics=[{"name": name, "partitions": [part]}])["topics"][0][
        "partitions"
    ][0]
    return None if found["error_code"] else int(found["offset"])


def end_offset(port: int, name: str) -> int:
    """How many records a fresh topic holds."""
    with Wire(port) as wire:
        return _end(wire, name) or 0


def delete_topic(port: int, name: str) -> None:
    """Delete a topic; its files are removed soon after."""
    with Wire(port) as wire:
        wire.call("delete_topics", 5, topic_names=[name], timeout=20_000)


def produce_frame(name: str, records: bytes) -> bytes:
    """A whole Produce request with its length, acks=all."""
    part = {"index": 0, "records": records}
    frame = encode(
        "produce", 9, 1, {"acks": -1, "timeout": 30_000, "topic_data": [{"name": name, "partition_data": [part]}]}
    )
    return struct.pack(">i", len(frame)) + frame


def connect(port: int) -> socket.socket:
    """Connect to a broker of this machine."""
    made = socket.create_connection(("127.0.0.1", port), timeout=60)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def receive(connection: socket.socket) -> bytes:
    """Receive one whole response."""
    said = connection.recv(65536)
    while len(said) < 4 or len(said) < 4 + struct.unpack_from(">i", said)[0]:
        more = connection.recv(65536)
        if not more:
            raise WrongCount("the broker closed the connection")
        said += more
    return said


def error_at(name: str) -> int:
    """Where in a Produce v9 answer for one partition its error code lies."""
    # length | correlation, tags, array of topics, name, array of partitions, index
    return 4 + 4 + 1 + 1 + 1 + len(name) + 1 + 4


def check(said: bytes, at: int) -> None:
    """Raise WrongCount if the answer has an error code at this position."""
    code = struct.unpack_from(">h", said, at)[0]
    if code:
        raise WrongCount(f"a produce request got error {code}")


def summary(times_s: list[float], took_s: float) -> Latencies:
    """Requests per second and percentiles."""
    ordered = sorted(times_s)
    return Latencies(
        len(ordered) / took_s,
        ordered[len(ordered) // 2] * 1e3,
        ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1e3,
    )


def synchronous(
    port: int,
    name: str,
    *,
    producers: int,
    seconds: float,
    size: int = 200,
    connect: Callable[[int], socket.socket] = connect,
) -> Latencies:
    """`producers` bare sockets, each with one request in flight, for so many seconds."""
    frame, at = produce_frame(name, batch([Written(os.urandom(size), None)])), error_at(name)
    connections = [connect(port) for _ in range(producers)]
    if producers == 1:
        return _one_synchronous(connections[0], frame, at, seconds)
    times: list[float] = []
    sent: dict[socket.socket, float] = {}
    clock = time.perf_counter
    with selectors.EpollSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
            sent[connection] = clock()
            connection.sendall(frame)
        began, end = clock(), clock() + seconds
        while (now := clock()) < end:
            for key, _ in selector.select(5):
                connection = cast("socket.socket", key.fileobj)
                check(receive(connection), at)
                now = clock()
                times.append(now - sent[connection])
                sent[connection] = now
                connection.sendall(frame)
    for connection in connections:
        connection.close()
    return summary(times, now - began)


def _one_synchronous(connection: socket.socket, frame: bytes, at: int, seconds: float) -> Latencies:
    clock = time.perf_counter
    times: list[float] = []
    began = now = clock()
    end = began + seconds
    while now < end:
        before = now
        connection.sendall(frame)
        check(receive(connection), at)
        now = clock()
        times.append(now - before)
    connection.close()
    return summary(times, now - began)


def produce_to_consume(port: int, name: str, *, seconds: float, size: int = 200) -> Latencies:
    """Send one record at a time while a consumer's fetch waits for it, and measure until the record has arrived.

    A fetch waits at the broker for a millisecond before the record is sent. Both sockets belong to this process.
    """
    frame, at = produce_frame(name, batch([Written(os.urandom(size), None)])), error_at(name)
    next_offset = end_offset(port, name)
    times: list[float] = []
    clock = time.perf_counter
    with connect(port) as producer, connect(port) as consumer:
        began = now = clock()
        while now < began + seconds:
            consumer.sendall(fetch_frame(name, next_offset))
            time.sleep(0.001)
            before = clock()
            producer.sendall(frame)
            answer = receive(consumer)
            now = clock()
            times.append(now - before)
            check(receive(producer), at)
            next_offset, count = count_records(memoryview(answer)[4:], name, next_offset)
            if count != 1:
                raise WrongCount(f"a fetch returned {count} records")
    return summary(times, now - began)


def synchronous_until(port: int, name: str, over: threading.Event, *, size: int = 200) -> tuple[Latencies, float]:
    """Send on one bare socket until `over` is set; returns the latencies and the seconds it took."""
    frame, at = produce_frame(name, batch([Written(os.urandom(size), None)])), error_at(name)
    clock = time.perf_counter
    times: list[float] = []
    with connect(port) as connection:
        began = now = clock()
        while not over.is_set():
            before = now
            connection.sendall(frame)
            check(receive(connection), at)
            now = clock()
            times.append(now - before)
    return summary(times, now - began), now - began


def bulk_librdkafka(
    port: int,
    name: str,
    *,
    records: int,
    size: int,
    progress: OnCount = lambda _: None,
    security: Mapping[str, str] = NO_SECURITY,
) -> float:
    """Write records as fast as librdkafka can, acks=all; seconds until the last is acknowledged."""
    delivered = failed = 0

    def reported(error: object, _: object) -> None:
        nonlocal delivered, failed
        delivered, failed = (delivered + 1, failed) if error is None else (delivered, failed + 1)

    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "acks": "all",
            "linger.ms": 5,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 1 << 20,
            "delivery.report.only.error": True,  # the count is taken from the log afterwards
            **security,
        }
    )
    value = os.urandom(size)
    piece, sent = 2_000, 0
    began = time.perf_counter()
    while sent < records:
        messages = [{"value": value} for _ in range(min(piece, records - sent))]
        while messages:
            producer.produce_batch(name, messages, 0, reported)
            messages = [{"value": value} for each in messages if "_error" in each]
            sent += piece - len(messages) if not messages else 0
            if messages:
                producer.poll(0.01)
        producer.poll(0)
        progress(sent)
    if producer.flush(300):
        raise WrongCount("not everything was sent")
    took = time.perf_counter() - began
    if failed:
        raise WrongCount(f"{failed} records failed")
    return took


def bulk_frames(port: int, name: str, *, records: int, size: int, progress: OnCount = lambda _: None) -> float:
    """Write ready-made batches of about 500 kB, five in flight; seconds until all are acknowledged."""
    in_batch = max(1, 500_000 // (size + 10))
    frame = produce_frame(name, batch([Written(os.urandom(size), None) for _ in range(in_batch)]))
    at, wanted = error_at(name), -(-records // in_batch)
    connection = connect(port)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    answer_size, sent, answered = 0, 0, 0
    said = b""
    began = time.perf_counter()
    while answered < wanted:
        while sent < wanted and sent - answered < IN_FLIGHT:
            connection.sendall(frame)
            sent += 1
        said += connection.recv(65536)
        while len(said) >= 4 and len(said) >= (answer_size := 4 + struct.unpack_from(">i", said)[0]):
            check(said, at)
            said = said[answer_size:]
            answered += 1
            progress(answered * in_batch)
    took = time.perf_counter() - began
    connection.close()
    return took * records / (wanted * in_batch)  # the last batch is a whole one


def read_librdkafka(
    port: int, name: str, *, records: int, progress: OnCount = lambda _: None, security: Mapping[str, str] = NO_SECURITY
) -> float:
    """Read a topic from its start with librdkafka until so many records came; seconds from the first."""
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": "reader",
            "enable.auto.commit": False,
            "queued.min.messages": 1_000_000,
            "fetch.message.max.bytes": 4 << 20,
            "check.crcs": False,
            **security,
        }
    )
    consumer.assign([TopicPartition(name, 0, 0)])
    got = len(_good(consumer.consume(1, 30)))
    began = time.perf_counter()
    while got < records:
        found = _good(consumer.consume(min(10_000, records - got), 10))
        if not found:
            raise WrongCount(f"{got} of {records} records came")
        got += len(found)
        progress(got)
    took = time.perf_counter() - began
    consumer.close()
    return took


def _good(messages: list[Message]) -> list[Message]:
    wrong = next((each for each in messages if each.error() is not None), None)
    if wrong is not None:
        raise WrongCount(str(wrong.error()))
    return messages


def read_frames(port: int, name: str, *, records: int, progress: OnCount = lambda _: None) -> float:
    """Read a topic from its start by bare Fetch requests, counting records by the batches' headers; seconds it took."""
    connection = connect(port)
    buffer = bytearray(READ_BYTES + (1 << 20))
    view = memoryview(buffer)
    next_offset = got = 0
    began = time.perf_counter()
    while got < records:
        connection.sendall(fetch_frame(name, next_offset))
        length = _into(connection, view, 4) and struct.unpack_from(">i", buffer)[0]
        if length > len(buffer):
            raise WrongCount(f"an answer of {length} bytes")
        _into(connection, view, length)
        next_offset, count = count_records(view[:length], name, next_offset)
        got += count
        progress(got)
    took = time.perf_counter() - began
    connection.close()
    return took


def fetch_frame(name: str, offset: int) -> bytes:
    """Return a whole Fetch request with its length."""
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": READ_BYTES, "current_leader_epoch": -1}
    asked = {
        "replica_id": -1,
        "max_wait": 500,
        "min_bytes": 1,
        "max_bytes": READ_BYTES,
        "isolation_level": 0,
        "session_epoch": -1,
    }
    frame = encode("fetch", 11, 1, asked | {"topics": [{"topic": name, "partitions": [part]}]})
    return struct.pack(">i", len(frame)) + frame


def _into(connection: socket.socket, view: memoryview, size: int) -> int:
    at = 0
    while at < size:
        got = connection.recv_into(view[at:size])
        if not got:
            raise WrongCount("the broker closed the connection")
        at += got
    return size


def count_records(answer: memoryview, name: str, next_offset: int) -> tuple[int, int]:
    """The next offset and how many records an answer of Fetch v11 for one partition holds."""
    # correlation, throttle, error, session, topics, name, partitions, index |
    # error, high watermark, LSO, log start, aborted
    at = 4 + 4 + 2 + 4 + 4 + 2 + len(name) + 4 + 4
    code, aborted = struct.unpack_from(">h", answer, at)[0], struct.unpack_from(">i", answer, at + 26)[0]
    if code:
        raise WrongCount(f"a fetch got error {code}")
    at += 30 + max(aborted, 0) * 16 + 4 + 4  # preferred replica, length of the records
    count = 0
    while at + 61 <= len(answer):
        base, length = struct.unpack_from(">qi", answer, at)
        if at + 12 + length > len(answer):
            break  # a batch cut off by the limit
        last = base + struct.unpack_from(">i", answer, at + 23)[0]
        count += last + 1 - max(base, next_offset)
        next_offset = last + 1
        at += 12 + length
    return next_offset, count
