"""Clients see disks that are full, broken or slow, that return other bytes, and that lose what was not synced."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaStorageError

from ottla.testing import Kafka, kafka
from tests.support.kit_clients import consume, produce

NUMBERS: list[bytes | str | None] = [b"0", b"1", b"2", b"3", b"4"]

in_memory_and_below_a_directory = pytest.mark.parametrize("has_data", [False, True], ids=["memory", "directory"])


def _send_once(k: Kafka) -> int:
    producer = KafkaProducer(
        bootstrap_servers=k.bootstrap, client_id="once", retries=0, enable_idempotence=False, acks="all"
    )
    try:
        offset: int = producer.send("orders", b"once", partition=0).get(timeout=10).offset
        return offset
    finally:
        producer.close()


@in_memory_and_below_a_directory
def test_a_full_disk_refuses_records_until_there_is_space(has_data: bool, tmp_path: Path) -> None:
    with kafka(topics=["orders"], data=tmp_path if has_data else None) as k:
        assert _send_once(k) == 0
        with k.disk.full() as fault:
            with pytest.raises(KafkaStorageError):
                _send_once(k)
            assert k.requests("Produce")[-1].errors == ("KAFKA_STORAGE_ERROR",)
        assert fault.count >= 1
        assert _send_once(k) == 1
        k.disk.full()
        k.disk.free()
        assert _send_once(k) == 2


@in_memory_and_below_a_directory
def test_a_failed_sync_takes_the_directory_out_of_service_until_a_restart(has_data: bool, tmp_path: Path) -> None:
    with kafka(topics=["orders"], data=tmp_path if has_data else None, brokers=3) as k:
        k.move_leader("orders", to=1)
        k.advance(seconds=2)  # a second after its start a broker writes what it keeps in reserve
        with k.disk.fail("sync", error="EIO", broker=1) as fault:
            produce(k, "orders", 1)
            fault.wait()
        assert fault.count == 1, "a failed sync is not repeated"
        assert produce(k, "orders", 1)[0][0] == 0, "another broker leads"
        assert k.requests("Produce")[-1].broker != 1
        k.down(1)
        k.up(1)
        k.move_leader("orders", to=1)
        produce(k, "orders", 1)
        assert k.requests("Produce")[-1].broker == 1


@in_memory_and_below_a_directory
def test_a_slow_disk_delays_what_waits_for_a_sync(has_data: bool, tmp_path: Path) -> None:
    with kafka(topics=["orders"], data=tmp_path if has_data else None) as k:
        with k.disk.slow(100) as fault:
            produce(k, "orders", 1)
        assert fault.count >= 1
        duration_ms = k.requests("Produce")[-1].duration_ms
        assert duration_ms is not None and duration_ms >= 100


@in_memory_and_below_a_directory
def test_a_flipped_bit_is_refused_and_not_delivered(has_data: bool, tmp_path: Path) -> None:
    with kafka(topics=["orders"], data=tmp_path if has_data else None) as k:
        produce(k, "orders")
        assert consume(k, "orders", 5) == NUMBERS
        with k.disk.flip_bit("orders", offset=3) as fault:
            assert consume(k, "orders", 1) == ["INVALID_MSG"]
            assert "CORRUPT_MESSAGE" in {error for request in k.requests("Fetch") for error in request.errors}
        assert fault.count == 1
        k.down()
        k.up()
        assert consume(k, "orders", 5) == NUMBERS, "the bit was flipped back"
        with pytest.raises(ValueError, match="no partition 7 of topic 'orders'"):
            k.disk.flip_bit("orders", 7)
        with pytest.raises(ValueError, match="orders-0 has no offset 5"):
            k.disk.flip_bit("orders", offset=5)


def test_another_replica_repairs_a_flipped_bit() -> None:
    with kafka(topics=["orders"], brokers=3) as k:
        produce(k, "orders")
        with k.disk.flip_bit("orders", offset=3):
            assert consume(k, "orders", 5) == NUMBERS


@pytest.mark.parametrize("durability", ["fsync", "page-cache"])
def test_a_power_cut_loses_what_was_not_synced(durability: str) -> None:
    with kafka() as k:
        k.create_topic("orders", configs={"durability": durability})
        produce(k, "orders", 1)  # the first batch of a segment is synced
        assert produce(k, "orders", 1) == [(0, 1)]
        fault = k.disk.lose_unsynced()
        is_lost = durability == "page-cache"
        assert produce(k, "orders", 1) == [(0, 1 if is_lost else 2)]
        assert (fault.count > 0) == is_lost


def test_a_power_cut_of_a_leader_loses_nothing_that_its_followers_have() -> None:
    with kafka(brokers=3) as k:
        k.create_topic("orders", configs={"durability": "page-cache"})
        k.move_leader("orders", to=2)
        produce(k, "orders", 1)
        assert produce(k, "orders", 1) == [(0, 1)]
        k.disk.lose_unsynced(broker=2)
        assert produce(k, "orders", 1) == [(0, 2)]
        assert consume(k, "orders", 3) == [b"0"] * 3


def test_a_broker_that_is_down_stays_down_after_a_power_cut() -> None:
    with kafka() as k:
        k.create_topic("orders", configs={"durability": "page-cache"})
        produce(k, "orders", 1)
        assert produce(k, "orders", 1) == [(0, 1)]
        k.down(killed=True)
        assert k.disk.lose_unsynced().count > 0
        assert k.bootstrap == ""
        k.up()
        assert produce(k, "orders", 1) == [(0, 1)]


def test_unsynced_writes_are_not_lost_where_they_belong_to_the_system(tmp_path: Path) -> None:
    with kafka(topics=["orders"], data=tmp_path) as k:
        with pytest.raises(ValueError, match="in memory only"):
            k.disk.lose_unsynced()
        assert produce(k, "orders", 1) == [(0, 0)]


def test_a_disk_that_is_not_there_is_refused() -> None:
    with kafka() as k:
        with pytest.raises(ValueError, match="there is no broker 2"):
            k.disk.full(broker=2)
        with pytest.raises(ValueError, match="a disk has no 'syn'; did you mean 'sync'"):
            k.disk.fail("syn")
        with pytest.raises(ValueError, match="errno has no 'EI0'; did you mean 'EIO'"):
            k.disk.fail("sync", error="EI0")
