"""A test of users reads and writes topics of the kit without a client."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from ottla.core.errors import MessageTooLarge
from ottla.testing import Kafka, ProducerRecord, kafka
from ottla.testing.kit.assertions.lookups import UnknownTopic
from tests.support.processes import free_port


def _producer(k: Kafka, **settings: str) -> Producer:
    return Producer({"bootstrap.servers": k.bootstrap, "partitioner": "murmur2_random", **settings})


def test_records_of_a_producer_are_read_with_all_they_have() -> None:
    with kafka(topics=["orders"]) as k:
        producer = _producer(k)
        producer.produce("orders", b"paid", key=b"7", headers=[("trace", b"x"), ("empty", None)], timestamp=1234)
        producer.produce("orders", None, key=b"8", timestamp=1235)
        producer.flush()
        paid, deleted = k.topic("orders").records()
        assert (paid.topic, paid.partition, paid.offset, paid.timestamp_ms) == ("orders", 0, 0, 1234)
        assert (paid.key, paid.value, paid.headers) == (b"7", b"paid", (("trace", b"x"), ("empty", None)))
        assert (deleted.offset, deleted.key, deleted.value) == (1, b"8", None)


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_read(compression: str) -> None:
    with kafka(topics=["orders"]) as k:
        producer = _producer(k, **{"compression.type": compression, "linger.ms": "50"})
        for number in range(100):
            producer.produce("orders", b"%d" % number)
        producer.flush()
        assert k.topic("orders").records().values() == [b"%d" % number for number in range(100)]


def test_records_that_are_produced_are_read_by_partition_and_offset() -> None:
    with kafka(topics={"orders": 2}) as k:
        assert k.produce("orders", "b", partition=1).offset == 0
        first, second = k.produce_many("orders", [ProducerRecord("a", partition=0), ProducerRecord("c", partition=1)])
        assert (first.offset, second.partition, second.offset) == (0, 1, 1)
        assert k.topic("orders").records().values() == [b"a", b"b", b"c"]
        assert k.topic("orders").records(1).values() == [b"b", b"c"]
        assert {partition: each.end for partition, each in k.topic("orders").offsets().items()} == {0: 1, 1: 2}


def test_a_produced_record_has_its_key_headers_and_time() -> None:
    with kafka(topics=["orders"]) as k:
        k.produce("orders", "v", key="k", headers=[("h", "x")], timestamp_ms=99)
        (record,) = k.topic("orders").records()
        assert (record.key, record.headers, record.timestamp_ms) == (b"k", (("h", b"x"),), 99)


def test_keys_have_the_partitions_that_other_clients_choose() -> None:
    with kafka(topics={"ours": 7, "theirs": 7}) as k:
        producer = _producer(k)
        keys = [f"key-{number}" for number in range(200)]
        for key in keys:
            producer.produce("theirs", b"", key=key)
        producer.flush()
        k.produce_many("ours", [ProducerRecord("", key=key) for key in keys])
        for partition in range(7):
            assert k.topic("ours").records(partition).keys() == k.topic("theirs").records(partition).keys()


def test_records_without_a_key_stay_in_order_and_change_the_partition_with_each_call() -> None:
    with kafka(topics={"orders": 2}) as k:
        k.produce_many("orders", ["a", "b"])
        k.produce_many("orders", ["c", "d"])
        k.produce_many("orders", ["e"])
        assert k.topic("orders").records(0).values() == [b"a", b"b", b"e"]
        assert k.topic("orders").records(1).values() == [b"c", b"d"]


def test_many_records_are_more_than_one_batch() -> None:
    with kafka(topics=["orders"]) as k:
        made = k.produce_many("orders", [b"x" * 1000] * 6000)
        assert [each.offset for each in made] == list(range(6000))
        assert len(k.topic("orders").records()) == 6000


def test_a_consumer_of_another_kind_reads_what_was_produced() -> None:
    from confluent_kafka import Consumer

    with kafka(topics=["orders"]) as k:
        k.produce("orders", "v", key="k")
        consumer = Consumer({"bootstrap.servers": k.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        message = consumer.poll(10)
        consumer.close()
        assert message is not None
        assert (message.key(), message.value()) == (b"k", b"v")


def test_records_of_open_and_aborted_transactions_are_read_uncommitted_alone() -> None:
    with kafka(topics=["orders"]) as k:
        orders = k.topic("orders")
        producer = _producer(k, **{"transactional.id": "tx"})
        producer.init_transactions()
        for end in (producer.abort_transaction, producer.commit_transaction):
            producer.begin_transaction()
            producer.produce("orders", end.__name__)
            producer.flush()
            end()
        producer.begin_transaction()
        producer.produce("orders", b"open")
        producer.flush()
        assert orders.records().values() == [b"commit_transaction"]
        both = [b"abort_transaction", b"commit_transaction", b"open"]
        assert orders.records(isolation="read_uncommitted").values() == both
        offsets = orders.offsets()[0]
        assert (offsets.start, offsets.last_stable, offsets.end) == (0, 4, 5)
        (transaction,) = k.transactions()
        assert (transaction.transactional_id, transaction.state) == ("tx", "Ongoing")
        assert transaction.partitions == (("orders", 0),)
        assert transaction.is_open
        producer.abort_transaction()
        k.wait_until(lambda: not k.transactions()[0].is_open)
        (transaction,) = k.transactions()
        assert (transaction.state, transaction.age_s, transaction.partitions) == ("CompleteAbort", None, ())


def test_the_age_of_a_transaction_is_that_of_the_brokers_time() -> None:
    with kafka(topics=["orders"]) as k:
        producer = _producer(k, **{"transactional.id": "tx"})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("orders", b"open")
        producer.flush()
        k.advance(seconds=20)
        (transaction,) = k.transactions()
        assert transaction.age_s is not None
        assert 20 <= transaction.age_s < 60
        assert transaction.timeout_ms == 60_000
        producer.abort_transaction()


def test_records_before_the_log_start_are_not_read() -> None:
    with kafka(topics=["orders"], options={"log.retention.ms": "1h"}) as k:
        k.produce_many("orders", ["a", "b"])
        k.advance(hours=2)
        k.produce("orders", "c")
        assert k.topic("orders").records().values() == [b"c"]
        assert k.topic("orders").offsets()[0].start == 2


def test_replicas_and_settings_of_a_topic() -> None:
    with kafka(brokers=3) as k:
        k.create_topic("orders", 2, configs={"retention.ms": "5000"})
        orders = k.topic("orders")
        first, second = orders.partitions()
        assert sorted(first.replicas) == [1, 2, 3]
        assert orders.isr(1) == second.isr == (1, 2, 3)
        assert orders.leader(1) == second.leader
        assert (orders.config["retention.ms"], orders.config["cleanup.policy"]) == ("5000", "delete")
        assert k.topics() == ["orders"]


def test_another_broker_leads_and_the_records_are_there_when_one_is_down() -> None:
    with kafka(topics=["orders"], brokers=3) as k:
        orders = k.topic("orders")
        k.produce("orders", "a")
        leader = orders.leader()
        assert leader is not None
        k.down(leader, killed=True)
        assert orders.records().values() == [b"a"]
        k.produce("orders", "b")
        assert k.wait_until(orders.leader) != leader
        assert k.wait_until(lambda: leader not in orders.isr())
        k.up(leader)
        k.wait_until(lambda: leader in orders.isr())
        assert orders.records().values() == [b"a", b"b"]


def test_an_unknown_topic_or_partition_is_named_with_what_there_is() -> None:
    with kafka(topics={"orders": 2, "bills": 1}) as k:
        with pytest.raises(
            KeyError, match=r"there is no topic 'order': did you mean 'orders'\?; there are: bills, orders"
        ):
            k.topic("order").records()
        with pytest.raises(UnknownTopic, match="'orders' has no partition 2; it has 2"):
            k.topic("orders").leader(2)
        with pytest.raises(UnknownTopic, match="there is no topic 'nothing'; there are"):
            k.produce("nothing", "v")
        with pytest.raises(ValueError, match="isolation='committed'"):
            k.topic("orders").records(isolation="committed")  # type: ignore[arg-type]


def test_what_cannot_be_produced_is_refused() -> None:
    with kafka(topics=["orders"]) as k:
        with pytest.raises(TypeError, match="42 is neither bytes nor text"):
            k.produce("orders", 42)  # type: ignore[arg-type]
        with pytest.raises(MessageTooLarge):
            k.produce("orders", b"x" * (2 << 20))
        assert k.topic("orders").records() == ()


def test_a_kit_without_a_running_broker_says_so() -> None:
    with kafka(topics=["orders"]) as k:
        k.down()
        with pytest.raises(RuntimeError, match="no broker runs"):
            k.topic("orders").records()


def test_a_failing_assertion_shows_the_records() -> None:
    with kafka(topics=["orders"]) as k:
        k.produce("orders", "v", key="k")
        assert repr(k.topic("orders").records()) == "Records(1: [orders-0@0 b'k': b'v'])"


def test_a_reset_leaves_the_topics_of_the_start_alone_and_the_addresses() -> None:
    with kafka(topics=["orders"], brokers=2) as k:
        k.create_topic("bills")
        k.produce("orders", "a")
        address = k.bootstrap
        k.down(2)
        k.reset()
        assert k.bootstrap == address
        assert k.topics() == ["orders"]
        assert k.topic("orders").records() == ()


def test_files_in_a_directory_are_not_reset(tmp_path: Path) -> None:
    with kafka(data=tmp_path) as k, pytest.raises(ValueError, match="begin with an empty directory"):
        k.reset()


def test_brokers_have_the_ports_from_the_one_that_is_given() -> None:
    port = free_port()
    with kafka(port=port) as k:
        assert k.bootstrap == f"127.0.0.1:{port}"
