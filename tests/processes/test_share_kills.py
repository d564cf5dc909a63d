"""Consumers of one share group, killed with -9 at random: each record is accepted once, none is lost.

`make share-kills` plays 20 consumers and 100,000 records; the ordinary tests fewer.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import Broker
from tests.support.batches import batch, numbered
from tests.support.topics import create_topic, write_batches
from tests.support.wire_client import Wire

RECORDS = int(os.environ.get("OTTLA_SHARE_RECORDS", "3000"))
CONSUMERS = int(os.environ.get("OTTLA_SHARE_CONSUMERS", "4"))
PARTITIONS = 4
KILL_EVERY_S = 1.0
LIMIT_S = 100 + RECORDS / 200
DELIVERY_LIMIT = 5
GROUP_RESOURCE = 32
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
        victims = [each for each in self._running if not at_work or last_line(each[1]).startswith("D ")]
        if not victims:
            return False
        victim = rng.choice(victims)
        self._running.remove(victim)
        victim[0].kill()
        victim[0].wait()
        return True

    def kill_all(self) -> None:
        while self._running:
            self.kill_one(random.Random(0))

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


def last_line(path: Path) -> str:
    """Return the last line of a file, or nothing."""
    return ("", *path.read_text(encoding="utf-8", errors="replace").splitlines())[-1]


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


def test_each_record_is_accepted_once_while_consumers_are_killed(broker: Broker, tmp_path: Path) -> None:
    rng, topic, group = random.Random(7), "share-kills", "share-kills"
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
        deadline, next_kill, at_work = time.monotonic() + LIMIT_S, 0.0, True
        while (left := records_left(broker.port, group, topic)) and time.monotonic() < deadline:
            time.sleep(0.05)  # between two requests
            is_due = left < RECORDS and time.monotonic() > next_kill
            if is_due and consumers.kill_one(rng, at_work=at_work):
                consumers.start()
                next_kill = time.monotonic() + KILL_EVERY_S * rng.uniform(0.5, 1.5)
                at_work = rng.random() < 0.5
        assert records_left(broker.port, group, topic) == 0
    finally:
        consumers.kill_all()
    accepted = Counter(consumers.lines("A"))
    twice = {place: count for place, count in accepted.items() if count > 1}
    assert not twice, f"accepted twice: {twice}"
    unsure = set(consumers.lines("S")) - accepted.keys()  # killed before the answer
    assert not everything - accepted.keys() - unsure, "records were lost"
    assert 1 < max(count for _, _, count in consumers.lines("D")) <= DELIVERY_LIMIT, "kills interrupted deliveries"
    assert len(unsure) < len(everything) // 2, "most were accepted for certain"
