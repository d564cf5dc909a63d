"""The traps that other re-implementations of Kafka fell into, one test each (docs/traps.md is the table of all).

They run against Ottla, and with OTTLA_TEST_BROKER=kafka against the real Kafka, which must pass them too.
"""

from __future__ import annotations

import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import Broker
from tests.differential.peer import Peer
from tests.support.batches import AT_MS, Written, batch, numbered
from tests.support.processes import until
from tests.support.wire_client import KEYS, NO_ID, Answer, ConnectionEnded, Wire, decode

pytestmark = pytest.mark.external
NEWEST = {"fetch": 12, "produce": 9}  # the last versions that name topics by name
SUBSCRIPTION = b"\0\0" + b"\0\0\0\1\0\1t" + b"\xff\xff\xff\xff"


@pytest.fixture
def peer(broker: Broker) -> Iterator[Peer]:
    """A connection, and a stem nobody used before."""
    made = Peer(broker.port, {}, f"trap-{uuid.uuid4().hex[:8]}")
    yield made
    made.close()


def listed(wire: Wire, version: int = 3) -> dict[int, tuple[int, int]]:
    keys = wire.call("api_versions", version, client_software_name="t", client_software_version="1")["api_keys"]
    return {key["api_key"]: (key["min_version"], key["max_version"]) for key in keys}


def produced(
    wire: Wire, naming: dict[str, Any], records: bytes | None, *, version: int = 9, partition: int = 0
) -> Answer:
    part = {"index": partition, "records": records}
    said = wire.call("produce", version, acks=-1, timeout=10_000, topic_data=[naming | {"partition_data": [part]}])
    found: Answer = said["responses"][0]["partition_responses"][0]
    return found


def fetched(wire: Wire, naming: dict[str, Any], offset: int, *, version: int = 12, **more: Any) -> Answer:
    part = {
        "partition": more.pop("partition", 0), "fetch_offset": offset, "current_leader_epoch": -1, "last_fetched_epoch": -1,
        "partition_max_bytes": more.pop("partition_max_bytes", 1 << 20),
    }  # fmt: skip
    asked = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "isolation_level": 0,
        "rack_id": "",
    }
    said = wire.call("fetch", version, **(asked | more), topics=[naming | {"partitions": [part]}])
    assert said.get("error_code", 0) == 0
    found: Answer = said["responses"][0]["partitions"][0]
    return found


def offset_at(wire: Wire, topic: str, at_ms: int, *, version: int = 7, partition: int = 0) -> Answer:
    part = {"partition_index": partition, "timestamp": at_ms, "current_leader_epoch": -1}
    said = wire.call("list_offsets", version, replica_id=-1, topics=[{"name": topic, "partitions": [part]}])
    found: Answer = said["topics"][0]["partitions"][0]
    return found


def joined(wire: Wire, group: str, *, member_id: str = "", version: int = 9, **more: Any) -> Answer:
    fields: dict[str, Any] = {
        "group_id": group, "session_timeout": 10_000, "rebalance_timeout": 10_000, "member_id": member_id,
        "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
    }  # fmt: skip
    fields |= more
    found = settled(lambda: wire.call("join_group", version, **fields))
    if found["error_code"] == 79:
        found = wire.call("join_group", version, **(fields | {"member_id": found["member_id"]}))
    return found


def settled(ask: Callable[[], Answer]) -> Answer:
    """An answer that is not "the coordinator is being loaded"."""
    found: list[Answer] = []
    until(lambda: (found.append(ask()) or found[-1]["error_code"]) not in {14, 15, 16}, what="the coordinator")  # type: ignore[func-returns-value]
    return found[-1]


def the_coordinator_is_there(wire: Wire) -> None:
    settled(lambda: wire.call("find_coordinator", 3, key="any", key_type=0))


@pytest.mark.parametrize("version", [5, 99, 32767])
def test_trap_01_an_unknown_version_of_api_versions_is_answered_as_version_0_with_the_right_range(
    broker: Broker, version: int
) -> None:
    with Wire(broker.port) as wire:
        for _ in range(2):
            wire.send_frame(struct.pack(">hhihs", KEYS["api_versions"], version, 5, 1, b"t") + b"\0\x02a\x021\0")
            correlation_id, answer = decode("api_versions", 0, wire.receive_frame())
            assert (correlation_id, answer["error_code"]) == (5, 35)
            own = [key for key in answer["api_keys"] if key["api_key"] == KEYS["api_versions"]]
            assert own == [{"api_key": 18, "min_version": 0, "max_version": 4}]
        assert wire.call("metadata", 0, topics=[])["brokers"]


def test_trap_02_the_answer_to_api_versions_has_the_old_header_in_every_version(broker: Broker) -> None:
    with Wire(broker.port) as wire:
        for version in range(5):
            number = wire.send("api_versions", version, client_software_name="t", client_software_version="1")
            frame = wire.receive_frame()
            assert struct.unpack_from(">ih", frame) == (number, 0)  # no tags between the correlation id and the error


def test_trap_03_api_versions_may_be_asked_twice(broker: Broker) -> None:
    with Wire(broker.port) as wire:
        assert listed(wire) == listed(wire) != {}


@pytest.mark.parametrize("name", ["", "-a", "a b", "a-"])
def test_trap_04_a_client_name_that_is_none_is_an_invalid_request(broker: Broker, name: str) -> None:
    with Wire(broker.port) as wire:
        assert wire.call("api_versions", 3, client_software_name=name, client_software_version="1")["error_code"] == 42


def test_trap_05_produce_is_listed_from_version_0_though_3_is_the_oldest_served(broker: Broker) -> None:
    with Wire(broker.port) as wire:
        assert listed(wire)[KEYS["produce"]][0] == 0


def test_trap_06_what_librdkafka_derives_features_from_is_listed(broker: Broker) -> None:
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


def test_trap_07_no_range_is_inverted_and_topic_ids_go_with_metadata_that_has_them(broker: Broker) -> None:
    with Wire(broker.port) as wire:
        ranges = listed(wire)
    assert all(low <= high for low, high in ranges.values())
    assert ranges[KEYS["metadata"]][1] >= 10
    assert ranges[KEYS["fetch"]][1] >= 13


def test_trap_08_an_unsupported_version_never_gets_a_wrong_answer(broker: Broker) -> None:
    for api, version in (("metadata", 99), ("produce", 2), ("fetch", 3), ("join_group", 99)):
        with Wire(broker.port) as wire:
            wire.send_frame(struct.pack(">hhihs", KEYS[api], version, 5, 1, b"t") + bytes(40))
            with pytest.raises(ConnectionEnded):
                wire.receive_frame()


def test_trap_09_an_answer_holds_only_what_its_version_has(peer: Peer) -> None:
    topic = peer.topic("t")  # decoding asserts that no byte is left over
    for version in range(4, 13):
        fetched(peer.wire, peer.naming(topic), 0, version=version)
    for version in range(3, 13):
        produced(peer.wire, peer.naming(topic), batch(), version=version)


def test_trap_10_unknown_tagged_fields_are_skipped(broker: Broker) -> None:
    tags = b"\x02\x63\x03abc\x64\x00"
    with Wire(broker.port) as wire:
        wire.send_frame(struct.pack(">hhihs", KEYS["metadata"], 12, 9, 1, b"t") + tags + b"\x01\0\0" + tags)
        assert decode("metadata", 12, wire.receive_frame())[1]["topics"] == []


def test_trap_11_null_means_all_topics_and_empty_means_none_and_records_are_never_null(peer: Peer) -> None:
    topic = peer.topic("t")
    assert peer.quietly("metadata", 12, topics=[])["topics"] == []
    assert topic in {each["name"] for each in peer.quietly("metadata", 12, topics=None)["topics"]}
    assert topic in {each["name"] for each in peer.quietly("metadata", 0, topics=[])["topics"]}
    for version in range(4, 13):
        assert fetched(peer.wire, peer.naming(topic), 0, version=version)["records"] == b""


def test_trap_12_throttle_time_is_zero(peer: Peer) -> None:
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


def test_trap_13_a_long_poll_holds_back_later_answers_and_acks_0_has_none(peer: Peer) -> None:
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


def test_trap_13_a_failure_without_acks_closes_the_connection(peer: Peer) -> None:
    data = [{"name": f"{peer.stem}-none", "partition_data": [{"index": 0, "records": batch()}]}]
    with Wire(peer.port) as wire:
        wire.send("produce", 9, acks=0, timeout=1000, topic_data=data)
        with pytest.raises(ConnectionEnded):
            wire.receive_frame()


def test_trap_15_the_listed_broker_is_where_the_client_came_in(broker: Broker) -> None:
    with Wire(broker.port) as wire:
        assert [(each["host"], each["port"]) for each in wire.call("metadata", 12, topics=[])["brokers"]] == [
            ("127.0.0.1", broker.port)
        ]


def test_trap_16_base_offset_is_the_first_and_the_stored_batch_carries_offset_and_epoch(peer: Peer) -> None:
    topic = peer.topic("t")
    assert produced(peer.wire, peer.naming(topic), batch(numbered(3)))["base_offset"] == 0
    assert produced(peer.wire, peer.naming(topic), batch(numbered(3)))["base_offset"] == 3
    held = fetched(peer.wire, peer.naming(topic), 3)["records"]
    assert held == batch(numbered(3), base_offset=3, leader_epoch=0)  # the checksum is untouched


def test_trap_17_the_clients_leader_epoch_is_not_judged(peer: Peer) -> None:
    topic = peer.topic("t")
    for epoch in (0, 7, -1):
        assert produced(peer.wire, peer.naming(topic), batch(leader_epoch=epoch))["error_code"] == 0


def test_trap_18_codecs_are_carried_as_they_are_and_zstd_needs_version_7(peer: Peer) -> None:
    topic = peer.topic("t")
    for codec in (1, 2, 3, 4):
        sent = batch(numbered(20), attributes=codec)
        at = produced(peer.wire, peer.naming(topic), sent)["base_offset"]
        assert fetched(peer.wire, peer.naming(topic), at)["records"][61:] == sent[61:]
    assert produced(peer.wire, peer.naming(topic), batch(attributes=4), version=6)["error_code"] == 76


def test_trap_19_sizes_keys_and_control_batches_are_judged(peer: Peer) -> None:
    small = peer.topic("small", config={"max.message.bytes": "300"})
    compacted = peer.topic("compacted", config={"cleanup.policy": "compact"})
    assert produced(peer.wire, peer.naming(small), batch([Written(b"x" * 400)]))["error_code"] == 10
    said = produced(peer.wire, peer.naming(compacted), batch([Written(), Written(key=None)]))
    assert (said["error_code"], [each["batch_index"] for each in said["record_errors"]]) == (87, [1])
    assert produced(peer.wire, peer.naming(compacted), batch(attributes=0x20))["error_code"] == 87


def test_trap_20_every_partition_asked_has_its_entry(peer: Peer) -> None:
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


def test_trap_21_pipelined_appends_keep_their_order(peer: Peer) -> None:
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


def test_trap_22_duplicates_get_their_first_offset_and_gaps_and_old_epochs_an_error(peer: Peer) -> None:
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


def test_trap_23_an_unknown_topic_id_is_an_error_of_the_partition_and_ids_are_stable(peer: Peer) -> None:
    topic = peer.topic("t")
    ids = {peer.quietly("metadata", 12, topics=[{"name": topic}])["topics"][0]["topic_id"] for _ in range(5)}
    assert ids == {peer.ids[topic]}
    assert NO_ID not in ids
    other = uuid.UUID("11111111-2222-3333-4444-555555555555")
    assert produced(peer.wire, {"topic_id": other}, batch(), version=13)["error_code"] == 100
    assert fetched(peer.wire, {"topic_id": other}, 0, version=13)["error_code"] == 100


def test_trap_24_an_offset_within_a_batch_brings_the_whole_batch(peer: Peer) -> None:
    topic = peer.topic("t")
    peer.write(topic, batch(numbered(10)))
    assert fetched(peer.wire, peer.naming(topic), 9)["records"] == batch(numbered(10), leader_epoch=0)


def test_trap_25_one_whole_batch_comes_whatever_the_limits(peer: Peer) -> None:
    topic = peer.topic("t")
    for _ in range(2):
        peer.write(topic, batch(numbered(10)))
    whole = batch(numbered(10), leader_epoch=0)
    assert fetched(peer.wire, peer.naming(topic), 0, max_bytes=1)["records"] == whole
    assert fetched(peer.wire, peer.naming(topic), 0, partition_max_bytes=1)["records"] == whole


def test_trap_26_a_long_poll_ends_on_an_append_and_at_once_on_an_error(peer: Peer, broker: Broker) -> None:
    topic = peer.topic("t")

    def append() -> None:
        with Wire(broker.port) as other:
            produced(other, peer.naming(topic), batch())

    began = time.monotonic()
    later = threading.Timer(0.3, append)
    later.start()
    assert fetched(peer.wire, peer.naming(topic), 0, max_wait=20_000, min_bytes=1)["records"]
    assert 0.2 < time.monotonic() - began < 8
    later.join()
    began = time.monotonic()
    assert fetched(peer.wire, peer.naming(topic), 0, max_wait=20_000, min_bytes=1, partition=7)["error_code"] == 3
    assert time.monotonic() - began < 8


def test_trap_27_a_fetch_session_is_incremental_and_checks_its_epoch(peer: Peer) -> None:
    one, two = peer.topic("one"), peer.topic("two")
    ask: dict[str, Any] = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "rack_id": ""}
    part = {
        "partition": 0,
        "fetch_offset": 0,
        "partition_max_bytes": 1 << 20,
        "current_leader_epoch": -1,
        "last_fetched_epoch": -1,
    }
    both = [{"topic": each, "partitions": [part]} for each in (one, two)]
    first = peer.quietly("fetch", 12, **ask, session_epoch=0, topics=both)
    session = first["session_id"]
    assert len(first["responses"]) == 2
    assert session > 0
    assert peer.quietly("fetch", 12, **ask, session_id=session, session_epoch=1)["responses"] == []
    peer.write(two, batch())
    assert [
        each["topic"] for each in peer.quietly("fetch", 12, **ask, session_id=session, session_epoch=2)["responses"]
    ] == [two]
    assert peer.quietly("fetch", 12, **ask, session_id=session, session_epoch=9)["error_code"] == 71
    assert peer.quietly("fetch", 12, **ask, session_id=session + 99, session_epoch=1)["error_code"] == 70


def test_trap_28_aborted_transactions_are_for_read_committed_only(peer: Peer) -> None:
    topic = peer.topic("t")
    peer.write(topic, batch())
    assert fetched(peer.wire, peer.naming(topic), 0, isolation_level=0)["aborted_transactions"] is None
    committed = fetched(peer.wire, peer.naming(topic), 0, isolation_level=1)
    assert committed["aborted_transactions"] == []
    assert committed["last_stable_offset"] == 1
    assert committed["records"]


def test_trap_29_no_preferred_replica_and_no_current_leader_are_minus_one(peer: Peer) -> None:
    topic = peer.topic("t")
    said = fetched(peer.wire, peer.naming(topic), 0)
    assert said["preferred_read_replica"] == -1
    assert said["current_leader"] == {"leader_id": -1, "leader_epoch": -1}


def test_trap_30_the_end_is_empty_success_and_beyond_is_out_of_range(peer: Peer) -> None:
    topic = peer.topic("t")
    peer.write(topic, batch(numbered(3)))
    assert (
        fetched(peer.wire, peer.naming(topic), 3)["error_code"],
        fetched(peer.wire, peer.naming(topic), 3)["records"],
    ) == (0, b"")
    assert fetched(peer.wire, peer.naming(topic), 4)["error_code"] == 1
    peer.quietly(
        "delete_records", 2, topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": 2}]}], timeout=9000
    )
    assert fetched(peer.wire, peer.naming(topic), 1)["error_code"] == 1


def test_trap_31_a_future_epoch_is_unknown_and_a_known_one_ends_where_the_log_ends(peer: Peer) -> None:
    topic = peer.topic("t")
    peer.write(topic, batch(numbered(3)))

    def end_of(epoch: int) -> tuple[int, int]:
        part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
        said = peer.quietly(
            "offset_for_leader_epoch", 4, replica_id=-2, topics=[{"topic": topic, "partitions": [part]}]
        )
        found = said["topics"][0]["partitions"][0]
        return found["leader_epoch"], found["end_offset"]

    assert (end_of(0), end_of(9)) == ((0, 3), (-1, -1))


def test_trap_32_a_time_finds_the_first_record_at_or_after_it(peer: Peer) -> None:
    topic = peer.topic("t")
    for start_ms in (AT_MS, AT_MS + 1000, AT_MS + 500):
        peer.write(topic, batch(numbered(5), base_timestamp_ms=start_ms))

    def found(at_ms: int) -> tuple[int, int]:
        said = offset_at(peer.wire, topic, at_ms)
        return said["offset"], said["timestamp"]

    assert found(AT_MS + 2) == (2, AT_MS + 2)
    assert found(AT_MS + 5) == (5, AT_MS + 1000)
    assert found(AT_MS + 1005) == (-1, -1)
    assert found(-3) == (9, AT_MS + 1004)
    assert (found(-1)[0], found(-2)[0]) == (15, 0)


def test_trap_33_the_leader_epoch_is_told_wherever_it_is_promised(peer: Peer) -> None:
    topic = peer.topic("t")
    peer.write(topic, batch())
    the_coordinator_is_there(peer.wire)
    assert peer.quietly("metadata", 12, topics=[{"name": topic}])["topics"][0]["partitions"][0]["leader_epoch"] == 0
    assert offset_at(peer.wire, topic, -1)["leader_epoch"] == 0
    commit(peer, f"{peer.stem}-g", topic, epoch=0)
    assert committed(peer, f"{peer.stem}-g", topic)["committed_leader_epoch"] == 0


def commit(peer: Peer, group: str, topic: str, *, partition: int = 0, epoch: int = -1, text: str | None = None) -> int:
    part = {
        "partition_index": partition,
        "committed_offset": 1,
        "committed_leader_epoch": epoch,
        "committed_metadata": text,
    }

    def ask() -> Answer:
        said = peer.quietly(
            "offset_commit",
            8,
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[{"name": topic, "partitions": [part]}],
        )
        found: Answer = said["topics"][0]["partitions"][0]
        return found

    return int(settled(ask)["error_code"])


def committed(peer: Peer, group: str, topic: str) -> Answer:
    said = peer.quietly(
        "offset_fetch", 7, group_id=group, topics=[{"name": topic, "partition_indexes": [0]}], require_stable=True
    )
    found: Answer = said["topics"][0]["partitions"][0]
    return found


def test_trap_34_a_first_join_gets_an_id_and_generations_rise_by_one(peer: Peer) -> None:
    the_coordinator_is_there(peer.wire)
    group = f"{peer.stem}-g"
    bare = {"group_id": group, "session_timeout": 10_000, "rebalance_timeout": 10_000, "protocol_type": "consumer"}
    said = settled(
        lambda: peer.quietly(
            "join_group", 4, **bare, member_id="", protocols=[{"name": "range", "metadata": SUBSCRIPTION}]
        )
    )
    assert (said["error_code"], bool(said["member_id"])) == (79, True)
    first = joined(peer.wire, group)
    assert (first["generation_id"], first["leader"], len(first["members"])) == (1, first["member_id"], 1)
    plan = [{"member_id": first["member_id"], "assignment": b"all"}]
    peer.quietly("sync_group", 3, group_id=group, generation_id=1, member_id=first["member_id"], assignments=plan)
    again = joined(peer.wire, group, member_id=first["member_id"])
    assert again["generation_id"] == 2


def test_trap_35_any_kind_of_group_may_use_the_coordinator_with_any_bytes(peer: Peer) -> None:
    the_coordinator_is_there(peer.wire)
    group, opaque = f"{peer.stem}-connect", bytes(range(256))
    me = joined(
        peer.wire,
        group,
        protocol_type="connect",
        protocols=[{"name": "sessioned", "metadata": opaque}, {"name": "other", "metadata": b""}],
    )
    assert (me["error_code"], me["protocol_name"], me["members"][0]["metadata"]) == (0, "sessioned", opaque)
    said = peer.quietly("sync_group", 5, group_id=group, generation_id=1, member_id=me["member_id"], protocol_type="connect", protocol_name="sessioned",
                        assignments=[{"member_id": me["member_id"], "assignment": opaque}])  # fmt: skip
    assert (said["error_code"], said["assignment"]) == (0, opaque)


def test_trap_38_commits_to_a_group_without_members_keep_their_text_and_unknown_partitions_are_errors(
    peer: Peer,
) -> None:
    topic = peer.topic("t")
    the_coordinator_is_there(peer.wire)
    group = f"{peer.stem}-g"
    assert commit(peer, group, topic, text="words") == 0
    assert (committed(peer, group, topic)["metadata"], committed(peer, group, topic)["committed_offset"]) == (
        "words",
        1,
    )
    assert commit(peer, group, topic, partition=9) == 3
    assert commit(peer, group, peer.stem + "-none") == 3
    assert (
        peer.quietly("offset_commit", 8, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=[])[
            "topics"
        ]
        == []
    )
    peer.quietly("delete_topics", 5, topic_names=[topic], topics=[{"name": topic}], timeout=9000)
    until(lambda: committed(peer, group, topic)["committed_offset"] == -1, what="the offsets going with their topic")


def test_trap_39_coordinators_are_found_one_by_one_and_in_batches(peer: Peer) -> None:
    the_coordinator_is_there(peer.wire)
    assert peer.quietly("find_coordinator", 3, key="g", key_type=0)["node_id"] == 1
    said = peer.quietly("find_coordinator", 4, key_type=0, coordinator_keys=["a", "b"])["coordinators"]
    assert [(each["key"], each["node_id"], each["error_code"]) for each in said] == [("a", 1, 0), ("b", 1, 0)]


def test_trap_43_defaults_duplicates_and_the_requests_own_wish_to_create(peer: Peer) -> None:
    topic = peer.topic("t")
    name = f"{peer.stem}-default"
    ask = {"num_partitions": -1, "replication_factor": -1}
    made = peer.quietly("create_topics", 7, topics=[{"name": name} | ask], timeout=9000)["topics"][0]
    assert (made["error_code"], made["num_partitions"], made["replication_factor"]) == (0, 1, 1)
    for only in (True, False):
        assert (
            peer.quietly("create_topics", 7, topics=[{"name": topic} | ask], validate_only=only, timeout=9000)[
                "topics"
            ][0]["error_code"]
            == 36
        )
    unknown = f"{peer.stem}-unwanted"
    assert (
        peer.quietly("metadata", 12, topics=[{"name": unknown}], allow_auto_topic_creation=False)["topics"][0][
            "error_code"
        ]
        == 3
    )
    assert unknown not in {each["name"] for each in peer.quietly("metadata", 12, topics=None)["topics"]}
    grown = peer.quietly(
        "create_partitions", 3, topics=[{"name": topic, "count": 3, "assignments": None}], timeout=9000
    )["results"]
    assert [(each["name"], each["error_code"]) for each in grown] == [(topic, 0)]
    until(
        lambda: len(peer.quietly("metadata", 12, topics=[{"name": topic}])["topics"][0]["partitions"]) == 3,
        what="three partitions",
    )


def test_trap_44_all_settings_come_with_sources_and_synonyms_and_lists_are_appended_to(peer: Peer) -> None:
    topic = peer.topic("t", config={"retention.ms": "5000"})
    asked = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}

    def described() -> dict[str, Answer]:
        said = peer.quietly("describe_configs", 4, resources=[asked], include_synonyms=True)["results"][0]["configs"]
        return {each["name"]: each for each in said}

    found = described()
    assert len(found) >= 25
    assert (found["retention.ms"]["value"], found["retention.ms"]["config_source"]) == ("5000", 1)
    assert [each["name"] for each in found["segment.bytes"]["synonyms"]] == ["log.segment.bytes"]
    change = {"name": "cleanup.policy", "config_operation": 2, "value": "compact"}
    said = peer.quietly(
        "incremental_alter_configs", 1, resources=[{"resource_type": 2, "resource_name": topic, "configs": [change]}]
    )
    assert said["responses"][0]["error_code"] == 0
    until(lambda: described()["cleanup.policy"]["value"] == "delete,compact", what="the longer list")


def test_trap_45_minus_one_deletes_up_to_the_high_watermark(peer: Peer) -> None:
    topic = peer.topic("t")
    peer.write(topic, batch(numbered(5)))

    def delete(offset: int) -> tuple[int, int]:
        said = peer.quietly(
            "delete_records",
            2,
            topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}],
            timeout=9000,
        )
        part = said["topics"][0]["partitions"][0]
        return part["error_code"], part["low_watermark"]

    assert delete(-2)[0] == 1
    assert delete(6)[0] == 1
    assert delete(2) == (0, 2)
    assert delete(-1) == (0, 5)


def test_trap_46_groups_are_listed_by_state_and_kind(peer: Peer) -> None:
    topic = peer.topic("t")
    the_coordinator_is_there(peer.wire)
    group = f"{peer.stem}-g"
    assert commit(peer, group, topic) == 0

    def kinds(states: list[str], types: list[str]) -> dict[str, tuple[str, str]]:
        said = peer.quietly("list_groups", 5, states_filter=states, types_filter=types)["groups"]
        return {each["group_id"]: (each["group_state"], each["group_type"]) for each in said}

    assert kinds([], [])[group] == ("Empty", "classic")
    assert group in kinds(["Empty"], ["classic"])
    assert group not in kinds(["Stable"], [])
