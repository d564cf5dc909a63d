"""Runs the `[[load]]` sections of a job, one after the other, and the replay of quarantined records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from ottla.pipeline.errors import FailureKind
from ottla.pipeline.loading.load import BackfillRange, LoadSpec, TopicLoad, load_topics, replay_topics
from ottla.pipeline.offset_range import deleted_text
from ottla.pipeline.progress import StageProgress
from ottla.pipeline.reporting.values import size_text
from ottla.pipeline.stages.runner import Context, StageResult

_REASONS_SHOWN = 5


def run(context: Context) -> StageResult:
    """Load what is new."""
    return load_stage(context, None)


def load_stage(context: Context, backfill: BackfillRange | None) -> StageResult:
    """Load new records, or backfill a range of offsets."""
    return _each(context, "load", lambda spec, stage: load_topics(spec, context.spark, stage, backfill=backfill))


def replay_stage(context: Context) -> StageResult:
    """Parse quarantined records again."""
    return _each(context, "replay", lambda spec, stage: replay_topics(spec, context.spark, stage))


def _each(context: Context, name: str, work: Callable[[LoadSpec, StageProgress], list[TopicLoad]]) -> StageResult:
    done: list[TopicLoad] = []
    excessive: list[TopicLoad] = []
    for spec in context.job.loads:
        with context.reporter.stage(name) as stage:
            loaded = work(spec, stage)
            if name == "load":  # a replay leaves in the quarantine what does not parse yet
                excessive += [topic for topic in loaded if spec.quarantines_too_much(topic.records, topic.quarantined)]
            stage.done("; ".join(_line(topic) for topic in loaded))
            done += loaded
    for topic in done:
        for lost in topic.lost:
            text = deleted_text(lost.first_offset, lost.end_offset)
            context.reporter.warn(f"{topic.topic}-{lost.partition}: {text}; skipped")
    for topic in excessive:
        context.reporter.warn(
            f"{topic.topic}: {topic.quarantined:,} of {topic.records:,} records were quarantined, which the load's "
            "quarantine_max does not allow. Look at the reasons, correct the load, and run `ottla pipeline replay`"
        )
    lines = [line for topic in done for line in (_line(topic), *_reasons(topic))]
    return StageResult("\n".join(lines), [as_json(topic) for topic in done], not excessive, FailureKind.QUARANTINED)


def _reasons(load: TopicLoad) -> list[str]:
    """List why records were quarantined, the most frequent first."""
    most = sorted(load.reasons.items(), key=lambda reason: (-reason[1], reason[0]))[:_REASONS_SHOWN]
    return [f"  {count:,} quarantined: {why}" for why, count in most]


def _line(load: TopicLoad) -> str:
    quarantined = f", {load.quarantined:,} quarantined" if load.quarantined else ""
    late = f" ({load.late:,} late)" if load.late else ""
    size = f", {load.files:,} files of {size_text(load.size_bytes)}" if load.files else ""
    return f"{load.topic} -> {load.table}: {load.rows:,} rows{late}{quarantined}{size}; lag {load.lag:,}"


def as_json(load: TopicLoad) -> dict[str, Any]:
    """Return the result as JSON values."""
    document = asdict(load) | {"lag": load.lag, "lost": [asdict(r) for r in load.lost]}
    document["positions"] = {str(p): offset for p, offset in load.positions.items()}
    document["log_ends"] = {str(p): offset for p, offset in load.log_ends.items()}
    return document


def select_loads(specs: Sequence[LoadSpec], tables: Sequence[str]) -> list[LoadSpec]:
    """Return the loads into some tables. Raises ValueError naming one that there is none into."""
    if unknown := set(tables) - {spec.table for spec in specs}:
        raise ValueError(f"the job loads nothing into {', '.join(sorted(unknown))}")
    return [replace(spec) for spec in specs if not tables or spec.table in tables]
