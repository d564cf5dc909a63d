"""What newer versions of Spark ask the readers for: filters, read limits and `Trigger.AvailableNow`. Without Java."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from ottla.pipeline.connector import spark_api
from ottla.pipeline.connector.columns import COLUMNS
from ottla.pipeline.connector.datasource import OttlaDataSource
from ottla.pipeline.connector.options import source_options
from ottla.pipeline.connector.reader import BatchReader, FilteringBatchReader, RangePartition, StreamReader
from ottla.records.builder import NewRecord, build_batch
from tests.pipeline.connector.test_filters import EqualTo, GreaterThanOrEqual, IsNotNull, times
from tests.support.ottla_process import OttlaProcess
from tests.support.topics import create_topic, write_batches

pytestmark = pytest.mark.oldest_spark
END = 10


class ReadAllAvailable:
    """Spark's limit of `Trigger.Once`."""


class ReadMaxRows:
    """Spark's limit of every other trigger."""


def write(server: OttlaProcess, topic: str, *, first: int = 0) -> None:
    for partition in range(2):
        found = [NewRecord(None, b"%d" % n, n * 1000) for n in range(first, first + END)]
        write_batches(server.bootstrap, topic, [bytes(build_batch(found))], partition=partition)


@pytest.fixture
def server(ottla_server: OttlaProcess) -> OttlaProcess:
    create_topic(ottla_server.bootstrap, "in", partitions=2)
    write(ottla_server, "in")
    return ottla_server


def stream(server: OttlaProcess, **more: str) -> StreamReader:
    given = {"kafka.bootstrap.servers": server.bootstrap, "subscribePattern": "in.*", "startingOffsets": "earliest"}
    return StreamReader(source_options(given | more, streaming=True), tuple(COLUMNS))


def offsets(position: dict[str, Any]) -> dict[str, int]:
    return {f"{topic}-{p}": at for topic, found in position["offsets"].items() for p, at in found.items()}


def micro_batches(reader: StreamReader, limit: object) -> list[dict[str, int]]:
    """The ends of all micro-batches, as Spark 4.2 plans them until a query with `Trigger.AvailableNow` ends."""
    start, found = reader.initialOffset(), []
    while (end := reader.latestOffset(start, limit)) != start:
        reader.partitions(start, end)
        found.append(offsets(end))
        start = end
        assert len(found) < 100
    return found


@pytest.mark.slow
def test_available_now_reads_the_log_as_it_was_in_several_micro_batches(server: OttlaProcess) -> None:
    reader = stream(server, maxOffsetsPerTrigger="8", minOffsetsPerTrigger="8")
    reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    write(server, "in", first=END)
    create_topic(server.bootstrap, "in-later", partitions=2)
    write(server, "in-later")
    ends = micro_batches(reader, ReadMaxRows())
    assert ends == [{"in-0": n, "in-1": n} for n in (4, 8, 10)], "the rest of 4 is read although it is less than 8"
    again = stream(server, maxOffsetsPerTrigger="1000")
    again.prepareForTriggerAvailableNow()
    assert micro_batches(again, ReadMaxRows())[-1] == {"in-0": 20, "in-1": 20, "in-later-0": 10, "in-later-1": 10}
    reader.stop()
    again.stop()


@pytest.mark.slow
def test_the_start_of_a_micro_batch_and_the_limit_of_its_trigger_are_sparks(server: OttlaProcess) -> None:
    reader = stream(server, maxOffsetsPerTrigger="4")
    start = reader.initialOffset()
    reader.partitions(start, start | {"offsets": {"in": {"0": 9, "1": 9}}})
    assert offsets(reader.latestOffset(start, ReadMaxRows())) == {"in-0": 2, "in-1": 2}, "not the remembered position"
    assert offsets(reader.latestOffset()) == {"in-0": 10, "in-1": 10}, "Spark 4.0 and 4.1 pass nothing"
    assert offsets(reader.latestOffset(start, ReadAllAvailable())) == {"in-0": 10, "in-1": 10}
    reported = reader.reportLatestOffset()
    assert reported is not None
    assert offsets(reported) == {"in-0": 10, "in-1": 10}
    reader.stop()


@pytest.mark.slow
def test_pushed_filters_restrict_the_ranges_of_a_batch(server: OttlaProcess) -> None:
    def ranges(*filters: Any) -> list[tuple[int, int, int]]:
        given = {"kafka.bootstrap.servers": server.bootstrap, "subscribe": "in"}
        reader = FilteringBatchReader(source_options(given, streaming=False), tuple(COLUMNS))
        assert reader.pushFilters(list(filters)) == [one for one in filters if one.attribute == ("timestamp",)]
        found = [part.wanted for part in reader.partitions() if isinstance(part, RangePartition)]
        return [(r.partition, r.first_offset, r.end_offset) for r in found]

    assert ranges() == [(0, 0, END), (1, 0, END)]
    assert ranges(IsNotNull(("partition",)), EqualTo(("partition",), 1)) == [(1, 0, END)]
    assert ranges(EqualTo(("offset",), 7)) == [(0, 7, 8), (1, 7, 8)]
    late = GreaterThanOrEqual(("timestamp",), times(6))
    assert ranges(late, EqualTo(("partition",), 0)) == [(0, 6, END)]
    assert ranges(GreaterThanOrEqual(("timestamp",), times(100))) == []


def test_filters_are_offered_only_where_spark_passes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every other worker Spark 4.1 and later refuse a reader with `pushFilters`."""
    from pyspark.sql.types import LongType, StructType

    source = OttlaDataSource({"kafka.bootstrap.servers": "localhost:1", "subscribe": "in"})
    schema = StructType().add("offset", LongType())
    assert type(source.reader(schema)) is BatchReader
    monkeypatch.setitem(sys.modules, spark_api._FILTER_WORKER, ModuleType("worker"))
    assert type(source.reader(schema)) is FilteringBatchReader
