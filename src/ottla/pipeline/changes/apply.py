"""Applies the changes that tasks wrote to a table: merges the buckets they touch, and commits with the positions.

A commit is for exactly the files that it was merged with. Where another writer committed meanwhile (rows deleted,
files compacted), the same changes are merged again with what is there then; nothing of the other's is overwritten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ottla.pipeline.changes.bucket_files import BucketWork, MergeSpec
from ottla.pipeline.changes.merge import MergeRunner, merge_bucket
from ottla.pipeline.changes.rule import BUCKET, IS_CURRENT, ChangeRule
from ottla.pipeline.lake.file_writer import discard
from ottla.pipeline.lake.lake_table import (
    RACES_MAX,
    AppTransaction,
    Change,
    CommitConflict,
    LakeTable,
    NotContiguous,
    StagedFile,
    TableFile,
)
from ottla.pipeline.lake.rewrite import FileSwap, target_of
from ottla.pipeline.offset_range import OffsetRange


@dataclass(frozen=True, slots=True)
class ChangeApplier:
    """Applies changes to one table by its rule."""

    rule: ChangeRule
    merge_runner: MergeRunner
    stem: str
    file_bytes: int

    def commit(
        self,
        table: LakeTable,
        topic: str,
        ranges: Sequence[OffsetRange],
        changes: Sequence[StagedFile],
        transactions: Sequence[AppTransaction],
    ) -> list[StagedFile]:
        """Merge and commit; return the files that were added. The change files are removed, whatever happens.

        Raises NotContiguous if another load was first, CommitConflict if others commit all the time, and what the merge
        runner raises.
        """
        target = target_of(table, table.spec())
        try:
            for attempt in range(1, RACES_MAX + 1):
                change = self._merge(table, topic, ranges, changes, transactions)
                try:
                    table.commit(change)
                except (CommitConflict, NotContiguous) as error:  # nothing was applied; any other error may say less
                    discard(target, change.add)
                    if attempt == RACES_MAX or isinstance(error, NotContiguous):
                        raise
                else:
                    return list(change.add)
            raise AssertionError("the last attempt returns or raises")
        finally:
            discard(target, changes)

    def _merge(
        self,
        table: LakeTable,
        topic: str,
        ranges: Sequence[OffsetRange],
        changes: Sequence[StagedFile],
        transactions: Sequence[AppTransaction],
    ) -> Change:
        files = table.files()
        job = MergeSpec(table, table.spec(), self.rule, self.stem, self.file_bytes)
        works = plan_buckets(changes, files)
        swaps = self.merge_runner(job, works) if works else []
        return Change(
            "history" if self.rule.history else "upsert",
            topic,
            ranges,
            add=[file for swap in swaps for file in swap.add],
            remove=[file for swap in swaps for file in swap.remove],
            transactions=transactions,
            basis=frozenset(file.path for file in files),
        )


def plan_buckets(changes: Iterable[StagedFile], files: Iterable[TableFile]) -> list[BucketWork]:
    """Return what is merged in each bucket with changes: their files, and the table's that may have their rows."""
    by_bucket: dict[int, list[StagedFile]] = defaultdict(list)
    for change in changes:
        by_bucket[int(change.partition_values[BUCKET])].append(change)
    present: dict[int, list[TableFile]] = defaultdict(list)
    for file in files:
        if file.partition_values.get(IS_CURRENT, "true") == "true":
            present[int(file.partition_values[BUCKET])].append(file)
    return [BucketWork(bucket, by_bucket[bucket], present[bucket]) for bucket in sorted(by_bucket)]


def merge_in_turn(job: MergeSpec, works: Sequence[BucketWork]) -> list[FileSwap]:
    """Merge the buckets one after the other in this process: a `MergeRunner` that needs no Spark."""
    return [merge_bucket(job, work) for work in works]
