"""The sink's tasks on a real broker: what a repeat writes after an attempt that died anywhere."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

from ottla.client.addresses import parse_addresses
from ottla.core.errors import InvalidProducerEpoch
from ottla.pipeline.connector import sink
from ottla.pipeline.connector.control_topic import TaskId
from ottla.pipeline.connector.options import BrokerOptions
from ottla.pipeline.connector.record_rows import InvalidRow, RowReader
from ottla.pipeline.connector.sink import ReplayMismatch, StreamWriter, WriteJob, write_task
from ottla.pipeline.connector.sink_options import SinkOptions
from tests.conftest import Broker
from tests.support.topics import create_topic, read_with_librdkafka

pytestmark = pytest.mark.external
COLUMNS = ("key", "value")
PARTITIONS = 3


class Dies(Exception):
    """An attempt ends here."""


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"out-{uuid.uuid4().hex[:10]}"
    create_topic(broker.bootstrap, name, partitions=PARTITIONS)
    return name


def job(broker: Broker, topic: str, *, columns: tuple[str, ...] = COLUMNS, **options: object) -> WriteJob:
    settings = {
        "connection": BrokerOptions(parse_addresses(broker.bootstrap)),
        "topic": topic,
        "batch_bytes": 400,
        **options,
    }
    return WriteJob(SinkOptions(**settings), RowReader(columns, topic), "write")  # type: ignore[arg-type]


def task(epoch: int = 0, query: str | None = None) -> TaskId:
    return TaskId(query or uuid.uuid4().hex, 0, epoch)


Pair = tuple[bytes | None, bytes]


def batches_of(rows: Sequence[Pair], *, dies_after: int | None = None, size: int = 7) -> Iterator[pa.RecordBatch]:
    for first in range(0, len(rows), size):
        part = rows[first : first + size]
        keys, values = pa.array([k for k, _ in part], pa.binary()), pa.array([v for _, v in part], pa.binary())
        yield pa.record_batch({"key": keys, "value": values})
        if dies_after is not None and first + size >= dies_after:
            raise Dies


def in_topic(broker: Broker, topic: str) -> Counter[Pair]:
    return Counter(
        (row.key, row.value)  # type: ignore[misc]
        for partition in range(PARTITIONS)
        for row in read_with_librdkafka(broker.bootstrap, topic, end_offset=1 << 40, partition=partition)
    )


def some_rows(chance: random.Random, count: int = 100) -> list[Pair]:
    """Keyed and keyless rows, some of them alike."""
    return [
        (chance.choice([None, b"", b"k%d" % chance.randrange(9)]), b"%d" % chance.randrange(count // 2))
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(6))
def test_a_task_killed_anywhere_and_retried_in_another_order_writes_each_row_once(
    broker: Broker, topic: str, seed: int
) -> None:
    chance = random.Random(seed)
    rows, this, what = some_rows(chance), task(), job(broker, topic)
    repeated = 0
    for _ in range(chance.randrange(1, 4)):
        with pytest.raises(Dies):
            write_task(what, this, batches_of(chance.sample(rows, len(rows)), dies_after=chance.randrange(5, 95)))
    done = write_task(what, this, batches_of(chance.sample(rows, len(rows))))
    repeated = done.repeated
    assert in_topic(broker, topic) == Counter(rows)
    assert done.rows == len(rows)
    assert repeated > 0, "the attempts before had written something, or the test shows nothing"


def test_a_completed_task_writes_nothing_when_it_is_retried(broker: Broker, topic: str) -> None:
    rows, this, what = some_rows(random.Random(1)), task(), job(broker, topic)
    assert write_task(what, this, batches_of(rows)).repeated == 0
    assert write_task(what, this, batches_of(rows)).repeated == len(rows)
    assert in_topic(broker, topic) == Counter(rows)


def test_the_next_micro_batch_of_the_same_rows_is_written_again(broker: Broker, topic: str) -> None:
    rows, what = some_rows(random.Random(2)), job(broker, topic)
    query = uuid.uuid4().hex
    for epoch in (0, 1, 2):
        assert write_task(what, task(epoch, query), batches_of(rows)).repeated == 0
    assert in_topic(broker, topic) == Counter({row: 3 * count for row, count in Counter(rows).items()})


@pytest.fixture
def control_topic(broker: Broker) -> str:
    return f"control-{uuid.uuid4().hex[:10]}"


def delete_topic(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (future,) = admin.delete_topics([topic]).values()
    future.result(30)


def test_a_micro_batch_whose_entries_are_gone_is_refused(
    broker: Broker, topic: str, control_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows, query = some_rows(random.Random(3)), uuid.uuid4().hex
    what = job(broker, topic, control_topic=control_topic)
    write_task(what, task(0, query), batches_of(rows))
    with pytest.raises(Dies):
        write_task(what, task(1, query), batches_of(rows, dies_after=50))
    written = in_topic(broker, topic)
    delete_topic(broker, control_topic)
    with pytest.raises(ReplayMismatch, match=f"the control topic {control_topic} has no entry of this query"):
        write_task(what, task(1, query), batches_of(rows))
    assert in_topic(broker, topic) == written, "nothing is written twice in silence"
    warning = job(broker, topic, control_topic=control_topic, fail_on_mismatch=False)
    write_task(warning, task(1, query), batches_of(rows))
    assert "was deleted or made again" in caplog.text
    assert in_topic(broker, topic) == written + Counter(rows)
    assert write_task(what, task(1, query), batches_of(rows)).repeated == len(rows), "the query is known again"


def test_a_control_topic_that_was_deleted_since_the_write_was_planned_is_noticed(
    broker: Broker, topic: str, control_topic: str
) -> None:
    rows, query = some_rows(random.Random(4)), uuid.uuid4().hex
    options = job(broker, topic, control_topic=control_topic).options
    what = sink.new_job(options, RowReader(COLUMNS, topic))
    with pytest.raises(Dies):
        write_task(what, task(0, query), batches_of(rows, dies_after=50))
    written = in_topic(broker, topic)
    delete_topic(broker, control_topic)
    with pytest.raises(ReplayMismatch, match="was deleted and made again since this write was planned"):
        write_task(what, task(0, query), batches_of(rows))
    assert in_topic(broker, topic) == written


def test_a_query_is_known_after_a_first_micro_batch_without_rows(
    broker: Broker, topic: str, control_topic: str
) -> None:
    rows, query = some_rows(random.Random(5)), uuid.uuid4().hex
    what = job(broker, topic, control_topic=control_topic)
    StreamWriter(what).commit([write_task(what, task(0, query), batches_of([]))], 0)
    write_task(what, task(1, query), batches_of(rows))
    assert in_topic(broker, topic) == Counter(rows)


def test_an_attempt_that_still_runs_is_refused_once_another_has_begun(broker: Broker, topic: str) -> None:
    rows, this, what = [(b"k", b"%d" % n) for n in range(100)], task(), job(broker, topic)

    def overtaken() -> Iterator[pa.RecordBatch]:
        yield from batches_of(rows[:50])
        write_task(what, this, batches_of(rows))
        yield from batches_of(rows[50:])

    with pytest.raises(InvalidProducerEpoch):
        write_task(what, this, overtaken())
    assert in_topic(broker, topic) == Counter(rows)


def test_rows_that_differ_from_the_first_attempt_are_an_error_or_a_warning(broker: Broker, topic: str) -> None:
    rows, this, what = [(b"k", b"%d" % n) for n in range(60)], task(), job(broker, topic)
    with pytest.raises(Dies):
        write_task(what, this, batches_of(rows, dies_after=50))
    others = [(b"k", b"other-%d" % n) for n in range(60)]
    with pytest.raises(ReplayMismatch, match=r"among none of its 60 rows .*onReplayMismatch=warn"):
        write_task(what, this, batches_of(others))
    kept = in_topic(broker, topic)
    assert all(kept[row] == 1 for row in others), "nothing is lost by it"
    message = write_task(job(broker, topic, fail_on_mismatch=False), this, batches_of(others))
    assert message.repeated == 60


def test_another_number_of_rows_than_were_written_is_a_mismatch(broker: Broker, topic: str) -> None:
    rows, this, what = some_rows(random.Random(3)), task(), job(broker, topic)
    write_task(what, this, batches_of(rows))
    with pytest.raises(ReplayMismatch, match="brings 99 rows, and 100 were written"):
        write_task(what, this, batches_of(rows[1:]))


def test_a_checkpoint_older_than_the_control_topic_is_reported(broker: Broker, topic: str) -> None:
    rows, query, what = some_rows(random.Random(4)), uuid.uuid4().hex, job(broker, topic)
    for epoch in (0, 5):
        write_task(what, task(epoch, query), batches_of(rows))
    with pytest.raises(ReplayMismatch, match="the checkpoint is older"):
        write_task(what, task(3, query), batches_of(rows))


def test_without_the_control_topic_a_repeat_writes_again(broker: Broker, topic: str) -> None:
    """Without deduplication: it is the control topic that keeps the tests above from writing twice."""
    rows, this, what = some_rows(random.Random(5)), task(), job(broker, topic, deduplicate=False)
    for _ in range(2):
        write_task(what, this, batches_of(rows))
    assert in_topic(broker, topic) == Counter({row: 2 * count for row, count in Counter(rows).items()})


def test_a_topic_that_gets_more_partitions_between_two_attempts_still_has_each_row_once(
    broker: Broker, topic: str
) -> None:
    import asyncio

    from ottla.client.admin import create_partitions
    from ottla.client.cluster import Cluster

    rows, this, what = some_rows(random.Random(6)), task(), job(broker, topic)
    with pytest.raises(Dies):
        write_task(what, this, batches_of(rows, dies_after=60))

    async def grow() -> None:
        async with await Cluster.connect(parse_addresses(broker.bootstrap)) as cluster:
            assert (await create_partitions(cluster, topic, PARTITIONS + 2)).error is None

    asyncio.run(grow())  # writing a task runs a loop of its own
    write_task(what, this, batches_of(rows))
    found = Counter(
        (row.key, row.value)
        for partition in range(PARTITIONS + 2)
        for row in read_with_librdkafka(broker.bootstrap, topic, end_offset=1 << 40, partition=partition)
    )
    assert found == Counter(rows)


def test_batches_too_large_for_the_topic_are_split_and_a_retry_recognises_them(broker: Broker) -> None:
    topic = f"small-{uuid.uuid4().hex[:10]}"
    create_topic(broker.bootstrap, topic, partitions=PARTITIONS, config={"max.message.bytes": "1200"})
    rows: list[Pair] = [(b"k", b"%d" % n * 40) for n in range(100, 160)]
    this, what = task(), job(broker, topic, batch_bytes=100_000)
    with pytest.raises(Dies):
        write_task(job(broker, topic, batch_bytes=3000), this, batches_of(rows, dies_after=45))
    assert write_task(what, this, batches_of(rows)).repeated > 0
    assert in_topic(broker, topic) == Counter(rows)


def test_invalid_rows_are_reported_with_their_number(broker: Broker, topic: str) -> None:
    columns = ("value", "partition", "topic", "headers")
    what = WriteJob(job(broker, topic).options, RowReader(columns, None), "write")
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

    def batch(
        name: str | None, partition: int | None, headers: Sequence[Mapping[str, object]] | None
    ) -> pa.RecordBatch:
        return pa.record_batch(
            {
                "value": pa.array([b"v"]),
                "partition": pa.array([partition], pa.int32()),
                "topic": pa.array([name], pa.string()),
                "headers": pa.array([headers], kind),
            }
        )

    nameless: list[Mapping[str, object]] = [{"key": None, "value": b"x"}]
    good: list[Mapping[str, object]] = [{"key": "h", "value": b"x"}, {"key": "h", "value": None}]
    for wrong, why in (
        (batch(None, 0, None), "null topic"),
        (batch(topic, 7, None), r"partition 7 of topic .*, which has 3"),
        (batch(topic, -1, None), "for partition -1"),
        (batch(topic, 0, nameless), "header without a name"),
    ):
        with pytest.raises(InvalidRow, match=why):
            write_task(what, task(), iter([wrong]))
    write_task(what, task(), iter([batch(topic, 2, good)]))
    (row,) = read_with_librdkafka(broker.bootstrap, topic, end_offset=1, partition=2)
    assert row.headers == (("h", b"x"), ("h", None))


def test_a_task_without_rows_asks_the_brokers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = WriteJob(SinkOptions(BrokerOptions(parse_addresses("127.0.0.1:1"))), RowReader(COLUMNS, "t"), "write")
    assert write_task(nobody, task(), iter([])).rows == 0
    assert sink.write_task(nobody, task(), batches_of([])).rows == 0
