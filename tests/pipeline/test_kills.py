"""Kill -9 at random moments, of anything, while a load runs: each offset is in the tables once, the quarantine included.

`make kills` does it more often: OTTLA_KILLS=30, OTTLA_SEED for another schedule.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ottla.client.addresses import parse_addresses
from ottla.client.admin import NewTopic, create_topics
from ottla.client.cluster import Cluster
from ottla.pipeline.lake.catalog import catalog_of
from ottla.pipeline.lake.lake import Lake
from ottla.pipeline.lake.lake_table import LakeTable
from ottla.pipeline.lake.table_format import TableFormat
from tests.pipeline.kills import PARTITIONS, TOPIC, VICTIMS, LoadRun, producing
from tests.pipeline.memory_log import by_duckdb, by_duckdb_in
from tests.support.lakes import lake_in
from tests.support.s3_servers import BUCKET, running

KILLS = int(os.environ.get("OTTLA_KILLS", "3"))
SEED = int(os.environ.get("OTTLA_SEED", "1"))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.external
@pytest.mark.timeout(900 + 400 * KILLS)
@pytest.mark.parametrize("table_format", list(TableFormat) if KILLS > 3 else [TableFormat.DELTA])
def test_after_any_kill_each_offset_is_in_the_tables_once(tmp_path: Path, table_format: TableFormat) -> None:
    chance = random.Random(SEED)
    run_with_kills(LoadRun(tmp_path, chance, ("--table-format", table_format)), VICTIMS, table_format)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.external
@pytest.mark.timeout(900 + 400 * KILLS)
@pytest.mark.parametrize("table_format", list(TableFormat))
def test_after_any_kill_each_offset_is_in_the_tables_of_an_object_store_once(
    tmp_path: Path, table_format: TableFormat
) -> None:
    with running("versitygw", tmp_path / "store") as server:
        load_run = LoadRun(tmp_path, random.Random(SEED), ("--table-format", table_format), server)
        run_with_kills(load_run, (*VICTIMS, "store"), table_format)


def run_with_kills(load_run: LoadRun, kinds: Sequence[str], table_format: TableFormat) -> None:
    chance = load_run.chance
    victims = [kinds[n % len(kinds)] for n in range(max(0, KILLS - 3))] + ["worker", kinds[-1], "driver"]
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


def lake_of(load_run: LoadRun, table_format: TableFormat) -> Lake:
    if load_run.server is None:
        return lake_in(load_run.lake, table_format)
    store = load_run.server.store("lake")
    return Lake(store, table_format, catalog_of(f"sqlite:///{load_run.catalog}", store))


def rows_of(load_run: LoadRun, table: LakeTable, what: str) -> list[Any]:
    """Read the files with DuckDB; those of an object store from the directory of its server."""
    if load_run.server is None:
        return by_duckdb(table, what)
    bucket = f"{load_run.server.root / BUCKET}/"
    return by_duckdb_in([path.replace(f"s3://{BUCKET}/", bucket) for path in table.paths()], what)


def check_tables(load_run: LoadRun, table_format: TableFormat, *, complete: bool) -> None:
    """By the files of the newest commits alone."""
    lake = lake_of(load_run, table_format)
    table, quarantine = lake.table(TOPIC), lake.quarantine(TOPIC)
    if not (table.exists() and quarantine.exists()):
        assert not complete
        return
    rows = Counter(rows_of(load_run, table, 'partition, "offset"'))
    quarantined = Counter(rows_of(load_run, quarantine, 'partition, "offset"'))
    assert max(rows.values(), default=1) == max(quarantined.values(), default=1) == 1
    if complete:
        ends = {p: r.end_offset for p, r in table.positions(TOPIC, range(PARTITIONS)).items()}
        assert ends == load_run.ends()
        assert not set(rows) & set(quarantined)
        assert set(rows) | set(quarantined) == {(p, o) for p, end in ends.items() for o in range(end)}
        assert len(rows) + len(quarantined) == load_run.sent == len(load_run.acknowledged)
        assert set(rows_of(load_run, table, "n")) == {n for n in range(load_run.sent) if n % 9}
