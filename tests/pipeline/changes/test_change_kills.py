"""Kill -9 at random moments, of anything, while changes are loaded: the table is a dict built from the topic.

At the end and at three random earlier versions, by DuckDB and the files alone. `make change-kills` does it with 5 million
changes of 200,000 keys and ten kills, in both formats: OTTLA_CHANGES, OTTLA_CHANGE_KEYS, OTTLA_KILLS, OTTLA_SEED.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from array import array
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer

from ottla.pipeline.lake.lake_table import LakeTable
from ottla.pipeline.lake.table_format import TableFormat
from tests.pipeline.changes.keyed_topic import by_duckdb, versions_of
from tests.pipeline.kills import PARTITIONS, TOPIC, VICTIMS, LoadRun
from tests.pipeline.test_kills import make_topic
from tests.support.lakes import lake_in

KILLS = int(os.environ.get("OTTLA_KILLS", "3"))
CHANGES = int(os.environ.get("OTTLA_CHANGES", "4000"))
KEYS = int(os.environ.get("OTTLA_CHANGE_KEYS", "300"))
SEED = int(os.environ.get("OTTLA_SEED", "1"))
DELETES, NO_JSON = 0.1, 0.01
EARLIER = 3
_DELETED, _REFUSED = -1, -2


class Changes:
    """Changes of keys that are sent to a topic, and the log of those that were acknowledged."""

    def __init__(self, bootstrap: str, chance: random.Random) -> None:
        self.chance, self.sent = chance, 0
        self.keys = {partition: array("l") for partition in range(PARTITIONS)}
        self.numbers = {partition: array("l") for partition in range(PARTITIONS)}
        settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20, "log_level": 0}
        self._producer = Producer(settings | {"message.timeout.ms": 300_000, "queue.buffering.max.messages": 1_000_000})

    def send(self, count: int, part: int) -> None:
        """Send changes; `part` decides the columns: some come, one widens, one goes."""
        for _ in range(count):
            key, drawn, number = self.chance.randrange(KEYS), self.chance.random(), self.sent
            value: bytes | None
            if drawn < DELETES:
                value, number = None, _DELETED
            elif drawn < DELETES + NO_JSON:
                value, number = b"no json", _REFUSED
            else:
                value = json.dumps(self._row(number, part)).encode()
            told = partial(self._answered, key, number)
            self._producer.produce(TOPIC, value, b"k%d" % key, partition=key % PARTITIONS, on_delivery=told)
            self.sent += 1
            if self.sent % 1000 == 0:
                self._producer.poll(0)
        assert self._producer.flush(300) == 0

    def _row(self, number: int, part: int) -> Mapping[str, Any]:
        row: dict[str, Any] = {"n": number, "x": number / 4 if part > 1 else 1, f"c{part}": "new"}
        return row if part > 2 else row | {"old": "there at first"}

    def _answered(self, key: int, number: int, error: object, message: Message) -> None:
        assert error is None, error
        partition = message.partition()
        assert partition is not None
        assert message.offset() == len(self.keys[partition]), "the producer is the only one"
        self.keys[partition].append(key)
        self.numbers[partition].append(number)

    def rows(self, positions: Mapping[int, int]) -> list[tuple[bytes, int, int, int]]:
        """Key, partition, offset and number of each row that the table must have at these positions, sorted."""
        found: dict[int, tuple[int, int, int]] = {}
        for partition, end in positions.items():
            for offset in range(end):
                key, number = self.keys[partition][offset], self.numbers[partition][offset]
                if number == _DELETED:
                    found.pop(key, None)
                elif number != _REFUSED:
                    found[key] = (partition, offset, number)
        return sorted((b"k%d" % key, *row) for key, row in found.items())


def check(table: LakeTable, changes: Changes) -> dict[int, int]:
    """Compare a version with the dict of its positions; return these."""
    positions = {p: r.end_offset for p, r in table.positions(TOPIC, range(PARTITIONS)).items()}
    assert by_duckdb(table.paths(), 'key, partition, "offset", n') == changes.rows(positions)
    return positions


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.external
@pytest.mark.timeout(900 + 400 * KILLS)
@pytest.mark.parametrize("table_format", list(TableFormat) if KILLS > 3 else [TableFormat.DELTA])
def test_after_any_kill_the_table_is_a_dict_built_from_the_topic(tmp_path: Path, table_format: TableFormat) -> None:
    chance = random.Random(SEED)
    options = ("--table-format", table_format, "-o", "mode=upsert", "-o", "buckets=4")
    load_run = LoadRun(tmp_path, chance, options)
    victims = [VICTIMS[n % len(VICTIMS)] for n in range(max(0, KILLS - 3))] + ["worker", "broker", "driver"]
    chance.shuffle(victims)
    load_run.broker.start()
    try:
        asyncio.run(make_topic(load_run.broker.bootstrap))
        changes = Changes(load_run.broker.bootstrap, chance)
        load_run.start_load()
        for part, victim in enumerate(victims):
            changes.send(CHANGES // (len(victims) + 1), part)
            load_run.kill(victim)
        changes.send(CHANGES - changes.sent, len(victims))
        load_run.stop_load()
        load_run.load_to_the_end()
        table = lake_in(load_run.lake, table_format).table(TOPIC)
        ends = check(table, changes)
        assert ends == load_run.ends()
        assert sum(ends.values()) == CHANGES
        versions = versions_of(table)
        for version in chance.sample(versions, min(EARLIER, len(versions))):
            check(version, changes)
    finally:
        load_run.stop()
