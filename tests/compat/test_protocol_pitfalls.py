"""Tests one protocol pitfall each: versions, records and writing. docs/protocol-pitfalls.md lists all.

They run against Ottla, and with OTTLA_TEST_BROKER=kafka against the real Kafka, which must pass them too.
"""

from __future__ import annotations

import struct
import uuid

import pytest

from tests.compat.single_requests import fetched, listed, offset_at, produced, settled
from tests.conftest import Broker
from tests.differential.peer import Peer
from tests.support.batches import Written, batch, numbered
from tests.support.processes import until
from tests.support.wire_client import KEYS, NO_ID, ConnectionEnded, Wire, decode

pytestmark = pytest.mark.external


@pytest.mark.parametrize("version", [6, 99, 32767])
def test_pitfall_01_an_unknown_version_of_api_versions_is_answered_as_version_0_with_the_right_range(
    broker: Broker, version: int
) -> None:
    with Wire(broker.port) as wire:
        for _ in range(2):
            wire.send_frame(struct.pack(">hhihs", KEYS["api_versions"], version, 5, 1, b"t") + b"\0\x02a\x021\0")
            correlation_id, answer = decode("api_versions", 0, wire.receive_frame())
            assert (correlation_id, answer["error_code"]) == (5, 35)
            own = [key for key in answer["api_keys"] if key["api_key"] == KEYS["api_versions"]]
            assert own == [{"api_key": 18, "min_version": 0, "max_version": 5}]
        assert wire.call("metadata", 0, topics=[])["brokers"]


def test_pitfall_02_the_answer_to_api_versions_has_the_old_header_in_every_version(broker: Broker) -> None:
    with Wire(broker.port) as wire:
        for version in range(6):
            number = wire.send("api_versions", version, client_software_name="t", client_software_version="1")
            frame = wire.receive_frame()
            assert struct.unpack_from(">ih", frame) == (number, 0)  # no tags between the correlation id and the error


def test_pitfall_03_api_versions_may_be_asked_twice(broker: Broker) -> None:
    with Wire(broker.port) as wire:
        assert listed(wire) == listed(wire) != {}


@pytest.mark.parametrize("name", ["", "-a", "a b", "a-"])
def test_pitfall_04_a_client_name_that_is_none_is_an_invalid_request(broker: Broker, name: str) -> None:
    with Wire(broker.port) as wire:
        assert wire.call("api_versions", 3, client_software_name=name, client_software_version="1")["error_code"] == 42


def test_pitfall_05_produce_is_listed_from_version_0_though_3_is_the_oldest_served(broker: Broker) -> None:
    with Wire(broker.port) as wire:
        assert listed(wire)[KEYS["produce"]][0] == 0


def test_pitfall_06_what_librdkafka_derives_features_from_is_listed(broker: Broker) -> None:
    with Wire(broker.port) as wire:
        assert {
            KEYS[name]
            for name in (
                "find_coordinator",
                "join_group",
                "offset_commit",
                "offset_fetch",
                "sync_group",
                "heartbeat",
                "leave_group",
            )
        } <= listed(wire).keys()


def test_pitfall_07_no_range_is_inverted_and_topic_ids_go_with_metadata_that_has_them(broker: Broker) -> None:
    with Wire(broker.port) as wire:
        ranges = listed(wire)
    assert all(low <= high for low, high in ranges.values())
    assert ranges[KEYS["metadata"]][1] >= 10
    assert ranges[KEYS["fetch"]][1] >= 13


def test_pitfall_08_an_unsupported_version_never_gets_a_wrong_answer(broker: Broker) -> None:
    for api, version in (("metadata", 99), ("produce", 2), ("fetch", 3), ("join_group", 99)):
        with Wire(broker.port) as wire:
            wire.send_frame(struct.pack(">hhihs", KEYS[api], version, 5, 1, b"t") + bytes(40))
            with pytest.raises(ConnectionEnded):
                wire.receive_frame()


def test_pitfall_09_an_answer_holds_only_what_its_version_has(peer: Peer) -> None:
    topic = peer.topic("t")  # decoding asserts that no byte is left over
    for version in range(4, 13):
        fetched(peer.wire, peer.naming(topic), 0, version=version)
    for version in range(3, 13):
        produced(peer.wire, peer.naming(topic), batch(), version=version)


def test_pitfall_10_unknown_tagged_fields_are_skipped(broker: Broker) -> None:
    tags = b"\x02\x63\x03abc\x64\x00"
    with Wire(broker.port) as wire:
        wire.send_frame(struct.pack(">hhihs", KEYS["metadata"], 12, 9, 1, b"t") + tags + b"\x01\0\0" + tags)
        assert decode("metadata", 12, wire.receive_frame())[1]["topics"] == []


def test_pitfall_11_null_means_all_topics_and_empty_means_none_and_records_are_never_null(peer: Peer) -> None:
    topic = peer.topic("t")
    assert peer.quietly("metadata", 12, topics=[])["topics"] == []
    assert topic in {each["name"] for each in peer.quietly("metadata", 12, topics=None)["topics"]}
    assert topic in {each["name"] for each in peer.quietly("metadata", 0, topics=[])["topics"]}
    for version in range(4, 13):
        assert fetched(peer.wire, peer.naming(topic), 0, version=version)["records"] == b""


def test_pitfall_12_throttle_time_is_zero(peer: Peer) -> None:
    topic = peer.topic("t")
    for api, version, fields in (
        ("metadata", 12, {"topics": None}),
        ("api_versions", 2, {}),
        ("describe_cluster", 0, {}),
    ):
        assert peer.quietly(api, version, **fields)["throttle_time"] == 0
    part = {"index": 0, "records": batch()}
    assert (
        peer.quietly("produce", 9, acks=-1, timeout=1000, topic_data=[{"name": topic, "partition_data": [part]}])[
            "throttle_time"
        ]
        == 0
    )


def test_pitfall_13_a_long_poll_holds_back_later_answers_and_acks_0_has_none(peer: Peer) -> None:
    topic = peer.topic("t")
    part = {
        "partition": 0,
        "fetch_offset": 0,
        "partition_max_bytes": 100,
        "current_leader_epoch": -1,
        "last_fetched_epoch": -1,
    }
    poll = peer.wire.send(
        "fetch",
        12,
        replica_id=-1,
        max_wait=600,
        min_bytes=1,
        max_bytes=100,
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": [part]}],
    )
    after = peer.wire.send("metadata", 12, topics=[])
    peer.wire.receive("fetch", 12, poll)
    peer.wire.receive("metadata", 12, after)
    peer.wire.send(
        "produce",
        9,
        acks=0,
        timeout=1000,
        topic_data=[{"name": topic, "partition_data": [{"index": 0, "records": batch()}]}],
    )
    peer.wire.receive("metadata", 12, peer.wire.send("metadata", 12, topics=[]))
    until(lambda: offset_at(peer.wire, topic, -1)["offset"] == 1, what="the record sent with acks=0")


def test_pitfall_13_a_failure_without_acks_closes_the_connection(peer: Peer) -> None:
    data = [{"name": f"{peer.stem}-none", "partition_data": [{"index": 0, "records": batch()}]}]
    with Wire(peer.port) as wire:
        wire.send("produce", 9, acks=0, timeout=1000, topic_data=data)
        with pytest.raises(ConnectionEnded):
            wire.receive_frame()


def test_pitfall_15_the_listed_broker_is_where_the_client_came_in(broker: Broker) -> None:
    with Wire(broker.port) as wire:
        assert [(each["host"], each["port"]) for each in wire.call("metadata", 12, topics=[])["brokers"]] == [
            ("127.0.0.1", broker.port)
        ]


def test_pitfall_16_base_offset_is_the_first_and_the_stored_batch_carries_offset_and_epoch(peer: Peer) -> None:
    topic = peer.topic("t")
    assert produced(peer.wire, peer.naming(topic), batch(numbered(3)))["base_offset"] == 0
    assert produced(peer.wire, peer.naming(topic), batch(numbered(3)))["base_offset"] == 3
    held = fetched(peer.wire, peer.naming(topic), 3)["records"]
    assert held == batch(numbered(3), base_offset=3, leader_epoch=0)  # the checksum is untouched


def test_pitfall_17_the_clients_leader_epoch_is_not_judged(peer: Peer) -> None:
    topic = peer.topic("t")
    for epoch in (0, 7, -1):
        assert produced(peer.wire, peer.naming(topic), batch(leader_epoch=epoch))["error_code"] == 0


def test_pitfall_18_codecs_are_carried_as_they_are_and_zstd_needs_version_7(peer: Peer) -> None:
    topic = peer.topic("t")
    for codec in (1, 2, 3, 4):
        sent = batch(numbered(20), attributes=codec)
        at = produced(peer.wire, peer.naming(topic), sent)["base_offset"]
        assert fetched(peer.wire, peer.naming(topic), at)["records"][61:] == sent[61:]
    assert produced(peer.wire, peer.naming(topic), batch(attributes=4), version=6)["error_code"] == 76


def test_pitfall_19_sizes_keys_and_control_batches_are_judged(peer: Peer) -> None:
    small = peer.topic("small", config={"max.message.bytes": "300"})
    compacted = peer.topic("compacted", config={"cleanup.policy": "compact"})
    assert produced(peer.wire, peer.naming(small), batch([Written(b"x" * 400)]))["error_code"] == 10
    said = produced(peer.wire, peer.naming(compacted), batch([Written(), Written(key=None)]))
    assert (said["error_code"], [each["batch_index"] for each in said["record_errors"]]) == (87, [1])
    assert produced(peer.wire, peer.naming(compacted), batch(attributes=0x20))["error_code"] == 87


def test_pitfall_20_every_partition_asked_has_its_entry(peer: Peer) -> None:
    one, two = peer.topic("one", partitions=2), peer.topic("two")
    parts = [{"index": number, "records": batch()} for number in (0, 1, 5)]
    said = peer.quietly(
        "produce", 9, acks=-1, timeout=9000, topic_data=[{"name": each, "partition_data": parts} for each in (one, two)]
    )
    codes = {
        (each["name"], part["index"]): part["error_code"]
        for each in said["responses"]
        for part in each["partition_responses"]
    }
    assert codes == {(one, 0): 0, (one, 1): 0, (one, 5): 3, (two, 0): 0, (two, 1): 3, (two, 5): 3}


def test_pitfall_21_pipelined_appends_keep_their_order(peer: Peer) -> None:
    topic = peer.topic("t")
    data = [
        {"name": topic, "partition_data": [{"index": 0, "records": batch([Written(b"%d" % number)])}]}
        for number in range(50)
    ]
    sent = [peer.wire.send("produce", 9, acks=-1, timeout=9000, topic_data=[each]) for each in data]
    offsets = [
        peer.wire.receive("produce", 9, each)["responses"][0]["partition_responses"][0]["base_offset"] for each in sent
    ]
    assert offsets == list(range(50))


def test_pitfall_22_duplicates_get_their_first_offset_and_gaps_and_old_epochs_an_error(peer: Peer) -> None:
    topic = peer.topic("t", partitions=2)
    producer = settled(lambda: peer.quietly("init_producer_id", 1, transaction_timeout=60_000))["producer_id"]

    def sent(sequence: int, *, epoch: int = 0, partition: int = 0) -> tuple[int, int]:
        said = produced(
            peer.wire,
            peer.naming(topic),
            batch(producer_id=producer, producer_epoch=epoch, base_sequence=sequence),
            partition=partition,
        )
        return said["error_code"], said["base_offset"]

    assert [sent(number) for number in range(6)] == [(0, number) for number in range(6)]
    assert [sent(number) for number in (5, 3, 1)] == [(0, 5), (0, 3), (0, 1)]  # five batches back
    assert sent(9)[0] == 45
    assert sent(0, epoch=1) == (0, 6)
    assert sent(6)[0] == 47
    assert sent(0x7FFF_FFFF, partition=1) == (0, 0)  # nothing is known of the producer here
    assert sent(0, partition=1) == (0, 1)  # the sequence wraps


def test_pitfall_23_an_unknown_topic_id_is_an_error_of_the_partition_and_ids_are_stable(peer: Peer) -> None:
    topic = peer.topic("t")
    ids = {peer.quietly("metadata", 12, topics=[{"name": topic}])["topics"][0]["topic_id"] for _ in range(5)}
    assert ids == {peer.ids[topic]}
    assert NO_ID not in ids
    other = uuid.UUID("11111111-2222-3333-4444-555555555555")
    assert produced(peer.wire, {"topic_id": other}, batch(), version=13)["error_code"] == 100
    assert fetched(peer.wire, {"topic_id": other}, 0, version=13)["error_code"] == 100
