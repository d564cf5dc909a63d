"""Records intents: changes of a table and its quarantine that are completed after a crash.

No commit reaches over two tables. A change of both is therefore written down first, as one durable file in the table's
private directory, then made in the quarantine, then in the table; each takes the intent's number as the version of an
application transaction in the same commit. A process that finds an intent completes it (`complete_intent`) before any
other change of the tables. An intent names what is wanted ("these offsets, from these files"), not which files to
remove: what has been merged in the meantime does not matter.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ottla.core.files import SystemFiles, replace_file
from ottla.pipeline.lake.lease import PRIVATE, LeaseTaken, lease
from ottla.pipeline.lake.port import AppTransaction, Change, CommitConflict, LakeTable, StagedFile
from ottla.pipeline.lake.rewrite import without_ranges, without_rows_of
from ottla.pipeline.log import OffsetRange

OPERATION = "operation"
WORK = "operation"
"""The lease of the process that makes or completes an intent."""
_NAME = "intent.json"
_ATTEMPTS = 10
_CHANCE_BITS = 20


@dataclass(frozen=True, slots=True)
class Intent:
    """A change of a table and its quarantine."""

    number: int
    what: str
    topic: str
    window: Sequence[OffsetRange]
    """Offsets whose rows are replaced, in both tables. Empty for a replay: its rows leave the quarantine."""
    rows: Sequence[StagedFile]
    quarantined: Sequence[StagedFile]


def execute_intent(table: LakeTable, quarantine: LakeTable, intent: Intent, stem: str) -> None:
    """Write the intent down and make it. The caller holds the lease. Raises CommitConflict if it came second."""
    path = _path(table.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(SystemFiles(), path, json.dumps(asdict(intent)).encode())
    _finish(table, quarantine, intent, stem)


def complete_intent(table: LakeTable, quarantine: LakeTable) -> bool:
    """Complete an intent that another process left. Returns whether there was one."""
    if not _path(table.path).exists():
        return False
    try:
        with lease(table.path, WORK) as mine:
            intent = _read(table.path)
            if intent is None:
                return False
            _finish(table, quarantine, intent, mine.id)
            return True
    except LeaseTaken:
        return False  # its maker is at it


def next_number(table: LakeTable, quarantine: LakeTable) -> int:
    """The number of a new intent: larger than all before, and no other's, even of one made at the same moment."""
    sequence = max(table.transaction_version(OPERATION), quarantine.transaction_version(OPERATION)) >> _CHANCE_BITS
    return (sequence + 1 << _CHANCE_BITS) | (uuid.uuid4().int & ((1 << _CHANCE_BITS) - 1))


def intended_names(table: Path) -> set[str]:
    """The names of files that an unfinished intent will put into a table or its quarantine."""
    found = set()
    for directory in (table, table.with_name(table.name.removesuffix("_quarantine"))):
        if (intent := _read(directory)) is not None:
            found |= {Path(file.path).name for file in (*intent.rows, *intent.quarantined)}
    return found


def _finish(table: LakeTable, quarantine: LakeTable, intent: Intent, stem: str) -> None:
    _apply(quarantine, intent, intent.quarantined, [table.path / file.path for file in intent.rows], stem)
    _apply(table, intent, intent.rows, [], stem)
    SystemFiles().remove(_path(table.path))
    SystemFiles().sync_directory(_path(table.path).parent)


def _apply(table: LakeTable, intent: Intent, add: Sequence[StagedFile], leaving: Sequence[Path], stem: str) -> None:
    """The intent's part in one table, unless it is made already."""
    for attempt in range(1, _ATTEMPTS + 1):
        version = table.transaction_version(OPERATION)
        if version == intent.number:
            return
        if version > intent.number:
            raise CommitConflict(f"another change of {table.name} was made before this one ({intent.what}) was")
        if intent.window:
            out = without_ranges(table, intent.topic, intent.window, f"{stem}-{attempt}")
        else:
            out = without_rows_of(table, leaving, f"{stem}-{attempt}")
        change = Change(
            intent.what,
            intent.topic,
            window=intent.window,
            add=[*out.add, *add],
            remove=out.remove,
            transactions=[AppTransaction(OPERATION, version, intent.number)],
        )
        try:
            table.commit(change)
            return
        except CommitConflict:  # files were merged, or rows came: look again
            if attempt == _ATTEMPTS:
                raise


def _path(table: Path) -> Path:
    return table / PRIVATE / _NAME


def _read(table: Path) -> Intent | None:
    try:
        document = json.loads(_path(table).read_bytes())
    except FileNotFoundError:
        return None
    return Intent(
        document["number"],
        document["what"],
        document["topic"],
        [OffsetRange(**r) for r in document["window"]],
        [StagedFile(**file) for file in document["rows"]],
        [StagedFile(**file) for file in document["quarantined"]],
    )
