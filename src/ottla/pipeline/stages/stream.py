"""Updates the aggregates of a job: every `[[stream]]`, one after the other."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ottla.core.runtime import new_uuid
from ottla.pipeline.connector.offset_client import NoSuchTopic, OffsetClient, check_brokers
from ottla.pipeline.job_file.job import PipelineJob
from ottla.pipeline.job_file.schema import Values
from ottla.pipeline.job_file.stream_section import SECOND_MS
from ottla.pipeline.lake.lake import Lake
from ottla.pipeline.lake.lake_table import RACES_MAX, CommitConflict, LakeTable, topics_of
from ottla.pipeline.session import spark_step
from ottla.pipeline.source import Brokers, topic_state
from ottla.pipeline.stages.runner import Context, StageResult
from ottla.pipeline.stream.aggregate import Aggregate, Windows, function_of
from ottla.pipeline.stream.errors import InvalidExpression, InvalidFunction
from ottla.pipeline.stream.measures import parse_measure
from ottla.pipeline.stream.publisher import TopicPublisher
from ottla.pipeline.stream.results import Results
from ottla.pipeline.stream.update import LateRowPolicy, LoadedRanges, ResultUpdater, Stream, UpdateResult

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """A stream with its source, and with the table and the topic of its results."""

    stream: Stream
    source: LakeTable
    results: LakeTable
    topic: str | None = None
    """The compacted topic of the results, if they are published."""
    partitions: int = 1
    """Of that topic, where it has to be made."""


def run(context: Context) -> StageResult:
    """Bring every stream up to what its source holds.

    Raises InvalidFunction, InvalidExpression, SparkFailed, TableMismatch.
    """
    results: dict[str, Any] = {}
    lines = []
    read_options = context.job.brokers.read_options
    check_brokers(read_options.connection)  # before Spark starts, which takes seconds
    offset_client = OffsetClient(read_options)
    try:
        for spec in streams_of(context.job):
            with context.reporter.stage("stream") as stage:
                session = context.spark.session()
                with _named(spec), spark_step(f"stream {spec.stream.name}", context.spark.options.log):
                    done = run_stream(spec, context.job.brokers, offset_client, session)
                results[spec.stream.name] = asdict(done)
                lines.append(_line(spec, done))
                stage.done(lines[-1])
    finally:
        offset_client.close()
    return StageResult("\n".join(lines), results)


@contextlib.contextmanager
def _named(spec: StreamSpec) -> Iterator[None]:
    """Add the stream's name to the errors of its definition."""
    try:
        yield
    except (InvalidExpression, InvalidFunction) as error:
        raise type(error)(f"stream {spec.stream.name}: {error}") from error


def _line(spec: StreamSpec, done: UpdateResult) -> str:
    published = f", {done.published:,} records in topic {spec.topic}" if spec.topic else ""
    return f"{spec.source.name} -> {spec.stream.name}: {done.windows:,} windows, {done.rows:,} rows{published}"


def run_stream(spec: StreamSpec, brokers: Brokers, offset_client: OffsetClient, spark: SparkSession) -> UpdateResult:
    """Bring the results up to what the source table holds. Raises what `ResultUpdater.advance` raises.

    A source that was never loaded gives nothing. If another process runs the same stream, the
    loser of a commit continues from the winner's results, a few times.
    """
    if not spec.source.exists():
        return UpdateResult(0, 0, 0)
    publish = None if spec.topic is None else TopicPublisher(brokers, spec.topic, spec.partitions)
    for attempt in range(1, RACES_MAX + 1):
        results = Results(spec.results, spec.stream.key, stem=f"{spec.stream.name}-{new_uuid().hex[:12]}")
        try:
            return ResultUpdater(spark, spec.stream, spec.source, results, publish).advance(
                loaded_ranges(spec.source, offset_client)
            )
        except CommitConflict:
            if attempt == RACES_MAX:
                raise
    raise AssertionError("the last attempt returns or raises")


def loaded_ranges(source: LakeTable, offset_client: OffsetClient) -> LoadedRanges:
    """Return the loaded offsets of every topic of a table. A topic that no longer exists brings nothing new."""
    found = {}
    for topic in topics_of(source):
        try:
            partitions = topic_state(offset_client, topic).bounds
        except NoSuchTopic:
            continue
        found[topic] = source.positions(topic, partitions)
    return found


def streams_of(job: PipelineJob) -> list[StreamSpec]:
    """Build the streams of a job. Raises InvalidFunction."""
    return [_stream(stream, job.lake, job.functions) for stream in job.sections["stream"]]


def _stream(values: Values, lake: Lake, functions: Collection[str]) -> StreamSpec:
    windows = Windows(_seconds(values["window"]), _seconds(values["slide"]) if values["slide"] else "")
    if values["function"]:
        compute: Any = function_of(values["function"], functions)
    else:
        measures = [parse_measure(name, text) for name, text in values["values"].items()]
        compute = Aggregate(windows, measures, values["by"], values["columns"], values["where"] or "", functions)
    counted = ("from", "window", "slide", "by", "where", "late", "function", "columns", "values")
    definition = json.dumps({name: values[name] for name in counted})
    stream = Stream(values["name"], windows, compute, values["by"], definition, LateRowPolicy(values["late"]))
    return StreamSpec(
        stream, lake.existing_table(values["from"]), lake.table(values["name"]), values["topic"], values["partitions"]
    )


def _seconds(span_ms: int) -> str:
    return f"{span_ms // SECOND_MS} seconds"
