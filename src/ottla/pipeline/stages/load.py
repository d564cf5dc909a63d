"""Runs the `[[load]]` sections of a job, one after the other, and the replay of quarantined records."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from ottla.pipeline.errors import FailureKind, failure_kind_of, is_expected
from ottla.pipeline.loading.load import (
    BackfillRange,
    LoadOutcome,
    LoadSpec,
    TopicFailure,
    TopicLoad,
    load_topics,
    redrive_topics,
    replay_topics,
)
from ottla.pipeline.loading.redrive import Redriven
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


def redrive_stage(context: Context, *, redrives_max: int, dry_run: bool) -> StageResult:
    """Produce dead letters again to the topics that they came from."""
    done: list[Redriven] = []
    failures: list[TopicFailure] = []
    for spec in context.job.loads:
        if spec.dead_letters or len(context.job.loads) == 1:
            redriven, failed = redrive_topics(spec, redrives_max=redrives_max, dry_run=dry_run)
            done += redriven
            failures += failed
    if failures and not done:
        raise failures[0].error
    lines = [_redriven_line(one, dry_run=dry_run) for one in done]
    lines += [f"{failure.topic}: not redriven: {failure.text}" for failure in failures]
    documents = [*map(asdict, done), *({"topic": f.topic, "failed": f.text} for f in failures)]
    return StageResult(
        "\n".join(lines), documents, not failures, worst_kind(failures) if failures else FailureKind.FAILED
    )


def _redriven_line(one: Redriven, *, dry_run: bool) -> str:
    given_up = f", {one.given_up:,} given up: they were produced again as often as may be" if one.given_up else ""
    verb = "would be produced again" if dry_run else "produced again"
    return f"{one.dead_letters} -> {one.topic}: {one.redriven:,} {verb}{given_up}"


def _each(context: Context, name: str, work: Callable[[LoadSpec, StageProgress], LoadOutcome]) -> StageResult:
    """Run every load. A topic that fails stops none of the others; if all fail, the first error is raised."""
    done: list[TopicLoad] = []
    failures: list[TopicFailure] = []
    excessive: list[TopicLoad] = []
    for spec in context.job.loads:
        with context.reporter.stage(name) as stage:
            outcome = work(spec, stage)
            if name == "load":  # a replay leaves in the quarantine what does not parse yet
                excessive += [t for t in outcome.done if spec.quarantines_too_much(t.records, t.quarantined)]
            stage.done("; ".join([*map(_line, outcome.done), *map(_failure_line, outcome.failures)]))
            done += outcome.done
            failures += outcome.failures
    if failures and not done:
        for failure in failures[1:]:
            context.reporter.warn(_failure_line(failure))
        raise failures[0].error
    _warn(context, done, excessive, failures)
    lines = [line for topic in done for line in (_line(topic), *_reasons(topic))] + [*map(_failure_line, failures)]
    documents = [*map(as_json, done), *({"topic": f.topic, "failed": f.text} for f in failures)]
    worst = worst_kind(failures) if failures else FailureKind.QUARANTINED
    return StageResult("\n".join(lines), documents, not (excessive or failures), worst)


def worst_kind(failures: Sequence[TopicFailure]) -> FailureKind:
    """Return how a command ends after failures: FAILED before any other kind."""
    kinds = [failure_kind_of(failure.error)[0] for failure in failures]
    return FailureKind.FAILED if FailureKind.FAILED in kinds else kinds[0]


def _warn(
    context: Context, done: Sequence[TopicLoad], excessive: Sequence[TopicLoad], failures: Sequence[TopicFailure]
) -> None:
    for topic in done:
        for lost in topic.lost:
            text = deleted_text(lost.first_offset, lost.end_offset)
            context.reporter.warn(f"{topic.topic}-{lost.partition}: {text}; skipped")
    for topic in excessive:
        context.reporter.warn(
            f"{topic.topic}: {topic.quarantined:,} of {topic.records:,} records were quarantined, which the load's "
            "quarantine_max does not allow. Look at the reasons, correct the load, and run `ottla pipeline replay`"
        )
    for failure in failures:
        advice = failure_kind_of(failure.error)[1]
        context.reporter.warn(_failure_line(failure) + (f" ({advice})" if advice else ""))
        if not is_expected(failure.error):
            context.reporter.warn("".join(traceback.format_exception(failure.error)).rstrip())


def _failure_line(failure: TopicFailure) -> str:
    return f"{failure.topic}: not loaded: {failure.text}"


def _reasons(load: TopicLoad) -> list[str]:
    """List why records were quarantined, the most frequent first."""
    most = sorted(load.reasons.items(), key=lambda reason: (-reason[1], reason[0]))[:_REASONS_SHOWN]
    return [f"  {count:,} quarantined: {why}" for why, count in most]


def _line(load: TopicLoad) -> str:
    quarantined = f", {load.quarantined:,} quarantined" if load.quarantined else ""
    late = f" ({load.late:,} late)" if load.late else ""
    letters = f", {load.dead_letters:,} dead letters" if load.dead_letters else ""
    size = f", {load.files:,} files of {size_text(load.size_bytes)}" if load.files else ""
    return f"{load.topic} -> {load.table}: {load.rows:,} rows{late}{quarantined}{letters}{size}; lag {load.lag:,}"


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
