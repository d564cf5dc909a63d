"""The stage that takes the books of every topic a job loads."""

from __future__ import annotations

from ottla.pipeline.audit.format import as_json, verdict
from ottla.pipeline.audit.model import TopicAudit
from ottla.pipeline.audit.stage import AuditSpec, audit_load
from ottla.pipeline.connector.offset_client import OffsetClient
from ottla.pipeline.stages.runner import Context, StageResult


def run(context: Context) -> StageResult:
    """The books; not ok if they do not balance. The report of the same round shows them."""
    topic_audits = take(context)
    context.topic_audits[:] = topic_audits
    lines = [f"{topic_audit.topic}: {line}" for topic_audit in topic_audits for line in verdict(topic_audit)]
    return StageResult("\n".join(lines), [as_json(s) for s in topic_audits], ok=all(s.balanced for s in topic_audits))


def take(context: Context) -> list[TopicAudit]:
    """The sheets of all topics. Raises KafkaError, CannotConnect, NoSuchTopic, CannotLoad, TableMismatch."""
    told = context.job.sections["audit"]
    spec = AuditSpec(bucket_ms=told["bucket"], watermark=told["watermark"])
    topic_audits: list[TopicAudit] = []
    offset_client = OffsetClient(context.job.brokers.reading)
    try:
        for load in context.job.loads:
            with context.teller.stage("audit") as stage:
                found = audit_load(load, spec, offset_client, stage.advance)
                stage.done("; ".join(f"{topic_audit.topic}: {verdict(topic_audit)[0]}" for topic_audit in found))
                topic_audits += found
    finally:
        offset_client.close()
    return topic_audits
