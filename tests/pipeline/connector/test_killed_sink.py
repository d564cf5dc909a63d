"""kill -9 in the middle: a stream's driver, its Python workers, the broker. Every record is in the sink once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import until
from tests.support.topics import create_topic, read_with_librdkafka, write_batches

from ottla.records.builder import NewRecord, build_batch

pytestmark = [pytest.mark.spark, pytest.mark.slow]
PROGRAM = Path(__file__).with_name("killed_sink.py")
PARTITIONS, EACH = 2, 1500
KILLS = int(os.environ.get("OTTLA_KILLS", "2"))
"""How often each story kills; `make kills` asks for more."""


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
    log = (directory / "out.txt").open("ab")
    return subprocess.Popen(arguments, stdout=log, stderr=log, start_new_session=True)


def family(leader: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [leader]
    while todo:
        found.append(pid := todo.pop())
        todo += children.get(pid, [])
    return found


def kill(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def workers(leader: int) -> list[int]:
    """The Python processes that Spark has forked for its tasks."""
    found = []
    for pid in family(leader)[1:]:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"pyspark.daemon" in command:
            found.append(pid)
    return found


def micro_batches(directory: Path) -> int:
    return len(list((directory / "checkpoint" / "offsets").glob("[0-9]*")))


def wait_for_progress(process: subprocess.Popen[bytes], directory: Path, chance: random.Random) -> None:
    """Until another micro-batch has begun, and then a random moment of it."""
    before = micro_batches(directory)
    until(lambda: micro_batches(directory) > before or process.poll() is not None, timeout_s=120, what="a micro-batch")
    moment = time.monotonic() + chance.uniform(0, 1.5)
    until(lambda: time.monotonic() > moment or process.poll() is not None, what="the moment")


def finish(server: OttlaProcess, process: subprocess.Popen[bytes], directory: Path) -> None:
    """Let it come to its end, starting it again if it had failed."""
    for _ in range(3):
        try:
            code = process.wait(240)
        finally:
            kill(family(process.pid))
        if code == 0:
            return
        process = started(server, directory)
    raise AssertionError((directory / "out.txt").read_text(errors="replace")[-3000:])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", ["driver", "workers", "broker"])
def test_whoever_dies_each_record_is_in_the_sink_once(server: OttlaProcess, tmp_path: Path, victim: str) -> None:
    chance = random.Random(victim)
    directory = tmp_path / "job"
    process = started(server, directory)
    try:
        for _ in range(KILLS):
            wait_for_progress(process, directory, chance)
            if process.poll() is not None:
                break
            if victim == "driver":
                kill(family(process.pid))
                process.wait()
                process = started(server, directory)
            elif victim == "workers":
                kill(workers(process.pid))
            else:
                server.kill()
                server.start()
        finish(server, process, directory)
        assert counted(server, "out", 3) == counted(server, "in", PARTITIONS)
    finally:
        kill(family(process.pid))
        server.stop()
