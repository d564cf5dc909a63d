"""The bytes in the tree are Kafka's."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator

import pytest

from ottla.core.ids import NO_TOPIC_ID, TopicPartition, id_text
from ottla.metadata_store import znodes

ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


def test_a_broker_is_written_as_kafka_writes_version_5() -> None:
    broker = znodes.BrokerRegistration(
        1,
        {"CLIENT": znodes.Endpoint("h", 9092), "SECURE": znodes.Endpoint("::1", 9093)},
        {"CLIENT": "PLAINTEXT", "SECURE": "SSL"},
        rack="r1",
        started_ms=1690000000000,
    )

    written = znodes.encode_broker(broker)

    assert json.loads(written) == {
        "version": 5,
        "host": "h",
        "port": 9092,
        "endpoints": ["CLIENT://h:9092", "SECURE://[::1]:9093"],
        "listener_security_protocol_map": {"CLIENT": "PLAINTEXT", "SECURE": "SSL"},
        "rack": "r1",
        "jmx_port": -1,
        "timestamp": "1690000000000",
        "features": {},
    }
    assert znodes.decode_broker(1, written) == broker


def test_a_broker_without_a_plain_listener_has_no_host_for_old_readers() -> None:
    broker = znodes.BrokerRegistration(1, {"S": znodes.Endpoint("h", 1)}, {"S": "SSL"})
    parsed = json.loads(znodes.encode_broker(broker))
    assert (parsed["host"], parsed["port"]) == (None, -1)
    assert "rack" not in parsed


def test_a_topic_is_written_as_kafka_writes_version_3() -> None:
    assignment = znodes.Assignment(ID, {0: (1, 2), 1: (2, 1)})
    written = znodes.encode_assignment(assignment)
    assert written == (
        b'{"partitions":{"0":[1,2],"1":[2,1]},"topic_id":"' + id_text(ID).encode() + b'",'
        b'"adding_replicas":{},"removing_replicas":{},"version":3}'
    )
    assert znodes.decode_assignment("t", written) == assignment


def test_a_topic_from_before_topic_ids_is_read() -> None:
    value = b'{"version":1,"partitions":{"10":[3],"2":[1]}}'
    assert znodes.decode_assignment("t", value) == znodes.Assignment(NO_TOPIC_ID, {2: (1,), 10: (3,)})


def test_a_partitions_state_is_written_as_kafka_writes_it() -> None:
    state = znodes.PartitionState(1, 4, (1, 2, 3), 7)
    written = znodes.encode_state(state)
    assert json.loads(written) == {
        "version": 1,
        "leader": 1,
        "leader_epoch": 4,
        "controller_epoch": 7,
        "isr": [1, 2, 3],
    }
    assert znodes.decode_state("t", 0, written) == state


def test_a_reassignment_is_written_as_kafka_writes_it() -> None:
    assignment = znodes.Assignment(ID, {0: (1, 2, 3), 1: (2, 1)}, adding={0: (3,)}, removing={0: (1,)})
    written = znodes.encode_assignment(assignment)
    assert written == (
        b'{"partitions":{"0":[1,2,3],"1":[2,1]},"topic_id":"' + id_text(ID).encode() + b'",'
        b'"adding_replicas":{"0":[3]},"removing_replicas":{"0":[1]},"version":3}'
    )
    assert znodes.decode_assignment("t", written) == assignment


def test_eligible_leaders_and_an_unclean_election_are_extra_keys_of_a_state() -> None:
    state = znodes.PartitionState(
        1, 4, (1,), 7, is_recovering=True, elr=(2, 3), last_known_elr=(4,), last_unclean_epoch=4
    )
    written = znodes.encode_state(state)
    assert json.loads(written) == {
        "version": 1,
        "leader": 1,
        "leader_epoch": 4,
        "controller_epoch": 7,
        "isr": [1],
        "leader_recovery_state": 1,  # Kafka's
        "elr": [2, 3],
        "last_known_elr": [4],
        "last_unclean_epoch": 4,
    }
    assert znodes.decode_state("t", 0, written) == state


def test_keys_of_another_version_are_written_again() -> None:
    topic = {"version": 3, "partitions": {"0": [1]}, "topic_id": id_text(ID), "later": {"a": [1]}}
    assignment = znodes.decode_assignment("t", json.dumps(topic).encode())
    assert json.loads(znodes.encode_assignment(assignment))["later"] == {"a": [1]}

    state = {"version": 1, "leader": 1, "leader_epoch": 0, "controller_epoch": 0, "isr": [1], "later": "é"}
    decoded = znodes.decode_state("t", 0, json.dumps(state).encode())
    assert json.loads(znodes.encode_state(decoded._replace(leader=2))) == {**state, "leader": 2}


def test_a_broker_that_shuts_down_says_so_in_its_registration() -> None:
    broker = znodes.BrokerRegistration(1, {"C": znodes.Endpoint("h", 9092)}, {"C": "PLAINTEXT"})
    assert b"shutting_down" not in znodes.encode_broker(broker)
    stopping = broker._replace(is_shutting_down=True)
    assert znodes.decode_broker(1, znodes.encode_broker(stopping)) == stopping


def test_a_replica_report_lists_partitions_by_topic() -> None:
    report = znodes.ReplicaReport(
        is_clean=False,
        suspects=frozenset({TopicPartition("t", 1), TopicPartition("t", 0)}),
        offline=frozenset({TopicPartition("u", 7)}),
    )
    written = znodes.encode_replica_report(report)
    assert written == b'{"version":1,"is_clean":false,"suspects":{"t":[0,1]},"offline":{"u":[7]}}'
    assert znodes.decode_replica_report(1, written) == report


def test_a_replica_report_lists_impaired_partitions_by_reason_and_passes_over_reasons_of_newer_brokers() -> None:
    impaired = {znodes.Impairment.FULL: frozenset({TopicPartition("t", 1)})}
    report = znodes.ReplicaReport(is_clean=True, impaired=impaired)
    written = znodes.encode_replica_report(report)
    assert written == b'{"version":1,"is_clean":true,"suspects":{},"offline":{},"impaired":{"full":{"t":[1]}}}'
    assert znodes.decode_replica_report(1, written) == report
    newer = written.replace(b'"full"', b'"haunted":{"t":[2]},"full"')
    assert znodes.decode_replica_report(1, newer) == report


def test_the_small_nodes_round_trip_in_kafkas_form() -> None:
    assert znodes.encode_cluster_id("abc") == b'{"version":"1","id":"abc"}'
    assert znodes.decode_cluster_id(b'{"version":"1","id":"abc"}') == "abc"
    assert znodes.encode_controller(3, 17) == b'{"version":1,"brokerid":3,"timestamp":"17"}'
    assert znodes.decode_controller(b'{"version":2,"brokerid":3,"timestamp":"17","kraftControllerEpoch":-1}') == 3
    assert znodes.decode_epoch(znodes.encode_epoch(7)) == 7
    assert znodes.encode_config({"b": "2", "a": "é"}) == '{"version":1,"config":{"a":"é","b":"2"}}'.encode()
    assert znodes.decode_config("/c", b"") == {}
    block = znodes.ProducerIdBlock(1, 0, 999)
    assert znodes.encode_producer_id_block(block) == (b'{"version":1,"broker":1,"block_start":"0","block_end":"999"}')
    assert znodes.decode_producer_id_block(znodes.encode_producer_id_block(block)) == block
    assert znodes.decode_producer_id_block(b"") is None


def deviating(value: object) -> Iterator[object]:
    """Yield a JSON value with each of its parts in turn replaced by one that does not belong there, or removed."""
    if isinstance(value, dict):
        for key in value:
            yield {other: each for other, each in value.items() if other != key}
            for changed in deviating(value[key]):
                yield {**value, key: changed}
    elif isinstance(value, list):
        for at, each in enumerate(value):
            for changed in deviating(each):
                yield [*value[:at], changed, *value[at + 1 :]]
        yield value * 2
    yield from (None, True, "x", 1.5, float("inf"), -2, 2**31, [], {}, ["x"], {"x": "x"}, [[]], "9" * 5000)


@pytest.mark.parametrize(
    ("decode", "value"),
    [
        (
            lambda value: znodes.decode_broker(1, value),
            znodes.encode_broker(znodes.BrokerRegistration(1, {"L": znodes.Endpoint("h", 1)}, {"L": "PLAINTEXT"}, "r")),
        ),
        (
            lambda value: znodes.decode_assignment("t", value),
            znodes.encode_assignment(znodes.Assignment(uuid.UUID(int=7), {0: (1, 2)}, {0: (2,)}, {0: (1,)})),
        ),
        (
            lambda value: znodes.decode_state("t", 0, value),
            znodes.encode_state(
                znodes.PartitionState(1, 4, (1,), 7, is_recovering=True, elr=(2,), last_known_elr=(3,))
            ),
        ),
        (
            lambda value: znodes.decode_replica_report(1, value),
            znodes.encode_replica_report(znodes.ReplicaReport(True, frozenset({TopicPartition("t", 1)}))),
        ),
        (lambda value: znodes.decode_config("/config/topics/t", value), znodes.encode_config({"a": "b"})),
        (znodes.decode_cluster_id, znodes.encode_cluster_id("c")),
        (znodes.decode_controller, znodes.encode_controller(1, 2)),
        (znodes.decode_producer_id_block, znodes.encode_producer_id_block(znodes.ProducerIdBlock(1, 0, 999))),
        (znodes.decode_handled_brokers, znodes.encode_handled_brokers({1: 7})),
        (
            lambda value: znodes.decode_deleted_topic("/d", value),
            znodes.encode_deleted_topic(znodes.DeletedTopic("t", (1,))),
        ),
        (lambda value: znodes.decode_log_dirs(1, value), znodes.encode_log_dirs({"a": "/b"})),
    ],
)
def test_a_value_that_deviates_anywhere_is_read_or_is_malformed(
    decode: Callable[[bytes], object], value: bytes
) -> None:
    texts = [json.dumps(each).encode() for each in deviating(json.loads(value))]
    malformed = 0
    for text in [*texts, b"[" * 100_000]:
        try:
            decode(text)
        except znodes.MalformedNode:
            malformed += 1
    assert malformed > len(texts) // 4


@pytest.mark.parametrize(
    "state",
    [
        {"leader": 2**31},
        {"leader": -2},
        {"leader_epoch": -1},
        {"isr": [1, 1]},
        {"isr": [-1]},
        {"isr": "12"},
        {"elr": [None]},
    ],
)
def test_a_state_that_no_controller_would_write_is_malformed(state: dict[str, object]) -> None:
    valid = json.loads(znodes.encode_state(znodes.PartitionState(1, 4, (1, 2), 7)))
    with pytest.raises(znodes.MalformedNode):
        znodes.decode_state("t", 0, json.dumps({**valid, **state}).encode())


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"7", b"{}", b'{"partitions":7,"endpoints":7}', b"\xff"])
@pytest.mark.parametrize(
    "decode",
    [
        lambda value: znodes.decode_broker(1, value),
        lambda value: znodes.decode_assignment("t", value),
        lambda value: znodes.decode_state("t", 0, value),
        lambda value: znodes.decode_replica_report(1, value),
        lambda value: znodes.decode_config("/config/topics/t", value or b"{"),
        znodes.decode_cluster_id,
        znodes.decode_controller,
        lambda value: znodes.decode_epoch(value if value != b"7" else b"seven"),
        lambda value: znodes.decode_producer_id_block(value or b"{"),
    ],
)
def test_a_value_that_kafka_would_not_write_is_named_with_its_path(
    decode: Callable[[bytes], object], value: bytes
) -> None:
    with pytest.raises(znodes.MalformedNode, match=r"^/"):
        decode(value)
