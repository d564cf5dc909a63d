"""Starting offsets and checkpoints beyond the end of the log, against a broker and without Spark's Java."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from ottla.core.ids import TopicPartition
from ottla.pipeline.connector import reader
from ottla.pipeline.connector.columns import COLUMNS
from ottla.pipeline.connector.options import source_options
from ottla.pipeline.connector.range_reader import DataLoss
from ottla.pipeline.connector.reader import BatchReader, RangePartition, StreamReader
from ottla.records.builder import NewRecord, build_batch
from tests.support.ottla_process import OttlaProcess
from tests.support.topics import create_topic, write_batches

pytestmark = pytest.mark.slow
END = 10


@pytest.fixture
def given(ottla_server: OttlaProcess, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(reader, "_ASK_AGAIN_S", 0.01)
    create_topic(ottla_server.bootstrap, "in", partitions=2)
    for partition in range(2):
        batch = bytes(build_batch([NewRecord(None, b"%d" % n, 1_600_000_000_000) for n in range(END)]))
        write_batches(ottla_server.bootstrap, "in", [batch], partition=partition)
    return {"kafka.bootstrap.servers": ottla_server.bootstrap, "subscribe": "in"}


def starting(partition_0: int) -> str:
    return json.dumps({"in": {"0": partition_0, "1": 3}})


def batch(given: dict[str, Any], **more: Any) -> list[tuple[int, int, int]]:
    found = BatchReader(source_options(given | more, streaming=False), tuple(COLUMNS)).partitions()
    ranges = [part.wanted for part in found if isinstance(part, RangePartition)]
    return [(r.partition, r.first_offset, r.end_offset) for r in ranges]


def stream(given: dict[str, Any], **more: Any) -> StreamReader:
    return StreamReader(source_options(given | more, streaming=True), tuple(COLUMNS))


def test_a_batch_that_starts_beyond_the_log_fails(given: dict[str, Any]) -> None:
    assert batch(given, startingOffsets=starting(END)) == [(1, 3, END)]
    with pytest.raises(DataLoss, match=r"in-0: offset 11 is beyond the end of the log, 10.*failOnDataLoss=false"):
        batch(given, startingOffsets=starting(END + 1))
    assert batch(given, startingOffsets=starting(END + 1), failOnDataLoss="false") == [(1, 3, END)]


def test_a_batch_with_times_or_ends_before_its_start_stays_empty(given: dict[str, Any]) -> None:
    assert batch(given, startingOffsets=starting(8), endingOffsets=starting(5)) == []


def test_a_stream_that_starts_beyond_the_log_fails(given: dict[str, Any]) -> None:
    made = stream(given, startingOffsets=starting(END + 5))
    made.initialOffset()
    with pytest.raises(DataLoss, match="in-0: offset 15 is beyond the end of the log, 10"):
        made.latestOffset()
    made.stop()


@pytest.mark.parametrize("limits", [{}, {"maxOffsetsPerTrigger": "4"}])
def test_a_stream_without_fail_on_data_loss_continues_at_the_end_of_the_log(
    given: dict[str, Any], limits: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    made = stream(given, startingOffsets=starting(END + 5), failOnDataLoss="false", **limits)
    with caplog.at_level(logging.WARNING):
        at = made.initialOffset()
        end = made.latestOffset()
        assert "in-0: offset 15 is beyond the end of the log, 10" in caplog.text
        assert end["offsets"]["in"]["0"] == END
        parts = [p.wanted.topic_partition for p in made.partitions(at, end) if isinstance(p, RangePartition)]
        assert parts == [TopicPartition("in", 1)]
        caplog.clear()
        made.latestOffset()
        assert "beyond" not in caplog.text
    made.stop()


def test_a_checkpoint_beyond_the_log_fails(given: dict[str, Any]) -> None:
    """The log was truncated, or this is another cluster without topic ids."""
    made = stream(given, startingOffsets="earliest")
    position = {"in": {"0": END + 1, "1": END}}
    made.partitions(position, position)
    with pytest.raises(DataLoss, match="in-0: offset 11 is beyond the end of the log, 10"):
        made.latestOffset()
    made.stop()
