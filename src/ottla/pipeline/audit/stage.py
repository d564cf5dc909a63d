"""The stage of a job that takes the books of every topic it loads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from ottla.client.admin import ResourceType, describe_configs
from ottla.client.audit import BUCKET_MS, ProducedCount
from ottla.client.audit_topic import read_counts
from ottla.pipeline.audit.model import TopicAudit
from ottla.pipeline.audit.run import AuditInputs, audit, write_watermark
from ottla.pipeline.connector.offset_client import OffsetClient
from ottla.pipeline.connector.range_reader import connect
from ottla.pipeline.loading.load import LoadSpec, resolve_topics
from ottla.pipeline.source import BrokerReader, Brokers, topic_state


@dataclass(frozen=True, slots=True)
class AuditSpec:
    """How the books are taken."""

    bucket_ms: int = BUCKET_MS
    watermark: bool = True


def audit_load(
    load: LoadSpec, spec: AuditSpec, offset_client: OffsetClient, progress: Callable[[int], None] = lambda _: None
) -> list[TopicAudit]:
    """The sheets of a load's topics. Raises KafkaError, CannotConnect, NoSuchTopic and what reading raises."""
    topic_audits = []
    for topic in resolve_topics(load, offset_client):
        tables, state = load.tables(topic), topic_state(offset_client, topic)
        reports, compacts = _asked(load.brokers, topic)
        what = AuditInputs(
            topic,
            state.bounds,
            compacts,
            BrokerReader(load.brokers, topic, state.topic_id),
            tables.table,
            tables.quarantine,
        )
        topic_audit = audit(what, reports, bucket_ms=spec.bucket_ms, progress=progress)
        if spec.watermark:
            write_watermark(tables.table, topic_audit)
        topic_audits.append(topic_audit)
    return topic_audits


def _asked(brokers: Brokers, topic: str) -> tuple[list[ProducedCount], bool]:
    """What producers report, and whether the topic is compacted."""

    async def ask() -> tuple[list[ProducedCount], bool]:
        async with await connect(brokers.reading.place) as cluster:
            entries = await describe_configs(cluster, ResourceType.TOPIC, topic)
            policy = next((entry.value for entry in entries if entry.name == "cleanup.policy"), None)
            return await read_counts(cluster), "compact" in (policy or "")

    return asyncio.run(ask())
