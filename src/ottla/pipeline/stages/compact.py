"""Maintains tables: merges small files, expires old versions, removes orphaned files."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ottla.pipeline.lake.intent import complete_intent
from ottla.pipeline.lake.lake_table import CommitConflict, LakeTable
from ottla.pipeline.lake.orphan_files import GRACE_MS, remove_orphans
from ottla.pipeline.lake.rewrite import compact
from ottla.pipeline.loading.commit_protocol import Tables
from ottla.pipeline.reporting.values import size_text
from ottla.pipeline.stages.runner import Context, StageResult


def run(context: Context) -> StageResult:
    """Maintain all tables that the job loads, with their quarantines."""
    results: dict[str, Any] = {}
    lines = []
    for tables in tables_of(context):
        complete_intent(tables.table, tables.quarantine, context.reporter.warn)
        for table in (tables.table, tables.quarantine):
            with context.reporter.stage("compact") as stage:
                results[table.name] = maintain_table(context, table)
                lines.append(_line(table.name, results[table.name]))
                stage.done(lines[-1])
    return StageResult("\n".join(lines), results)


def maintain_table(context: Context, table: LakeTable, *, grace_ms: int = GRACE_MS) -> dict[str, Any]:
    """Maintain one table. Raises LeaseTaken if another process does."""
    job, now_ms = context.job, context.clock.wall_ms()
    with table.store.lease("compact") as mine:
        try:
            merged = asdict(compact(table, mine.id, file_bytes=job.compact_file_bytes))
        except CommitConflict:  # a backfill committed meanwhile: the next round merges what is there then
            merged = {"files_before": 0, "files_after": 0, "rows": 0, "size_bytes": 0}
        expired = table.expire(now_ms - job.keep_ms)
        orphans = asdict(remove_orphans(table, now_ms=now_ms, grace_ms=grace_ms))
    return {"merged": merged, "expired_files": expired, "strays": orphans, "files": len(table.files())}


def tables_of(context: Context) -> list[Tables]:
    """Return the tables that the job's loads have made so far."""
    tableses: dict[str, Tables] = {}
    for spec in context.job.loads:
        for topic in spec.topics or ():
            tables = spec.tables(topic)
            tableses[tables.table.name] = tables
        if spec.pattern is not None:
            for name in spec.lake.table_names():
                tables = Tables(spec.lake.table(name), spec.lake.quarantine(name))
                if spec.covers(tables.table):
                    tableses[name] = tables
    return [tables for tables in tableses.values() if tables.table.exists() and tables.quarantine.exists()]


def _line(name: str, result: dict[str, Any]) -> str:
    merged, orphans = result["merged"], result["strays"]
    return (
        f"{name}: {merged['files_before']:,} small files into {merged['files_after']:,}, "
        f"{result['expired_files']:,} expired and {orphans['files']:,} orphaned ones deleted "
        f"({size_text(orphans['size_bytes'])}); {result['files']:,} files"
    )
