"""kill -9 in the middle of one stream: its driver, its Python workers, the broker. Every record is in the sink once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from ottla.records.builder import NewRecord, build_batch
from tests.pipeline.connector.killed_sink import PER_TRIGGER
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import descendants, until
from tests.support.topics import create_topic, read_with_librdkafka, write_batches

pytestmark = [pytest.mark.spark, pytest.mark.slow]
PROGRAM = Path(__file__).with_name("killed_sink.py")
PARTITIONS = 2
SEED = int(os.environ.get("OTTLA_SEED", "6"))
"""With the usual one each of the moments to kill at comes up."""
KILLS = int(os.environ.get("OTTLA_KILLS", "2"))
"""How often each of the victims is killed; `make kills` asks for more. Few kills spare a start of Spark."""
VICTIMS = ["driver"] * (KILLS if KILLS > 2 else 1) + ["workers", "broker"] * KILLS
EACH = 300 * len(VICTIMS) + 100
"""Records of a partition: more than a micro-batch for each kill, so that there is work left at the last one."""


@pytest.fixture
def server(tmp_path: Path) -> OttlaProcess:
    started = OttlaProcess(tmp_path / "broker").start()
    create_topic(started.bootstrap, "in", partitions=PARTITIONS)
    create_topic(started.bootstrap, "out", partitions=3)
    for partition in range(PARTITIONS):
        found = [
            NewRecord(b"%d" % n if n % 3 else None, b"%d-%d" % (partition, n // 2), 1_700_000_000_000)
            for n in range(EACH)
        ]
        batches = [bytes(build_batch(found[at : at + 100])) for at in range(0, EACH, 100)]
        write_batches(started.bootstrap, "in", batches, partition=partition)
    return started


def counted(server: OttlaProcess, topic: str, partitions: int) -> Counter[tuple[bytes | None, bytes | None]]:
    return Counter(
        (row.key, row.value)
        for partition in range(partitions)
        for row in read_with_librdkafka(server.bootstrap, topic, end_offset=1 << 40, partition=partition)
    )


def started(server: OttlaProcess, directory: Path) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, str(PROGRAM), server.bootstrap, "in", "out", str(directory)]
    directory.mkdir(exist_ok=True)
    with (directory / "out.txt").open("ab") as log:
        return subprocess.Popen(arguments, stdout=log, stderr=log, start_new_session=True)


def family(leader: int) -> list[int]:
    """A process and all below it."""
    return [leader, *descendants(leader)]


def kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


class Watch:
    """How much has been written into the sink."""

    def __init__(self, server: OttlaProcess) -> None:
        self._settings = {"bootstrap.servers": server.bootstrap, "group.id": "audit", "log_level": 0}
        self._consumer = Consumer(self._settings)

    def written(self) -> int:
        try:
            return self._written()
        except KafkaException:  # librdkafka calls a partition unknown while its broker comes back, Kafka's too
            self._consumer.close()
            self._consumer = Consumer(self._settings)
            return self._written()

    def _written(self) -> int:
        ends = [self._consumer.get_watermark_offsets(TopicPartition("out", n), timeout=30)[1] for n in range(3)]
        return sum(ends)

    def wait(self, process: subprocess.Popen[bytes], chance: random.Random) -> None:
        """Until some of a micro-batch is written, or all of it and Spark has not noted that yet."""
        enough = self.written() + chance.choice([1, 150, 300, PER_TRIGGER])
        until(
            lambda: self.written() >= enough or process.poll() is not None, timeout_s=600, what="something is written"
        )

    def close(self) -> None:
        self._consumer.close()


def finish(server: OttlaProcess, process: subprocess.Popen[bytes], directory: Path) -> None:
    """Let it come to its end, starting it again if it had failed."""
    for _ in range(3):
        try:
            code = process.wait(900)
        finally:
            kill(family(process.pid))
        if code == 0:
            return
        process = started(server, directory)
    raise AssertionError((directory / "out.txt").read_text(errors="replace")[-3000:])


@pytest.mark.timeout(900 + 900 * KILLS)
def test_after_any_kill_each_record_is_in_the_sink_once(server: OttlaProcess, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    victims = VICTIMS[:]
    chance.shuffle(victims)
    directory = tmp_path / "job"
    process = started(server, directory)
    watch = Watch(server)
    try:
        for victim in victims:
            watch.wait(process, chance)
            if process.poll() is not None:
                assert process.returncode != 0, f"it came to its end before the kill of {victim}"
                process = started(server, directory)
                watch.wait(process, chance)
            assert process.poll() is None, (directory / "out.txt").read_text(errors="replace")[-3000:]
            if victim == "driver":
                kill(family(process.pid))
                process.wait()
                process = started(server, directory)
            elif victim == "workers":
                workers = descendants(process.pid, running=b"pyspark.daemon")
                assert workers, "no worker was at work"
                kill(workers)
            else:
                server.kill()
                server.start()
        finish(server, process, directory)
        assert counted(server, "out", 3) == counted(server, "in", PARTITIONS)
    finally:
        kill(family(process.pid))
        process.wait()
        watch.close()
        server.stop()
