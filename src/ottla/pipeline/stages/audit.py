"""Audits every topic that a job loads: compares the offsets of the log with those of the table and its quarantine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from ottla.client.admin import describe_configs
from ottla.client.audit import ProducedCount
from ottla.client.audit_topic import read_counts
from ottla.core.errors import KafkaError
from ottla.core.settings import ConfigResourceType
from ottla.pipeline.audit.compare import DISCREPANCIES_MAX
from ottla.pipeline.audit.format import as_json, verdict
from ottla.pipeline.audit.model import TopicAudit
from ottla.pipeline.audit.run import AuditInputs, audit, write_watermark
from ottla.pipeline.connector.offset_client import OffsetClient
from ottla.pipeline.connector.range_reader import connect
from ottla.pipeline.errors import FailureKind
from ottla.pipeline.loading.load import OF_ALL_TOPICS, LoadSpec, TopicFailure, resolve_topics, with_names
from ottla.pipeline.loading.plan import CannotLoad
from ottla.pipeline.source import BrokerReader, Brokers, topic_state
from ottla.pipeline.stages.load import worst_kind
from ottla.pipeline.stages.runner import Context, StageResult


def run(context: Context) -> StageResult:
    """Audit all topics; the result is not ok if one does not balance. The report of the same round shows the audits.

    A topic that cannot be audited stops none of the others. Raises what `audit_topics` raises, and the first error if
    no topic can be audited.
    """
    audits: list[TopicAudit] = []
    failures = audit_topics(context, audits)
    if failures and not audits:
        raise failures[0].error
    context.topic_audits[:] = audits
    lines = [f"{topic_audit.topic}: {line}" for topic_audit in audits for line in verdict(topic_audit)]
    lines += [f"{failure.topic}: not audited: {failure.text}" for failure in failures]
    documents = [*map(as_json, audits), *({"topic": f.topic, "failed": f.text} for f in failures)]
    balanced = all(topic_audit.balanced for topic_audit in audits)
    end = worst_kind(failures) if failures and balanced else FailureKind.FAILED
    return StageResult("\n".join(lines), documents, ok=balanced and not failures, failure=end)


def audit_topics(context: Context, audits: list[TopicAudit]) -> list[TopicFailure]:
    """Audit the topics of every load and add each audit to `audits`; return the topics that could not be audited.

    Raises CannotConnect.
    """
    failures: list[TopicFailure] = []
    with contextlib.closing(OffsetClient(context.job.brokers.read_options)) as offset_client:
        for load in context.job.loads:
            with context.reporter.stage("audit") as stage:
                topic_audits: list[TopicAudit] = []
                failures += _audit_load(context, load, offset_client, stage.advance, topic_audits)
                stage.done("; ".join(f"{topic_audit.topic}: {verdict(topic_audit)[0]}" for topic_audit in topic_audits))
                audits += topic_audits
    return failures


def _audit_load(
    context: Context,
    load: LoadSpec,
    offset_client: OffsetClient,
    progress: Callable[[int], None],
    audits: list[TopicAudit],
) -> list[TopicFailure]:
    try:
        topics = resolve_topics(load, offset_client)
    except (CannotLoad, KafkaError) as error:
        return [TopicFailure(load.pattern or "", error)]
    failures = []
    for topic in topics:
        try:
            audits.append(audit_topic(context, load, topic, offset_client, progress))
        except OF_ALL_TOPICS:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the other topics are none the worse for it
            failures.append(TopicFailure(topic, error))
    return failures


def audit_topic(
    context: Context,
    load: LoadSpec,
    topic: str,
    offset_client: OffsetClient,
    progress: Callable[[int], None] = lambda _: None,
    *,
    discrepancies_max: int = DISCREPANCIES_MAX,
) -> TopicAudit:
    """Audit one topic of a load. Raises KafkaError, CannotConnect, NoSuchTopic, TableMismatch."""
    settings = context.job.sections["audit"]
    now_ms = context.clock.wall_ms()  # before the log's end is read: later records are not audited
    tables, state = load.tables(topic), topic_state(offset_client, topic)
    produced, compacted = _produced_counts(load.brokers, topic)
    changes = load.mapping.changes is not None
    content = bool(settings["content"]) and not changes  # rows that change have no offset each, to compare sums of
    reader = BrokerReader(load.brokers, topic, state.topic_id, headers=content)
    mapping = None
    if (content or changes) and tables.table.exists():
        mapping = with_names(load, topic, state, tables).mapping
    inputs = AuditInputs(
        topic, state.bounds, compacted, reader, tables.table, tables.quarantine, state.topic_id, mapping
    )
    bucket_ms = settings["bucket"]
    topic_audit = audit(
        inputs, produced, now_ms=now_ms, bucket_ms=bucket_ms, progress=progress, discrepancies_max=discrepancies_max
    )
    if settings["watermark"]:
        write_watermark(tables.table, topic_audit)
    return topic_audit


def _produced_counts(brokers: Brokers, topic: str) -> tuple[list[ProducedCount], bool]:
    """Read the counts that producers reported, and whether the topic is compacted."""

    async def read() -> tuple[list[ProducedCount], bool]:
        async with await connect(brokers.read_options.connection) as cluster:
            entries = await describe_configs(cluster, ConfigResourceType.TOPIC, topic)
            policy = next((entry.value for entry in entries if entry.name == "cleanup.policy"), None)
            return await read_counts(cluster), "compact" in (policy or "")

    return asyncio.run(read())
