"""Consumers of one share group, killed with -9 at random: each record is accepted once, none is lost.

`make share-kills` runs 20 consumers and 100,000 records; the ordinary tests fewer.

A killed consumer stays a member until its session expires, and a partition whose members are all dead is not consumed
until then. So the test kills a consumer only after records were completed since the last kill, and it fails if none
are completed for longer than sessions and locks can explain, however long the whole takes. It kills no consumer that
holds records at one of their last two deliveries: those records would rightly be archived.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.batches import batch, numbered
from tests.support.ottla_process import OttlaProcess
from tests.support.topics import create_topic, write_batches
from tests.support.wire_client import Wire

RECORDS = int(os.environ.get("OTTLA_SHARE_RECORDS", "3000"))
CONSUMERS = int(os.environ.get("OTTLA_SHARE_CONSUMERS", "4"))
PARTITIONS = 4
KILL_EVERY_S = min(1.0, 6 / CONSUMERS)
RECORDS_BETWEEN_KILLS = 100
DELIVERY_LIMIT = 5
SESSION_TIMEOUT_MS, HEARTBEAT_MS, LOCK_MS = 8_000, 1_000, 15_000
STALL_LIMIT_S = (SESSION_TIMEOUT_MS + HEARTBEAT_MS + LOCK_MS) / 1000 + 40
"""The last kill, then: its session and its locks expire, another member gets the partition; and the machine is busy."""
GROUP_RESOURCE = 32
SETTINGS = {
    "group.share.min.session.timeout.ms": SESSION_TIMEOUT_MS,
    "group.share.session.timeout.ms": SESSION_TIMEOUT_MS,
    "group.share.min.heartbeat.interval.ms": HEARTBEAT_MS,
    "group.share.heartbeat.interval.ms": HEARTBEAT_MS,
    "group.share.record.lock.duration.ms": LOCK_MS,
    "group.share.delivery.count.limit": DELIVERY_LIMIT,
}
ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = [pytest.mark.slow]


class Consumers:
    """Starts consumers, kills them, and collects what they report."""

    def __init__(self, bootstrap: str, group: str, topic: str, directory: Path) -> None:
        self._arguments = (bootstrap, group, topic)
        self._directory = directory
        self._running: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._started = 0

    def start(self) -> None:
        path = self._directory / f"consumer-{self._started}.txt"
        self._started += 1
        command = [sys.executable, "-m", "tests.support.share_consumer_process", *self._arguments]
        with path.open("wb") as output:
            process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.DEVNULL)
        self._running.append((process, path))

    def kill_one(self, rng: random.Random, *, at_work: bool = False) -> bool:
        """Kill any consumer, or one that has records and has not acknowledged them; returns False if there is none."""
        victims = [each for each in self._running if may_be_killed(each[1], at_work=at_work)]
        if not victims:
            return False
        victim = rng.choice(victims)
        process, output = victim
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if not may_be_killed(output, at_work=at_work):  # it went on before it stopped
            process.send_signal(signal.SIGCONT)
            return False
        self._running.remove(victim)
        process.kill()
        process.wait()
        return True

    def kill_all(self) -> None:
        while self._running:
            process, _ = self._running.pop()
            process.kill()
            process.wait()

    def lines(self, kind: str) -> list[tuple[int, ...]]:
        """Return what all consumers reported; a line that was cut by a kill is left out."""
        found: list[tuple[int, ...]] = []
        for path in self._directory.glob("consumer-*.txt"):
            complete = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")[0]
            found += [
                tuple(int(part) for part in line.split()[1:])
                for line in complete.splitlines()
                if line.startswith(f"{kind} ")
            ]
        return found


def may_be_killed(output: Path, *, at_work: bool) -> bool:
    """Return whether the consumer with this output is a victim: the records that it holds must remain deliverable."""
    held = []
    for line in reversed(last_lines(output)):
        if not line.startswith("D "):
            break
        held.append(int(line.split()[3]))
    return max(held) < DELIVERY_LIMIT - 1 if held else not at_work


def last_lines(path: Path) -> list[str]:
    """Return the last complete lines of a file, at least those of one delivery."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 8192))
        return file.read().rpartition(b"\n")[0].decode(errors="replace").splitlines()


def begin_at_the_start(port: int, group: str) -> None:
    """Set the group's first offset."""
    config = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": [config]}
    with Wire(port) as client:
        answer = client.call("incremental_alter_configs", 1, resources=[resource], validate_only=False)
    assert [each["error_code"] for each in answer["responses"]] == [0]


def records_left(port: int, group: str, topic: str) -> int:
    """Count the records that the group has not completed: none of the others can be delivered again."""
    topics = [{"topic_name": topic, "partitions": list(range(PARTITIONS))}]
    with Wire(port) as client:
        answer = client.call("describe_share_group_offsets", 1, groups=[{"group_id": group, "topics": topics}])
    (found,) = answer["groups"]
    if found["error_code"]:  # no member has joined yet
        return RECORDS
    lags = [each["lag"] for each in found["topics"][0]["partitions"]]
    return sum(RECORDS // PARTITIONS if lag < 0 else lag for lag in lags)  # -1: not known yet


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OttlaProcess]:
    """A broker where sessions of share groups expire soon."""
    options = [word for name, value in SETTINGS.items() for word in ("-o", f"{name}={value}")]
    server = OttlaProcess(tmp_path / "server", options=options).start()
    yield server
    assert server.stop() == 0, server.log
    server.assert_log_is_clean()


def kill_until_all_is_done(broker: OttlaProcess, group: str, topic: str, consumers: Consumers) -> None:
    """Kill and replace consumers while they make progress; returns when no record is left. Fails if they stop."""
    rng, at_work = random.Random(7), True
    left = left_at_kill = RECORDS
    next_kill = 0.0
    progress_at = time.monotonic()
    while left:
        time.sleep(0.05)  # between two requests
        before, left = left, records_left(broker.port, group, topic)
        now = time.monotonic()
        if left != before:
            progress_at = now
        assert now - progress_at < STALL_LIMIT_S, f"{left} records are left and none was completed for a long time"
        is_due = left_at_kill - left >= RECORDS_BETWEEN_KILLS and now > next_kill
        if is_due and consumers.kill_one(rng, at_work=at_work):
            consumers.start()
            next_kill = now + KILL_EVERY_S * rng.uniform(0.5, 1.5)
            at_work, left_at_kill = rng.random() < 0.5, left


def test_each_record_is_accepted_once_while_consumers_are_killed(broker: OttlaProcess, tmp_path: Path) -> None:
    topic, group = "share-kills", "share-kills"
    create_topic(broker.bootstrap, topic, partitions=PARTITIONS)
    begin_at_the_start(broker.port, group)
    each = RECORDS // PARTITIONS
    for partition in range(PARTITIONS):
        batches = [batch(numbered(min(50, each - first))) for first in range(0, each, 50)]
        write_batches(broker.bootstrap, topic, batches, partition=partition)
    everything = {(partition, offset) for partition in range(PARTITIONS) for offset in range(each)}
    consumers = Consumers(broker.bootstrap, group, topic, tmp_path)
    try:
        for _ in range(CONSUMERS):
            consumers.start()
        kill_until_all_is_done(broker, group, topic, consumers)
    finally:
        consumers.kill_all()
    accepted = Counter(consumers.lines("A"))
    twice = {place: count for place, count in accepted.items() if count > 1}
    assert not twice, f"accepted twice: {twice}"
    unsure = set(consumers.lines("S")) - accepted.keys()  # killed before the answer
    assert not everything - accepted.keys() - unsure, "records were lost"
    assert 1 < max(count for _, _, count in consumers.lines("D")) <= DELIVERY_LIMIT, "kills interrupted deliveries"
    assert len(unsure) < len(everything) // 2, "most were accepted for certain"
