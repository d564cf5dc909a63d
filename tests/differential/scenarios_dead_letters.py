"""What both brokers are asked about dead letter queues of share groups: what is written there, where, and when not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ottla.records.builder import NewRecord, build_batch
from ottla.records.codecs import Codec
from ottla.records.record_reader import read_columns
from tests.differential.peer import Peer
from tests.differential.scenarios_share import (
    ACCEPT,
    GROUP_RESOURCE,
    REJECT,
    RELEASE,
    Consumer,
    begin_at_the_start,
    joined,
)
from tests.support.processes import until

BROKER, TOPIC = 4, 2
SET, DELETE = 0, 1
PREFIX = "errors.deadletterqueue."
ENABLED = f"{PREFIX}group.enable"
CREATION = f"{PREFIX}auto.create.topics.enable"
AT_MS = 1_700_000_000_000
OFFSET = "__dlq.errors.offset"
SOURCE = 2
"""The partition that is consumed, of three."""


def alter(peer: Peer, kind: int, name: str, operation: int = SET, **values: str) -> int:
    """Set or delete settings of dead letter queues, with `_` for `.`; returns the error."""
    configs = [
        {"name": PREFIX + key.replace("_", "."), "config_operation": operation, "value": value}
        for key, value in values.items()
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    answer = peer.quietly("incremental_alter_configs", 1, resources=[resource], validate_only=False)
    return int(answer["responses"][0]["error_code"])


@contextmanager
def creation_of_topics(peer: Peer) -> Iterator[None]:
    assert alter(peer, BROKER, "", auto_create_topics_enable="true") == 0
    until(lambda: described(peer, BROKER, "1", CREATION) == ["true"], what=CREATION)
    try:
        yield
    finally:
        alter(peer, BROKER, "", DELETE, auto_create_topics_enable="")
        until(lambda: described(peer, BROKER, "1", CREATION) == ["false"], what=CREATION)


def described(peer: Peer, kind: int, name: str, *keys: str) -> list[str]:
    asked = [{"resource_type": kind, "resource_name": name, "configuration_keys": list(keys)}]
    answer = peer.quietly("describe_configs", 4, resources=asked, include_synonyms=False, include_documentation=False)
    values = {each["name"]: each["value"] for each in answer["results"][0]["configs"]}
    return [values[key] for key in keys if key in values]


def records_of(peer: Peer, topic: str, partition: int) -> list[dict[str, Any]]:
    """Return the keys, values and headers of all records of a partition; none if there is no such topic."""
    asked = {"partition": partition, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    answer = peer.quietly(
        "fetch", 11, replica_id=-1, max_wait=0, min_bytes=0, max_bytes=1 << 20, isolation_level=0, session_id=0,
        session_epoch=-1, forgotten_topics_data=[], rack_id="", topics=[{"topic": topic, "partitions": [asked]}],
    )  # fmt: skip
    data = answer["responses"][0]["partitions"][0]["records"] or b""
    read = read_columns(data)
    return [
        {"key": key, "value": value, "headers": [(name, bytes(content or b"")) for name, content in headers]}
        for key, value, headers in zip(read.keys, read.values, read.headers, strict=True)
    ]


def is_done(peer: Peer, group: str, topic: str) -> bool:
    """Return whether all records are accepted or archived."""
    asked = [{"group_id": group, "topics": [{"topic_name": topic, "partitions": [SOURCE]}]}]
    answer = peer.quietly("describe_share_group_offsets", 1, groups=asked)
    return int(answer["groups"][0]["topics"][0]["partitions"][0]["lag"]) == 0


def consumed(peer: Peer, name: str, queue: str, *, copies: bool = False, records: int = 10) -> tuple[Consumer, str]:
    """Return a consumer that has all records of a partition, of a group whose dead letters go to a topic."""
    topic, group = peer.topic(name, partitions=3), f"{peer.stem}-{name}"
    begin_at_the_start(peer, group)
    assert alter(peer, GROUP_RESOURCE, group, topic_name=queue, copy_record_enable=str(copies).lower()) == 0
    limit = {"name": "share.delivery.count.limit", "config_operation": SET, "value": "2"}
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": [limit]}
    peer.quietly("incremental_alter_configs", 1, resources=[resource], validate_only=False)
    written = [NewRecord(b"k%d" % n, b"v%d" % n, AT_MS, (("own", b"h"),)) for n in range(records - 2)]
    peer.write(topic, bytes(build_batch([*written, NewRecord(None, b"")], codec=Codec.GZIP)), partition=SOURCE)
    peer.write(topic, bytes(build_batch([NewRecord(b"last", None)])), partition=SOURCE)
    joined(peer, group, topic)
    consumer = Consumer(peer, group, topic, peer.near("share_fetch", 1), partition=SOURCE)
    consumer.first_fetch(f"{name}: all records")
    return consumer, topic


def dead_letters(peer: Peer) -> None:
    """Rejected and exhausted records, without and with copies, to a topic that is created and to one that is there."""
    with creation_of_topics(peer):
        for copies in (False, True):
            name = f"dl{int(copies)}"
            queue = f"dlq.{peer.stem}-{name}"
            consumer, topic = consumed(peer, name, queue, copies=copies)
            consumer.acknowledge("each with its own kind", 0, 5, ACCEPT, REJECT, REJECT, 0, RELEASE, RELEASE)
            consumer.acknowledge("rejected at the end", 8, 9, REJECT)
            consumer.first_fetch("for the last time")
            consumer.acknowledge("released", 4, 5, RELEASE)
            consumer.first_fetch("for the last time")
            consumer.acknowledge("released", 5, 5, RELEASE)
            consumer.acknowledge("the rest", 6, 7, ACCEPT)
            until(partial(is_done, peer, consumer.group, topic), what="the end", timeout_s=30)
            note_queue(peer, queue)
    for label, value in (("reserved", "__dlq"), ("odd", "a/b"), ("of another prefix", "other"), ("none", "")):
        code = alter(peer, GROUP_RESOURCE, f"{peer.stem}-named", topic_name=value)
        peer.note(f"a name that is {label}", "incremental_alter_configs", 1, code)


def note_queue(peer: Peer, queue: str) -> None:
    """Note all records of a queue, by the offset of what they are about, and how the queue was created."""
    found = peer.quietly("metadata", 9, topics=[{"name": queue}], allow_auto_topic_creation=False)["topics"][0]
    for partition in range(len(found["partitions"])):
        records = sorted(records_of(peer, queue, partition), key=lambda each: int(dict(each["headers"])[OFFSET]))
        for record in records:
            record["headers"] = [(name, content.decode().replace(peer.stem, "")) for name, content in record["headers"]]
        peer.note(f"partition {partition} of the queue", "fetch", 11, records)
    settings = described(peer, TOPIC, queue, ENABLED, "message.timestamp.type")
    peer.note("the queue", "metadata", 9, (found["error_code"], len(found["partitions"]), settings))


def refused_dead_letters(peer: Peer) -> None:
    """Topics to which no dead letters are written: the records are archived all the same."""
    missing, other = f"dlq.{peer.stem}-missing", f"other-{peer.stem}"
    for label, queue, config in (
        ("a topic that does not exist", missing, None),
        ("a topic of another prefix", other, {ENABLED: "true"}),
        ("a topic that does not want them", f"dlq.{peer.stem}-plain", {}),
    ):
        if config is not None:
            configs = [{"name": key, "value": value} for key, value in config.items()]
            new = {"name": queue, "num_partitions": 1, "replication_factor": 1, "configs": configs}
            made = peer.quietly("create_topics", 5, topics=[new], timeout=20_000)
            assert made["topics"][0]["error_code"] == 0, made
        consumer, topic = consumed(peer, f"dlr{len(queue)}", queue)
        consumer.acknowledge("all rejected", 0, 9, REJECT)
        until(partial(is_done, peer, consumer.group, topic), what="the end", timeout_s=30)
        peer.note(label, "fetch", 11, records_of(peer, queue, 0))
