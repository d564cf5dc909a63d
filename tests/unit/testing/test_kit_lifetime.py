"""The brokers of the public kit start, move their time and give back all they held."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import uvloop
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ottla.client.addresses import parse_addresses
from ottla.client.cluster import Cluster
from ottla.core.errors import InvalidTopic
from ottla.core.settings import InvalidSettings
from ottla.testing import Kafka, kafka
from ottla.testing.kit.loop import AdvanceableLoop

PATIENCE_S = 60


def _produce(k: Kafka, topic: str, count: int = 10) -> None:
    producer = Producer({"bootstrap.servers": k.bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(PATIENCE_S) == 0


def _watermarks(k: Kafka, topic: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": k.bootstrap, "group.id": "watermarks"})
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_S)
    finally:
        consumer.close()


def _threads_of_brokers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("kafka-")]


def _held() -> tuple[list[str], int, int]:
    """The threads of brokers, the descriptors of this process, and the handlers of logs."""
    gc.collect()
    handlers = len(logging.getLogger("ottla").handlers)
    return _threads_of_brokers(), len(list(Path("/proc/self/fd").iterdir())), handlers


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_client_in_another_thread_writes_and_reads(brokers: int) -> None:
    with kafka(topics={"orders": 4}, brokers=brokers) as k:
        _produce(k, "orders")
        assert _watermarks(k, "orders") == (0, 10)


async def test_an_async_test_starts_and_stops_the_same_brokers() -> None:
    async with kafka(topics=["orders"]) as k:
        assert k.bootstrap.startswith("127.0.0.1:")
    with pytest.raises(RuntimeError, match="do not run"):
        _ = k.bootstrap


def test_a_broker_that_was_killed_has_its_records_and_its_port_again() -> None:
    with kafka(topics=["orders"]) as k:
        _produce(k, "orders")
        address = k.bootstrap
        k.down(killed=True)
        assert k.bootstrap == ""
        k.up()
        assert k.bootstrap == address
        assert _watermarks(k, "orders") == (0, 10)


def test_retention_passes_when_the_time_is_moved_on() -> None:
    with kafka(topics=["orders"], options={"log.retention.ms": "1h"}) as k:
        _produce(k, "orders")
        k.advance(minutes=59)
        assert _watermarks(k, "orders") == (0, 10)
        k.advance(minutes=2)
        assert _watermarks(k, "orders") == (10, 10)


def test_the_log_of_one_kit_has_no_line_of_another() -> None:
    with kafka() as one, kafka() as other:
        assert "became controller" in one.log
        one.down()
        assert "became controller" in other.log
        assert one.log != other.log


def test_the_level_of_loggers_is_as_before_once_the_last_brokers_have_stopped() -> None:
    logger = logging.getLogger("ottla")
    assert logger.level == logging.NOTSET
    with kafka():
        with kafka():
            assert logger.level == logging.INFO
        assert logger.level == logging.INFO
    assert logger.level == logging.NOTSET
    logger.setLevel(logging.WARNING)
    try:
        with kafka() as k:
            assert k.log == ""
        assert logger.level == logging.WARNING
    finally:
        logger.setLevel(logging.NOTSET)


def test_lines_of_brokers_reach_no_handler_of_the_test_and_all_others_do(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("ottla.controller.terms")
    before = logger.isEnabledFor(logging.INFO)
    with kafka() as k:
        logger.info("of the test, below its level")
        logger.warning("of the test")
        assert "became controller" in k.log
        assert "of the test" not in k.log
    assert [record.getMessage() for record in caplog.records] == ["of the test"]
    assert logger.isEnabledFor(logging.INFO) == before


def test_files_are_in_a_directory_that_is_given(tmp_path: Path) -> None:
    with kafka(topics=["orders"], data=tmp_path) as k:
        _produce(k, "orders")
    with kafka(data=tmp_path) as k:
        assert _watermarks(k, "orders") == (0, 10)


@pytest.mark.parametrize("brokers", [1, 3])
def test_settings_that_cannot_be_are_named_and_nothing_is_left(brokers: int) -> None:
    before = _held()
    with pytest.raises(InvalidSettings, match=r"log\.retention\.hours"):
        kafka(brokers=brokers, options={"log.retention.hours": "soon"}).start()
    with pytest.raises(InvalidSettings, match=r"did you mean log\.segment\.bytes"):
        kafka(brokers=brokers, options={"log.segment.byte": "1048576"}).start()
    assert _held() == before


def test_a_topic_that_cannot_be_prevents_the_start_and_nothing_is_left(tmp_path: Path) -> None:
    before = _held()
    for data in (None, tmp_path):
        k = kafka(topics=["orders", "wrong name"], data=data)
        with pytest.raises(InvalidTopic, match="wrong name"):
            k.start()
        with pytest.raises(RuntimeError, match="do not run"):
            _ = k.bootstrap
        k.stop()
    assert _held() == before


def test_brokers_that_were_stopped_start_again_with_nothing() -> None:
    k = kafka(topics=["orders"])
    with k:
        _produce(k, "orders")
        with pytest.raises(RuntimeError, match="have been started"):
            k.start()
    with k:
        assert _watermarks(k, "orders") == (0, 0)


def test_an_error_of_the_test_stops_the_brokers() -> None:
    def fail() -> None:
        with kafka(topics=["orders"]) as k:
            _produce(k, "orders")
            raise LookupError

    before = _held()
    with pytest.raises(LookupError):
        fail()
    assert _held()[0] == before[0]
    assert _held()[2] == before[2]


def test_several_clusters_run_side_by_side_in_threads_of_a_test() -> None:
    def end_offset(number: int) -> int:
        with kafka(topics=["orders"], brokers=1 + number % 2) as k:
            _produce(k, "orders", number)
            return _watermarks(k, "orders")[1]

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(end_offset, range(6))) == list(range(6))


def test_three_brokers_keep_topics_records_and_groups_in_a_directory(tmp_path: Path) -> None:
    def commit(k: Kafka, offset: int | None) -> int:
        consumer = Consumer({"bootstrap.servers": k.bootstrap, "group.id": "g"})
        if offset is not None:
            consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
        (found,) = consumer.committed([TopicPartition("orders", 0)], timeout=PATIENCE_S)
        consumer.close()
        return found.offset

    with kafka(topics={"orders": 3}, brokers=3, data=tmp_path) as k:
        _produce(k, "orders")
        assert commit(k, 7) == 7
        for broker in (1, 2, 3):
            k.down(broker)
        for broker in (1, 2, 3):
            k.up(broker)
        assert _watermarks(k, "orders") == (0, 10)
    with kafka(brokers=3, data=tmp_path) as k:
        assert _watermarks(k, "orders") == (0, 10)
        assert commit(k, None) == 7
        assert (
            AdminClient({"bootstrap.servers": k.bootstrap})
            .list_topics("orders")
            .topics["orders"]
            .partitions[2]
            .replicas
        )


def test_files_of_one_broker_and_of_several_are_not_mixed_up(tmp_path: Path) -> None:
    with kafka(data=tmp_path / "one"):
        pass
    with pytest.raises(ValueError, match="files of one broker"):
        kafka(brokers=3, data=tmp_path / "one")
    with kafka(data=tmp_path / "three", brokers=3):
        pass
    with pytest.raises(ValueError, match="files of several brokers"):
        kafka(data=tmp_path / "three")


async def no_job_runs(loop: AdvanceableLoop) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while loop._idle_selector.jobs:
            await loop.idle()


def test_brokers_with_files_move_their_time(tmp_path: Path) -> None:
    with kafka(topics=["orders"], options={"log.retention.ms": "1h"}, data=tmp_path, brokers=3) as k:
        _produce(k, "orders")
        for killed in (False, True):
            k.down(2, killed=killed)
            k.up(2)
        assert k._thread is not None
        k._thread.call(no_job_runs(k._thread.loop))  # none that ended with its broker is waited for
        k.advance(hours=2)
        assert _watermarks(k, "orders") == (10, 10)


def test_the_event_loop_of_uvloop_may_be_that_of_the_test() -> None:
    async def use() -> None:
        async with kafka(topics=["orders"]) as k:
            client = await Cluster.connect(parse_addresses(k.bootstrap))
            assert (await client.topic("orders")).partitions
            await client.close()

    uvloop.run(use())


async def test_the_tests_loop_goes_on_while_brokers_start_and_stop() -> None:
    async def count() -> None:
        while True:
            turns.append(None)
            await asyncio.sleep(0)

    turns: list[None] = []
    counting = asyncio.create_task(count())
    async with kafka(topics=["orders"], brokers=3):
        started = len(turns)
    counting.cancel()
    assert 1 < started < len(turns)


async def test_a_task_that_is_cancelled_while_brokers_start_leaves_none() -> None:
    async def use() -> None:
        async with kafka(brokers=3):
            raise AssertionError("it has started")

    threads = _threads_of_brokers()
    using = asyncio.create_task(use())
    await asyncio.sleep(0)
    using.cancel()
    with pytest.raises(asyncio.CancelledError):
        await using
    assert _threads_of_brokers() == threads


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("listeners", "port="),
        ("node.id", "brokers="),
        ("broker.id", "brokers="),
        ("log.dirs", "data="),
        ("log.dir", "data="),
    ],
)
def test_a_setting_that_the_kit_decides_is_refused_with_what_to_use_instead(option: str, instead: str) -> None:
    with pytest.raises(ValueError, match=f"options have {option}: use {instead}"):
        kafka(options={option: "1"})


@pytest.mark.parametrize("killed", [False, True])
def test_requests_that_come_during_a_stop_are_not_reported_by_python(killed: bool) -> None:
    request = bytes.fromhex("0000000f 000a 0001 00000001 0001 63 0001 67 00")  # FindCoordinator v1 of group g

    def send_all(connections: list[socket.socket]) -> None:
        with contextlib.suppress(OSError):
            while True:
                for connection in connections:
                    connection.sendall(request * 3)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with kafka() as k:
            host, _, port = k.bootstrap.rpartition(":")
            connections = [socket.create_connection((host, int(port))) for _ in range(10)]
            connections[0].sendall(request)
            assert connections[0].recv(1000)
            sender = threading.Thread(target=send_all, args=[connections])
            sender.start()
            k.wait_until(lambda: len(k.requests("FindCoordinator")) > 30)
            if killed:
                k.down(killed=True)
        sender.join()
        for connection in connections:
            connection.close()
        gc.collect()
    assert [str(each.message) for each in caught] == []
