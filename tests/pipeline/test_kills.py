"""Kill -9 at random moments, of anything, while a load runs: each offset is in the tables once, the quarantine included.

`make kills` does it more often: OTTLA_KILLS=30, OTTLA_SEED for another schedule.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from ottla.client.addresses import parse_addresses
from ottla.client.admin import NewTopic, create_topics
from ottla.client.cluster import Cluster
from ottla.pipeline.lake.table_format import TableFormat
from tests.pipeline.kills import PARTITIONS, TOPIC, VICTIMS, LoadRun, producing
from tests.pipeline.memory_log import by_duckdb
from tests.support.lakes import lake_in

KILLS = int(os.environ.get("OTTLA_KILLS", "3"))
SEED = int(os.environ.get("OTTLA_SEED", "1"))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.external
@pytest.mark.timeout(900 + 400 * KILLS)
@pytest.mark.parametrize("table_format", list(TableFormat) if KILLS > 3 else [TableFormat.DELTA])
def test_after_any_kill_each_offset_is_in_the_tables_once(tmp_path: Path, table_format: TableFormat) -> None:
    chance = random.Random(SEED)
    load_run = LoadRun(tmp_path, chance, ("--table-format", table_format))
    victims = [VICTIMS[n % len(VICTIMS)] for n in range(max(0, KILLS - 3))] + ["worker", "broker", "driver"]
    chance.shuffle(victims)
    load_run.broker.start()
    try:
        asyncio.run(make_topic(load_run.broker.bootstrap))
        with producing(load_run):
            load_run.start_load()
            for victim in victims:
                load_run.kill(victim)
                check_tables(load_run, table_format, complete=False)
        load_run.stop_load()
        load_run.load_to_the_end()
        check_tables(load_run, table_format, complete=True)
    finally:
        load_run.stop()


async def make_topic(bootstrap: str) -> None:
    async with await Cluster.connect(parse_addresses(bootstrap)) as cluster:
        ((created, _),) = await create_topics(cluster, [NewTopic(TOPIC, PARTITIONS)])
        assert created.error is None


def check_tables(load_run: LoadRun, table_format: TableFormat, *, complete: bool) -> None:
    """By the files of the newest commits alone."""
    lake = lake_in(load_run.lake, table_format)
    table, quarantine = lake.table(TOPIC), lake.quarantine(TOPIC)
    if not (table.exists() and quarantine.exists()):
        assert not complete
        return
    rows = Counter(by_duckdb(table, 'partition, "offset"'))
    quarantined = Counter(by_duckdb(quarantine, 'partition, "offset"'))
    assert max(rows.values(), default=1) == max(quarantined.values(), default=1) == 1
    if complete:
        ends = {p: r.end_offset for p, r in table.positions(TOPIC, range(PARTITIONS)).items()}
        assert ends == load_run.ends()
        assert not set(rows) & set(quarantined)
        assert set(rows) | set(quarantined) == {(p, o) for p, end in ends.items() for o in range(end)}
        assert len(rows) + len(quarantined) == load_run.sent == len(load_run.acknowledged)
        assert set(by_duckdb(table, "n")) == {n for n in range(load_run.sent) if n % 9}
