"""Kafka Streams with exactly_once_v2, from its jars: a state store and its changelog, killed and restarted."""

from __future__ import annotations

import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.pipeline.jars import JarsNotFound
from tests.processes.cli_runner import Cli
from tests.support.jvm import SHORT_RUN, java
from tests.support.kafka_jars import streams_jars
from tests.support.ottla_process import OttlaProcess

pytestmark = [pytest.mark.external, pytest.mark.slow, pytest.mark.timeout(900)]
PROGRAM = Path(__file__).parent.parent / "support" / "java" / "CountByKey.java"
KEYS, ROUNDS, PER_ROUND = 7, 6, 300
WAIT_S = 180
INPUT, OUTPUT = "visits", "counts-by-key"


@pytest.fixture(scope="module")
def jars() -> Path:
    try:
        return streams_jars()
    except JarsNotFound as error:
        pytest.fail(f"the jars of Kafka Streams could not be fetched: {error}")


class StreamsApp:
    """The program, in a process of its own."""

    def __init__(self, jars: Path, directory: Path, bootstrap: str) -> None:
        self.log = directory / "streams.log"
        self.command = [
            str(java()),
            "-Xmx256M",
            *SHORT_RUN,
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            f"{jars}/*",
            str(PROGRAM),
            bootstrap,
            "counting",
            INPUT,
            OUTPUT,
            str(directory / "state"),
        ]

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        with self.log.open("ab") as output:
            process = subprocess.Popen(self.command, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.kill()
            process.wait(20)


@contextmanager
def started(directory: Path) -> Iterator[OttlaProcess]:
    broker = OttlaProcess(directory).start()
    try:
        yield broker
    finally:
        broker.stop()


def produce(cli: Cli, first: int) -> None:
    numbers = range(first, first + PER_ROUND)
    cli.out("produce", INPUT, "-K", ":", stdin=b"".join(b"k%d:%d\n" % (n % KEYS, n) for n in numbers))


def counts(cli: Cli) -> dict[bytes, list[int]]:
    """What a reader of committed records sees: the counts of each key, in their order."""
    found: dict[bytes, list[int]] = defaultdict(list)
    for line in cli.out("consume", OUTPUT, "--format", "%k %v\\n").splitlines():
        key, value = line.split()
        found[key].append(int(value))
    return found


def wait_for_counts(cli: Cli, total: int, log: Path) -> None:
    """Wait until so many records are counted. Each count must come once and in order, at any time."""
    deadline = time.monotonic() + WAIT_S
    while True:
        found = counts(cli)
        for key, values in found.items():
            assert values == list(range(1, len(values) + 1)), f"the counts of {key!r} are {values}"
        if sum(map(len, found.values())) >= total:
            return
        assert time.monotonic() < deadline, f"{sum(map(len, found.values()))} of {total}; {log.read_text()[-3000:]}"
        time.sleep(1)


def test_every_record_is_counted_once_while_the_application_and_the_broker_are_killed(
    jars: Path, tmp_path: Path
) -> None:
    with started(tmp_path / "broker") as broker:
        cli = Cli(broker.bootstrap, tmp_path)
        for topic in (INPUT, OUTPUT):
            cli.out("topic", "create", topic, "--partitions", "3")
        app = StreamsApp(jars, tmp_path, broker.bootstrap)
        for number in range(ROUNDS):
            with app.running() as process:
                produce(cli, number * PER_ROUND)
                if number == 0:
                    wait_for_counts(cli, PER_ROUND, app.log)
                elif number % 3 == 1:
                    time.sleep(5)
                    process.send_signal(signal.SIGKILL)
                elif number % 3 == 2:
                    time.sleep(6)
                    broker.kill()
                    broker.start()
                    time.sleep(3)
        with app.running():
            wait_for_counts(cli, ROUNDS * PER_ROUND, app.log)
        final = counts(cli)
        assert {key: len(values) for key, values in final.items()} == {
            b"k%d" % key: len(range(key, ROUNDS * PER_ROUND, KEYS)) for key in range(KEYS)
        }
        assert cli.json("txn", "hanging", "--older-than", "0.1") == []
        changelog = cli.json("topic", "describe", "counting-counts-changelog")
        assert "compact" in str(changelog)
