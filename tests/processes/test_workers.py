"""Tests several brokers as one service on one machine: `ottla server --workers`, with librdkafka as the client."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from ottla.core.errors import StorageError
from ottla.metadata_store.embedded_store import EmbeddedMetadataStore
from ottla.metadata_store.sqlite_file import FILE_NAME
from ottla.metadata_store.store_frames import SESSION_TIMEOUT_S
from tests.processes.cli_runner import Cli
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import NotReady, free_ports, is_running, until
from tests.support.workers_process import WorkersProcess

PARTITIONS = 6

pytestmark = [pytest.mark.slow]


@contextmanager
def running(service: WorkersProcess) -> Iterator[WorkersProcess]:
    service.start()
    try:
        yield service
    finally:
        if service.process is not None and service.process.poll() is None:
            service.stop()


def create_topic(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(topic, partitions, 1)], request_timeout=30).values():
        created.result(30)


def leaders(bootstrap: str, topic: str) -> dict[int, int]:
    metadata = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=20)
    return {index: partition.leader for index, partition in metadata.topics[topic].partitions.items()}


class Sending:
    """Produces numbered records to all partitions in turn, in a thread, and counts what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 60_000}
        )
        self._topic = topic
        self.sent = 0
        self.acknowledged: list[int] = []
        self.failed: list[KafkaError] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            number = self.sent
            try:
                self._producer.produce(
                    self._topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered
                )
            except BufferError:  # the queue is full while no worker serves
                self._producer.poll(0.1)
                continue
            self.sent += 1
            self._producer.poll(0)
            if number % 10 == 0:
                time.sleep(0.002)

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.failed.append(error)
        else:
            self.acknowledged.append(int(message.value()))

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        assert self._producer.flush(60) == 0


def consumed(bootstrap: str, topic: str, count: int, group: str = "g") -> list[tuple[int, int]]:
    """Read `count` records as a group that commits; returns (partition, number) in the order of arrival."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[tuple[int, int]] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(1000, timeout=1):
            error = message.error()
            if error is not None:
                raise KafkaException(error)
            found.append((message.partition() or 0, int(message.value() or b"")))
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


def test_workers_share_the_partitions_and_a_killed_one_comes_back_without_loss(tmp_path: Path) -> None:
    with running(WorkersProcess(tmp_path, workers=3)) as service:
        assert [each["node_id"] for each in service.ready["workers"]] == [1, 2, 3]
        create_topic(service.bootstrap, "t")
        assert Counter(leaders(service.bootstrap, "t").values()) == {1: 2, 2: 2, 3: 2}
        sending = Sending(service.bootstrap, "t")
        until(lambda: len(sending.acknowledged) > 500, what="500 acknowledged records")

        killed = service.kill_worker(2)
        until(lambda: service.worker_pid(2) not in {None, killed}, what="another process of worker 2")
        until(lambda: "worker 2 serves again" in service.log, what="worker 2")
        before = len(sending.acknowledged)
        until(lambda: len(sending.acknowledged) > before + 500, what="500 more records")
        sending.end()

        assert sending.failed == []
        assert sorted(sending.acknowledged) == list(range(sending.sent))
        assert -1 not in leaders(service.bootstrap, "t").values()
        found = consumed(service.bootstrap, "t", sending.sent)
        assert sorted(number for _, number in found) == list(range(sending.sent)), "none lost, none twice"
        for partition in range(PARTITIONS):
            of_partition = [number for index, number in found if index == partition]
            assert of_partition == sorted(of_partition)
        assert service.stop() == 0
        assert "Traceback" not in service.log


def test_workers_stop_with_their_owner_and_the_next_one_goes_on(tmp_path: Path) -> None:
    service = WorkersProcess(tmp_path, workers=2, port=free_ports(2)).start()
    create_topic(service.bootstrap, "t")
    sending = Sending(service.bootstrap, "t")
    until(lambda: len(sending.acknowledged) > 200, what="200 acknowledged records")

    workers = service.kill_owner()

    assert len(workers) == 2
    with running(service):
        assert not any(map(is_running, workers)), "the new owner waited for them"
        assert service.log.count("stopped: everything is on the disk") == 2
        before = len(sending.acknowledged)
        until(lambda: len(sending.acknowledged) > before + 500, what="500 more records")
        sending.end()
        assert sending.failed == []
        found = consumed(service.bootstrap, "t", sending.sent)
        assert sorted(number for _, number in found) == list(range(sending.sent)), "none lost, none twice"
    assert "Traceback" not in service.log


def test_a_second_owner_and_a_single_broker_are_refused(tmp_path: Path) -> None:
    with running(WorkersProcess(tmp_path, workers=2)) as service:
        started = time.monotonic()
        for second in (WorkersProcess(tmp_path, workers=2), OttlaProcess(tmp_path)):
            with pytest.raises(NotReady):
                second.start()
            assert second.wait() == 1
        assert time.monotonic() - started < 20
        assert "is in use by a running" in service.log
        create_topic(service.bootstrap, "t")
        assert -1 not in leaders(service.bootstrap, "t").values()
        with pytest.raises(StorageError):
            EmbeddedMetadataStore.open(service.data / FILE_NAME)


def test_a_stopped_worker_loses_its_session_and_joins_again(tmp_path: Path) -> None:
    with running(WorkersProcess(tmp_path, workers=2)) as service:
        create_topic(service.bootstrap, "t")
        pid = service.worker_pid(2)
        assert pid is not None
        other = service.ready["workers"][0]["bootstrap"]
        os.kill(pid, signal.SIGSTOP)
        until(lambda: set(leaders(other, "t").values()) == {1, -1}, what="the loss of worker 2")
        os.kill(pid, signal.SIGCONT)
        until(lambda: set(leaders(other, "t").values()) == {1, 2}, what="worker 2")
        assert service.worker_pid(2) == pid


def test_workers_serve_on_while_their_owner_is_stopped(tmp_path: Path) -> None:
    with running(WorkersProcess(tmp_path, workers=2)) as service:
        assert service.process is not None
        create_topic(service.bootstrap, "t")
        pids = [service.worker_pid(number) for number in (1, 2)]
        sending = Sending(service.bootstrap, "t")
        until(lambda: len(sending.acknowledged) > 200, what="200 acknowledged records")
        service.process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(SESSION_TIMEOUT_S + 1)
            before = len(sending.acknowledged)
            until(lambda: len(sending.acknowledged) > before + 200, what="200 more records")
        finally:
            service.process.send_signal(signal.SIGCONT)
        time.sleep(1)
        create_topic(service.bootstrap, "after")
        sending.end()
        assert sending.failed == []
        assert sorted(sending.acknowledged) == list(range(sending.sent))
        assert [service.worker_pid(number) for number in (1, 2)] == pids
        assert "was not heard of" not in service.log


def test_one_broker_becomes_several_and_keeps_its_partitions(tmp_path: Path) -> None:
    single = OttlaProcess(tmp_path).start()
    create_topic(single.bootstrap, "old")
    sending = Sending(single.bootstrap, "old")
    until(lambda: len(sending.acknowledged) > 200, what="200 acknowledged records")
    sending.end()
    assert single.stop() == 0

    with running(WorkersProcess(tmp_path, workers=2)) as service:
        assert set(leaders(service.bootstrap, "old").values()) == {1}
        assert len(consumed(service.bootstrap, "old", sending.sent)) == sending.sent
        create_topic(service.bootstrap, "new")
        assert Counter(leaders(service.bootstrap, "new").values()) == {1: 3, 2: 3}
        assert service.stop() == 0

    single.start()
    assert set(leaders(single.bootstrap, "old").values()) == {1}
    assert Counter(leaders(single.bootstrap, "new").values()) == {1: 3, -1: 3}
    assert "partitions of the nodes 2 are offline: start with --workers 2" in single.log
    single.stop()
    with running(WorkersProcess(tmp_path, workers=2)) as service:
        until(lambda: Counter(leaders(service.bootstrap, "new").values()) == {1: 3, 2: 3}, what="leaders on both nodes")


def test_partitions_are_spread_over_the_workers_and_drawn_together_again(tmp_path: Path) -> None:
    """Every command of docs/workers.md."""
    single = OttlaProcess(tmp_path).start()
    create_topic(single.bootstrap, "t")
    sending = Sending(single.bootstrap, "t")
    until(lambda: len(sending.acknowledged) > 500, what="500 acknowledged records")
    sending.end()
    assert single.stop() == 0

    with running(WorkersProcess(tmp_path, workers=2)) as service:
        cli = Cli(service.bootstrap, tmp_path)
        plan = tmp_path / "plan.json"
        plan.write_bytes(cli.run("cluster", "reassign", "plan", "--format", "json").stdout)
        cli.run("cluster", "reassign", "apply", str(plan), "--wait")
        assert Counter(leaders(service.bootstrap, "t").values()) == {1: 3, 2: 3}
        found = consumed(service.bootstrap, "t", sending.sent)
        assert sorted(number for _, number in found) == list(range(sending.sent))
        cli.run("cluster", "drain", "2", "--wait")
        assert set(leaders(service.bootstrap, "t").values()) == {1}
        until(lambda: not list((tmp_path / "data" / "workers" / "2").glob("t-?")), what="the removal of the replicas")
        assert service.stop() == 0

    single.log_file.unlink()
    single.start()
    found = consumed(single.bootstrap, "t", sending.sent, group="again")
    assert sorted(number for _, number in found) == list(range(sending.sent)), "none lost, none twice"
    assert single.stop() == 0
    assert "are offline" not in single.log
