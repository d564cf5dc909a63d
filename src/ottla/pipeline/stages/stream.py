"""The stage that keeps aggregates up to date: every `[[stream]]` of a job, one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ottla.pipeline.connector.offset_client import OffsetClient
from ottla.pipeline.job_file.stream_section import streams_of
from ottla.pipeline.session import spark_step
from ottla.pipeline.stages.runner import Context, StageResult
from ottla.pipeline.stream.errors import InvalidExpression, InvalidFunction
from ottla.pipeline.stream.stage import StreamSpec, run_stream
from ottla.pipeline.stream.update import UpdateResult


def run(context: Context) -> StageResult:
    """Bring every stream up to what its source holds.

    Raises InvalidFunction, InvalidExpression, SparkFailed, TableMismatch.
    """
    told: dict[str, Any] = {}
    lines = []
    offset_client = OffsetClient(context.job.brokers.reading)
    try:
        for spec in streams_of(context.job.sections, lake=context.job.lake):
            with context.teller.stage("stream") as stage:
                session = context.spark.session()
                with _named(spec), spark_step(f"stream {spec.stream.name}", context.spark.options.log):
                    done = run_stream(spec, context.job.brokers, offset_client, session)
                told[spec.stream.name] = asdict(done)
                lines.append(_line(spec, done))
                stage.done(lines[-1])
    finally:
        offset_client.close()
    return StageResult("\n".join(lines), told)


@contextlib.contextmanager
def _named(spec: StreamSpec) -> Iterator[None]:
    """A mistake in a stream is told with the stream's name."""
    try:
        yield
    except (InvalidExpression, InvalidFunction) as error:
        raise type(error)(f"stream {spec.stream.name}: {error}") from error


def _line(spec: StreamSpec, done: UpdateResult) -> str:
    published = f", {done.published:,} records in topic {spec.topic}" if spec.topic else ""
    return f"{spec.source.name} -> {spec.stream.name}: {done.windows:,} windows, {done.rows:,} rows{published}"
