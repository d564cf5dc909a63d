"""The brokers of the public kit and other processes: forks, programs that use them, and programs that end."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.storage.directories.log_directory import DirectoryInUse
from ottla.testing import kafka

PATIENCE_S = 60


def produce(bootstrap: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("orders", value, partition=0)
    assert producer.flush(PATIENCE_S) == 0


def end_offset(bootstrap: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    try:
        return consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=PATIENCE_S)[1]
    finally:
        consumer.close()


class Child:
    """A process that was forked. It runs a function, says so, and lives on until `end`."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._told, told = os.pipe()
        begin, self._begin = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            outcome = b"failed"
            try:
                function()
                outcome = b"done"
            finally:
                os.write(told, outcome)
                os.close(self._begin)
                os.read(begin, 1)
                os._exit(0)
        os.close(told)
        os.close(begin)

    def outcome(self) -> bytes:
        """Wait for the end of the function."""
        return os.read(self._told, 10)

    def end(self) -> None:
        os.close(self._begin)
        os.close(self._told)
        assert os.waitpid(self.pid, 0)[1] == 0


def is_listening(bootstrap: str) -> bool:
    host, _, port = bootstrap.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE_S).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_child_that_lives_longer_keeps_no_port_and_no_connection(brokers: int) -> None:
    with kafka(topics=["orders"], brokers=brokers) as k:
        addresses = k.bootstrap.split(",")
        host, _, port = addresses[0].rpartition(":")
        connected = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        produce(k.bootstrap, b"1")
        child = Child(lambda: None)
        assert child.outcome() == b"done"
        produce(k.bootstrap, b"2")
        assert end_offset(k.bootstrap) == 2
    assert connected.recv(1) == b""
    connected.close()
    assert not any(map(is_listening, addresses))
    again = [socket.create_server(("127.0.0.1", int(address.rsplit(":", 1)[1]))) for address in addresses]
    for server in again:
        server.close()
    child.end()


def test_a_child_uses_the_brokers_as_a_client_does_but_not_the_object() -> None:
    with kafka(topics=["orders"]) as k:

        def use() -> None:
            produce(k.bootstrap, b"of the child")
            with pytest.raises(RuntimeError, match="forked"):
                k.create_topic("more")
            k.stop()  # has no effect here

        child = Child(use)
        assert child.outcome() == b"done"
        child.end()
        assert end_offset(k.bootstrap) == 1


def test_a_child_has_brokers_of_its_own() -> None:
    def use() -> None:
        with kafka(topics=["orders"]) as own:
            produce(own.bootstrap, b"1")
            assert end_offset(own.bootstrap) == 1

    with kafka(topics=["orders"]) as k:
        child = Child(use)
        assert child.outcome() == b"done"
        child.end()
        assert end_offset(k.bootstrap) == 0


def test_processes_of_multiprocessing_are_clients() -> None:
    with kafka(topics=["orders"]) as k:
        forking = multiprocessing.get_context("fork")
        processes = [forking.Process(target=produce, args=(k.bootstrap, b"1")) for _ in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            assert process.exitcode == 0
        assert end_offset(k.bootstrap) == 2


def test_another_program_is_a_client() -> None:
    program = "import sys; from tests.processes.test_kit_processes import produce; produce(sys.argv[1], b'1')"
    with kafka(topics=["orders"]) as k:
        subprocess.run([sys.executable, "-c", program, k.bootstrap], check=True)
        assert end_offset(k.bootstrap) == 1


@pytest.mark.parametrize("brokers", [1, 3])
def test_files_are_of_one_process_until_its_brokers_stop_though_a_child_lives_on(tmp_path: Path, brokers: int) -> None:
    program = f"from ottla.testing import kafka; kafka(data={str(tmp_path)!r}, brokers={brokers}).start()"
    with kafka(topics=["orders"], data=tmp_path, brokers=brokers) as k:
        produce(k.bootstrap, b"1")
        child = Child(lambda: None)
        assert child.outcome() == b"done"
        with pytest.raises(DirectoryInUse, match="in use"):
            kafka(data=tmp_path, brokers=brokers).start()
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert "in use" in other.stderr.splitlines()[-1], other.stderr
    with kafka(data=tmp_path, brokers=brokers) as k:
        assert end_offset(k.bootstrap) == 1
    child.end()


ENDS = {
    "end": "",
    "exit": "import sys; sys.exit(3)",
    "error": "raise LookupError",
    "thread": "import threading; threading.Thread(target=lambda: k.advance(hours=1)).start()",
}


@pytest.mark.parametrize("data", [False, True])
@pytest.mark.parametrize("last", ENDS)
def test_a_program_that_does_not_stop_its_brokers_ends_and_loses_no_file(tmp_path: Path, last: str, data: bool) -> None:
    directory = repr(str(tmp_path)) if data else None
    program = f"""
from tests.processes.test_kit_processes import produce
from ottla.testing import kafka
k = kafka(topics=["orders"], data={directory}).start()
produce(k.bootstrap, b"1")
{ENDS[last]}
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == {"exit": 3, "error": 1}.get(last, 0), ended.stderr
    assert "Exception ignored" not in ended.stderr
    if data:
        with kafka(data=tmp_path) as k:
            assert end_offset(k.bootstrap) == 1


INTERRUPTED = """
import signal
from ottla.testing import kafka
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever this process was started with
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
try:
    with kafka() as k:
        k.wait_until(lambda: signal.raise_signal(signal.SIGINT))
except KeyboardInterrupt:
    try:
        print(k.bootstrap)
    except RuntimeError as error:
        print(error)
"""


def test_an_interrupt_while_a_test_waits_stops_the_brokers() -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=False)
    assert "do not run" in ended.stdout, ended.stderr
