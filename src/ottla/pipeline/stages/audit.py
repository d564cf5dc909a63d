"""The stage that takes the books of every topic a job loads."""

from __future__ import annotations

from ottla.pipeline.audit.format import as_json, verdict
from ottla.pipeline.audit.model import Sheet
from ottla.pipeline.audit.stage import AuditSpec, audit_load
from ottla.pipeline.connector.offset_client import Asker
from ottla.pipeline.stages.runner import Context, StageResult


def run(context: Context) -> StageResult:
    """The books; not ok if they do not balance. The report of the same round shows them."""
    sheets = take(context)
    context.sheets[:] = sheets
    lines = [f"{sheet.topic}: {line}" for sheet in sheets for line in verdict(sheet)]
    return StageResult("\n".join(lines), [as_json(s) for s in sheets], ok=all(s.balanced for s in sheets))


def take(context: Context) -> list[Sheet]:
    """The sheets of all topics. Raises KafkaError, CannotConnect, NoSuchTopicError, LoadError, LakeError."""
    told = context.job.sections["audit"]
    spec = AuditSpec(bucket_ms=told["bucket"], watermark=told["watermark"])
    sheets: list[Sheet] = []
    asker = Asker(context.job.brokers.reading)
    try:
        for load in context.job.loads:
            with context.teller.stage("audit") as stage:
                found = audit_load(load, spec, asker, stage.advance)
                stage.done("; ".join(f"{sheet.topic}: {verdict(sheet)[0]}" for sheet in found))
                sheets += found
    finally:
        asker.close()
    return sheets
