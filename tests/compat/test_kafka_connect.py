"""A Connect worker with exactly.once.source.support, from its jars: a source of lines, killed and restarted."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ottla.pipeline.jars import JarsNotFound
from tests.processes.cli_runner import Cli
from tests.support.jvm import SHORT_RUN, java
from tests.support.kafka_jars import connect_jars
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import free_port

pytestmark = [pytest.mark.external, pytest.mark.slow, pytest.mark.timeout(900)]
TOPIC, CONNECTOR = "lines", "reads-lines"
ROUNDS, PER_ROUND = 3, 400
WAIT_S = 180
WORKER = """\
bootstrap.servers={bootstrap}
group.id=connect-workers
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
config.storage.topic=connect-configs
offset.storage.topic=connect-offsets
offset.storage.partitions=3
status.storage.topic=connect-status
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
exactly.once.source.support=enabled
scheduled.rebalance.max.delay.ms=1000
session.timeout.ms=6000
heartbeat.interval.ms=1500
producer.transaction.timeout.ms=5000
listeners=http://127.0.0.1:{port}
plugin.discovery=only_scan
"""


class Worker:
    """One distributed worker, in a process of its own."""

    def __init__(self, directory: Path, bootstrap: str) -> None:
        try:
            jars = connect_jars()
        except JarsNotFound as error:
            pytest.fail(f"the jars of Connect could not be fetched: {error}")
        self.port, self.log = free_port(), directory / "connect.log"
        properties = directory / "worker.properties"
        properties.write_text(WORKER.format(bootstrap=bootstrap, port=self.port))
        self.command = [
            str(java()),
            "-Xmx384M",
            *SHORT_RUN,
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            f"{jars}/*",
            "org.apache.kafka.connect.cli.ConnectDistributed",
            str(properties),
        ]

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run until the end of the block, and kill it then."""
        with self.log.open("ab") as output:
            process = subprocess.Popen(self.command, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.kill()
            process.wait(20)

    def ask(self, path: str, body: object = None, *, method: str = "GET") -> Any:
        """One request to the worker, repeated until it serves."""
        deadline = time.monotonic() + WAIT_S
        data = None if body is None else json.dumps(body).encode()
        while True:
            request = urllib.request.Request(
                f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}, method=method
            )
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return json.load(answer)
            except OSError as error:
                detail = error.read() if isinstance(error, urllib.error.HTTPError) else b""
                if time.monotonic() > deadline:
                    pytest.fail(f"{error} {detail!r}: {self.log.read_text()[-3000:]}")
                time.sleep(1)


def append_lines(file: Path, first: int) -> None:
    """Append the lines of one round bit by bit, so that there are several transactions."""
    for start in range(first, first + PER_ROUND, PER_ROUND // 10):
        with file.open("a") as output:
            output.writelines(f"line {number}\n" for number in range(start, start + PER_ROUND // 10))
        time.sleep(0.5)


def wait_for_lines(cli: Cli, total: int, log: Path) -> None:
    """Wait until so many lines are committed. They come once and in order, at any time."""
    deadline = time.monotonic() + WAIT_S
    while True:
        found = cli.out("consume", TOPIC).splitlines()
        assert found == [b"line %d" % number for number in range(len(found))], found
        if len(found) >= total:
            return
        assert time.monotonic() < deadline, f"{len(found)} of {total}; {log.read_text()[-3000:]}"
        time.sleep(1)


def test_every_line_is_written_once_while_the_worker_and_the_broker_are_killed(tmp_path: Path) -> None:
    broker = OttlaProcess(tmp_path / "broker").start()
    try:
        cli, source = Cli(broker.bootstrap, tmp_path), tmp_path / "lines.txt"
        cli.out("topic", "create", TOPIC, "--partitions", "1")
        worker = Worker(tmp_path, broker.bootstrap)
        config = {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "tasks.max": "1",
            "file": str(source),
            "topic": TOPIC,
            "exactly.once.support": "required",
            "transaction.boundary": "poll",
        }
        for number in range(ROUNDS):
            with worker.running():
                worker.ask(f"/connectors/{CONNECTOR}/config", config, method="PUT")
                append_lines(source, number * PER_ROUND)
                if number == 0:
                    wait_for_lines(cli, PER_ROUND, worker.log)
                elif number % 2:
                    time.sleep(6)
                else:
                    time.sleep(4)
                    broker.kill()
                    broker.start()
                    time.sleep(4)
        with worker.running():
            wait_for_lines(cli, ROUNDS * PER_ROUND, worker.log)
            time.sleep(3)
        assert len(cli.out("consume", TOPIC).splitlines()) == ROUNDS * PER_ROUND
        assert cli.json("txn", "hanging", "--older-than", "0.1") == []
    finally:
        broker.stop()
