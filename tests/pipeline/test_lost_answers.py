"""Loads into tables on a real S3 server whose answers get lost: each write of a load and its commits, one at a time.

Delta commits by `deltalake`'s own conditional put and Iceberg by a catalog; both reach the server through the proxy.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from ottla.pipeline.errors import is_expected
from ottla.pipeline.lake.catalog import catalog_of
from ottla.pipeline.lake.lake import Lake
from ottla.pipeline.lake.lake_table import LakeTable
from ottla.pipeline.lake.object_store import ObjectStore
from ottla.pipeline.lake.store_settings import StoreSettings
from ottla.pipeline.lake.table_format import TableFormat
from tests.pipeline.killed_load import LINE
from tests.pipeline.memory_log import Bench, MemoryTopic
from tests.pipeline.test_simulated_store import MAPPING
from tests.support.lossy_proxy import LossyProxy, lossy
from tests.support.s3_servers import BUCKET, REGION, S3Server, running

SCHEDULES = int(os.environ.get("OTTLA_STORE_SCHEDULES", "2"))
"""Of each kind of fault; 0: every one."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running("versitygw", tmp_path_factory.mktemp("versitygw")) as server:
        yield server


@pytest.fixture
def proxy(server: S3Server) -> Iterator[LossyProxy]:
    with lossy(server.port) as proxy:
        yield proxy


def bench_of(lake: Lake, records: int, stem: str) -> Bench:
    values = [b"bad" if n % 5 == 0 else LINE % (n % 24, n) for n in range(records)]
    return Bench(Path(), MemoryTopic({0: values, 1: values}), MAPPING, stem=stem, lake=lake)


def rows_of(table: LakeTable) -> list[tuple[int, int]]:
    rows = []
    for file in table.files():
        with table.store.input(file.path) as source:
            columns = pq.ParquetFile(source).read(columns=["partition", "offset"])
        rows += zip(columns["partition"].to_pylist(), columns["offset"].to_pylist(), strict=True)
    return rows


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("fault", ["lose", "refuse"])
@pytest.mark.parametrize("table_format", list(TableFormat))
def test_after_a_lost_answer_the_next_load_has_each_offset_once(
    table_format: TableFormat, fault: str, proxy: LossyProxy, tmp_path: Path
) -> None:
    def lake_at(name: str) -> Lake:
        settings = StoreSettings(proxy.endpoint, REGION)
        store = ObjectStore(f"s3://{BUCKET}/{table_format}-{fault}/{name}", settings)
        return Lake(store, table_format, catalog_of(f"sqlite:///{tmp_path / name}.db", store))

    whole = lake_at("whole")
    bench_of(whole, 4, "000000000000").load()
    before = len(proxy.writes)
    bench_of(whole, 8, "000000000001").load()
    numbers = range(len(proxy.writes) - before)
    assert len(numbers) >= 4, "files, and a commit of each table"
    for number in random.Random(28).sample(numbers, SCHEDULES) if SCHEDULES else numbers:
        lake = lake_at(f"at{number}")
        bench_of(lake, 4, "000000000000").load()
        bench = bench_of(lake, 8, "000000000001")
        setattr(proxy, fault, len(proxy.writes) + number)
        try:
            bench.load()
        except Exception as error:
            if not is_expected(error):
                raise
        assert len(proxy.writes) > (getattr(proxy, fault) or 0), f"write {number} was reached"
        setattr(proxy, fault, None)
        bench = bench_of(lake, 8, "000000000002")
        bench.load()
        both = Counter([*rows_of(bench.table), *rows_of(bench.quarantine)])
        assert both == {(partition, offset): 1 for partition in range(2) for offset in range(8)}
