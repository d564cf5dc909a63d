"""The stage of a job that keeps its streams up to date."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.pipeline.connector.offset_client import NoSuchTopic, OffsetClient
from ottla.pipeline.lake.port import CommitConflict, LakeTable, topics_of
from ottla.pipeline.source import Brokers, topic_state
from ottla.pipeline.stream.publisher import TopicPublisher
from ottla.pipeline.stream.results import Results
from ottla.pipeline.stream.update import LoadedRanges, ResultUpdater, Stream, UpdateResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RACES_MAX = 3


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """A stream with its places."""

    stream: Stream
    source: LakeTable
    results: LakeTable
    topic: str | None = None
    """The compacted topic of the results, if they are published."""
    partitions: int = 1
    """Of that topic, where it has to be made."""


def run_stream(spec: StreamSpec, brokers: Brokers, offset_client: OffsetClient, spark: SparkSession) -> UpdateResult:
    """Bring the results up to what the source table holds. Raises what `ResultUpdater.advance` raises.

    A source that was never loaded gives nothing. Where another process runs the same stream, whoever is later takes up
    from what the other left, a few times.
    """
    if not spec.source.exists():
        return UpdateResult(0, 0, 0)
    publish = None if spec.topic is None else TopicPublisher(brokers, spec.topic, spec.partitions)
    for attempt in range(1, RACES_MAX + 1):
        results = Results(spec.results, spec.stream.key, stem=f"{spec.stream.name}-{uuid.uuid4().hex[:12]}")
        try:
            return ResultUpdater(spark, spec.stream, spec.source, results, publish).advance(
                held(spec.source, offset_client)
            )
        except CommitConflict:
            if attempt == RACES_MAX:
                raise
    raise AssertionError("the last attempt returns or raises")


def held(source: LakeTable, offset_client: OffsetClient) -> LoadedRanges:
    """What the table holds of every topic it was loaded from. A topic that is no more brings nothing new."""
    found = {}
    for topic in topics_of(source):
        try:
            partitions = topic_state(offset_client, topic).bounds
        except NoSuchTopic:
            continue
        found[topic] = source.positions(topic, partitions)
    return found
