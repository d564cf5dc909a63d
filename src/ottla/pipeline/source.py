"""Reads a topic for a load: log start and end offsets, and ranges of partitions as Arrow batches in the task's process.

Works with any broker that speaks Kafka's protocol. The reader is the one of `format("ottla")`
(`connector/range_reader.py`, `connector/decoding.py`); only the columns differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.addresses import parse_addresses
from ottla.client.cluster import ClientOptions
from ottla.client.offsets import OffsetBounds
from ottla.pipeline.connector.columns import COLUMNS
from ottla.pipeline.connector.decoding import Batches
from ottla.pipeline.connector.decoding import decode as decode_columns
from ottla.pipeline.connector.offset_client import OffsetClient
from ottla.pipeline.connector.offset_counts import OffsetCounts
from ottla.pipeline.connector.options import WAIT_S, BrokerOptions, ReadOptions
from ottla.pipeline.connector.range_reader import PartitionRange, RangeReader
from ottla.pipeline.connector.subscription import TopicSubscription
from ottla.pipeline.offset_range import OffsetRange
from ottla.pipeline.topic_reader import RECORDS, TIME

CLIENT_ID = "ottla-pipeline"
_MISSING = pa.scalar(-1000, TIME)
"""The -1 ms of a record without a timestamp."""
_BEYOND = pa.scalar((1 << 63) - 1, TIME)
_NAMES = ("partition", "offset", "timestamp", "key", "value")


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic's id, and the offset bounds of its partitions."""

    topic_id: str
    """Kafka's text form; changes when a topic is deleted and made again. Empty for brokers older than topic ids."""
    bounds: Mapping[int, OffsetBounds]


@dataclass(frozen=True, slots=True)
class Brokers:
    """The brokers of a topic, and the options for reading it. Serialized to the tasks."""

    bootstrap: str
    client: ClientOptions = field(default_factory=lambda: ClientOptions(client_id=CLIENT_ID, retry_s=60.0))
    """Patience, TLS and who signs in: `client/properties.py` reads it from Kafka's settings."""
    read_committed: bool = False
    wait_s: float = WAIT_S
    """The time to wait at the start for brokers that cannot be reached."""

    @property
    def read_options(self) -> ReadOptions:
        """The same for the connector. Raises ValueError if the addresses are none."""
        return ReadOptions(
            BrokerOptions(parse_addresses(self.bootstrap), self.client, self.wait_s),
            read_committed=self.read_committed,
            loss_advice='run the load again; with on_loss = "skip" it continues without them',
        )


def topic_state(offset_client: OffsetClient, topic: str) -> TopicState:
    """Return the topic's id and the bounds of its partitions now. Raises NoSuchTopic, KafkaError or CannotConnect."""
    topics = offset_client.topics(TopicSubscription(topics=(topic,)))
    bounds = offset_client.bounds(topics.partitions)
    return TopicState(topics.ids[topic], {tp.partition: found for tp, found in sorted(bounds.items())})


@dataclass(frozen=True, slots=True)
class BrokerReader:
    """A `TopicReader` of the brokers. It is pickled to the tasks and connects there."""

    brokers: Brokers
    topic: str
    topic_id: str = ""
    """If it is given, a recreated topic is not read."""
    headers: bool = False
    """Whether to bring the column `headers` besides those of `RECORDS`."""

    def read(self, offsets: OffsetRange, offset_counts: OffsetCounts | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the records of the range; the outcome of every offset is counted in `offset_counts` once all are read.

        Raises DataLoss where offsets were deleted, the broker's KafkaError, CannotConnect, CorruptMessage.
        """
        partition_range = PartitionRange(
            self.topic, offsets.partition, offsets.first_offset, offsets.end_offset, self.topic_id
        )
        reader = RangeReader(self.brokers.read_options, partition_range)
        for batches in reader.batches():
            rows = 0
            for found in decode(batches, self.topic, offsets, headers=self.headers):
                rows += found.num_rows
                yield found
            reader.count_decoded(batches, rows)
        if offset_counts is not None:
            offset_counts.add(reader.offset_counts)


def decode(batches: Batches, topic: str, offsets: OffsetRange, *, headers: bool = False) -> Iterator[pa.RecordBatch]:
    """Decode batches of one partition to rows of `RECORDS`, without those outside the range. A missing time is null."""
    schema = RECORDS.append(pa.field("headers", COLUMNS["headers"].arrow)) if headers else RECORDS
    for found in decode_columns(
        batches,
        topic=topic,
        partition=offsets.partition,
        first_offset=offsets.first_offset,
        end_offset=offsets.end_offset,
        names=(*_NAMES, "headers") if headers else _NAMES,
    ):
        columns = found.columns
        columns[2] = _with_nulls(columns[2])
        yield pa.record_batch(columns, schema=schema)


def _with_nulls(times: pa.Array) -> pa.Array:
    """Return times with null for those a producer gave none. Those beyond microseconds are as far off as can be."""
    known = pc.fill_null(times, _BEYOND) if times.null_count else times
    lowest = pc.min(known).cast(pa.int64()).as_py()
    if lowest is None or lowest >= 0:
        return known
    return pc.if_else(pc.equal(known, _MISSING), pa.scalar(None, times.type), known)
