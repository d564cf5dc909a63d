"""Moves a replica between the log directories of a real broker while one client writes and another one reads."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.processes.cli_runner import Cli
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import until

VALUE = b"x" * 4000
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


class Writer:
    """Writes numbered records until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        self.count = 0
        self.errors: list[object] = []
        self._producer = Producer({"bootstrap.servers": bootstrap})
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def write(self, count: int) -> None:
        for _ in range(count):
            self._producer.produce("web", b"%07d" % self.count + VALUE, on_delivery=self._delivered)
            self.count += 1
        assert self._producer.flush(60) == 0

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            self.errors.append(error)

    def _run(self) -> None:
        while not self._stopping.wait(0.005):
            self.write(5)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def read_all(bootstrap: str, is_complete: Callable[[int], bool]) -> list[str]:
    """Read from the beginning until there are enough records."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers", "enable.auto.commit": False})
    consumer.assign([TopicPartition("web", 0, 0)])
    read: list[str] = []
    while not is_complete(len(read)):
        found: Any = consumer.poll(60)
        assert found is not None, f"nothing came after {len(read)} records"
        assert not found.error(), found.error()
        assert found.offset() == len(read)
        read.append(found.value()[:7].decode())
    consumer.close()
    return read


def numbers(count: int) -> list[str]:
    return [f"{number:07d}" for number in range(count)]


def test_a_replica_moves_while_it_is_written_and_read(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    broker = OttlaProcess(tmp_path, options=("-o", "log.segment.bytes=1048576"))
    broker.data = Path(f"{data},{other}")
    cli = Cli(broker.bootstrap, tmp_path)
    try:
        broker.start()
        cli.out("topic", "create", "web")
        writer = Writer(broker.bootstrap)
        writer.write(1500)
        cli.out("config", "set", "broker", f"{RATE}=200000")
        cli.out("log", "move", "web", str(other))
        assert "ottla cluster log-dirs" in cli.fails("log", "move", "web", "/nowhere", code=4)
        until(lambda: any(each.stat().st_size for each in other.glob("web-0.*-future/*.log")), what="copied records")
        broker.stop(signal.SIGKILL)
        broker.restart()
        (row,) = cli.json("log", "moves")
        assert (row["topic"], row["directory"], row["target"]) == ("web", str(data), str(other))
        assert 0 < row["lag"] <= writer.count
        with Writer(broker.bootstrap) as second:
            second.count = writer.count
            cli.out("config", "set", "broker", f"{RATE}=100000000")
            assert read_all(broker.bootstrap, lambda count: count >= writer.count + 200)[: writer.count] == numbers(
                writer.count
            )
            until(lambda: [each.name for each in other.glob("web-*")] == ["web-0"], what="the end of the move")
            so_far = second.count
            until(lambda: second.count > so_far + 50, what="more records")
        assert writer.errors == second.errors == []
        assert [each.name for each in data.glob("web-[0-9]")] == []
        broker.stop(signal.SIGKILL)
        broker.restart()
        assert read_all(broker.bootstrap, lambda count: count >= second.count) == numbers(second.count)
        broker.assert_log_is_clean()
    finally:
        broker.kill()
