"""Records intents: changes of a table and its quarantine that are completed after a crash.

No commit reaches over two tables. A change of both is therefore written down first, as one durable file in the table's
private directory, then made in one of them and then in the other; each takes the intent's number as the version of an
application transaction in the same commit. A process that finds an intent completes it (`complete_intent`) before any
other change of the tables. An intent names what is wanted ("these offsets, from these files"), not which files to
remove: what has been merged in the meantime does not matter.

An intent that cannot be completed never stops other work on the tables: loads add offsets beyond its own, and
compaction changes no row. It is abandoned, unless the failure may pass. An abandoned replay loses nothing, whenever it
stopped: its rows come to the table first, in place of any rows of the same offsets, and leave the quarantine second. An
abandoned backfill is made good by running it again, for the log has its records.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath

from ottla.core.runtime import new_uuid
from ottla.pipeline.lake.lake_store import PRIVATE, LakeStore, LeaseTaken, ObjectExists
from ottla.pipeline.lake.lake_table import AppTransaction, Change, CommitConflict, LakeTable, StagedFile
from ottla.pipeline.lake.recorded_content import transactions_of_replacement
from ottla.pipeline.lake.rewrite import without_ranges, without_rows_of
from ottla.pipeline.offset_range import OffsetRange

log = logging.getLogger(__name__)
OPERATION = "operation"
WORK = "operation"
"""The lease of the process that makes or completes an intent."""
_NAME = "intent.json"
_KEY = PRIVATE + _NAME
_REPLACED = "window"
"""The key of the replaced offsets in that file."""
_ATTEMPTS = 10
_CHANCE_BITS = 20
_NOUNS = {"replace": "backfill", "replay": "replay"}
_ADVICE = {
    "replace": "Run the backfill again; until then the audit names the offsets that are missing or duplicated.",
    "replay": "No record is lost; run the replay again.",
}


@dataclass(frozen=True, slots=True)
class Intent:
    """A change of a table and its quarantine."""

    number: int
    what: str
    topic: str
    replaced: Sequence[OffsetRange]
    """Offsets whose rows are replaced, in both tables. Empty for a replay: its rows leave the quarantine."""
    rows: Sequence[StagedFile]
    quarantined: Sequence[StagedFile]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Files of a table, with the rows of a replay."""

    store: LakeStore
    keys: Sequence[str]


class Superseded(CommitConflict):
    """Another intent was executed first: this one must not change the table any more."""


def execute_intent(table: LakeTable, quarantine: LakeTable, intent: Intent, stem: str) -> None:
    """Write the intent down and make it. The caller holds the lease. Raises CommitConflict if it came second."""
    try:
        table.store.put_if_absent(_KEY, _encode(intent))
    except ObjectExists:
        raise CommitConflict(f"an earlier {_NOUNS[intent.what]} of {table.name} is not completed") from None
    _finish(table, quarantine, intent, stem)


def complete_intent(table: LakeTable, quarantine: LakeTable, warn: Callable[[str], None] = log.warning) -> bool:
    """Complete an intent that another process left, or abandon it. Returns whether one was completed.

    A failure is a warning, never an exception: what the caller is about to do does not depend on the intent.
    """
    if table.store.head(_KEY) is None:
        return False
    try:
        with table.store.lease(WORK) as mine:
            return _complete(table, quarantine, mine.id, warn)
    except LeaseTaken:
        return False  # its maker is at it


def _complete(table: LakeTable, quarantine: LakeTable, stem: str, warn: Callable[[str], None]) -> bool:
    try:
        intent = _read(table.store)
    except (ValueError, KeyError, TypeError) as error:
        _set_aside(table.store, "unreadable")
        warn(f"{table.name}: {_NAME} cannot be read ({error}) and was set aside; run a replay or backfill again")
        return False
    if intent is None:
        return False
    described = f"{table.name}: an interrupted {_described(intent)}"
    try:
        _finish(table, quarantine, intent, stem)
    except (OSError, CommitConflict) as error:
        if not isinstance(error, FileNotFoundError | Superseded):
            warn(f"{described} cannot be completed now: {error}. The next command tries again.")
            return False
        _abandon(table, intent, f"{described} cannot be completed: {error}", warn)
        return False
    except Exception as error:  # noqa: BLE001 - whatever it is, the same would happen to every later command
        _abandon(table, intent, f"{described} cannot be completed: {type(error).__name__}: {error}", warn)
        return False
    return True


def _abandon(table: LakeTable, intent: Intent, text: str, warn: Callable[[str], None]) -> None:
    _set_aside(table.store, f"{intent.number}.abandoned")
    warn(f"{text}. It was abandoned. {_ADVICE[intent.what]}")


def _set_aside(table: LakeStore, name: str) -> None:
    table.rename(_KEY, f"{PRIVATE}intent.{name}.json")


def _described(intent: Intent) -> str:
    if not intent.replaced:
        return _NOUNS[intent.what]
    ranges = ", ".join(f"partition {r.partition}, {r.text}" for r in intent.replaced)
    return f"{_NOUNS[intent.what]} of {intent.topic} ({ranges})"


def next_number(table: LakeTable, quarantine: LakeTable) -> int:
    """Return the number of a new intent: larger than all before, and no other's, even if made at the same moment."""
    sequence = max(table.transaction_version(OPERATION), quarantine.transaction_version(OPERATION)) >> _CHANCE_BITS
    return (sequence + 1 << _CHANCE_BITS) | (new_uuid().int & ((1 << _CHANCE_BITS) - 1))


def intended_names(table: LakeStore) -> set[str]:
    """Return the names of files that an unfinished intent will put into a table or its quarantine."""
    found = set()
    for store in (table, table.sibling(table.name.removesuffix("_quarantine"))):
        with contextlib.suppress(ValueError, KeyError, TypeError):  # an unreadable intent will not be completed
            if (intent := _read(store)) is not None:
                found |= {PurePosixPath(file.path).name for file in (*intent.rows, *intent.quarantined)}
    return found


def _finish(table: LakeTable, quarantine: LakeTable, intent: Intent, stem: str) -> None:
    coming = _Rows(table.store, [file.path for file in intent.rows])
    if intent.replaced:
        _apply(quarantine, intent, intent.quarantined, coming, stem)
        _apply(table, intent, intent.rows, coming, stem, records_content=True)
    else:
        _apply(table, intent, intent.rows, coming, stem, records_content=True)
        _apply(quarantine, intent, intent.quarantined, coming, stem)
    table.store.delete(_KEY)
    table.store.sync_names([_KEY])


def _apply(
    table: LakeTable,
    intent: Intent,
    add: Sequence[StagedFile],
    coming: _Rows,
    stem: str,
    *,
    records_content: bool = False,
) -> None:
    """Make the intent's change of one table, unless it is made already. `coming` are the rows of a replay.

    The table that `records_content` has the checksums of what was loaded, of the quarantine too.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        version = table.transaction_version(OPERATION)
        if version == intent.number:
            return
        if version > intent.number:
            raise Superseded(f"another change of {table.name} was made first")
        for file in add:
            if table.store.head(file.path) is None:  # a commit that names a missing file would break the table
                raise FileNotFoundError(table.store.location(file.path))
        if intent.replaced:
            out = without_ranges(table, intent.topic, intent.replaced, f"{stem}-{attempt}")
        else:
            out = without_rows_of(table, coming.store, coming.keys, f"{stem}-{attempt}")
        replaced = transactions_of_replacement(table, intent.topic, intent.replaced, add) if records_content else []
        change = Change(
            intent.what,
            intent.topic,
            replaced=intent.replaced,
            add=[*out.add, *add],
            remove=out.remove,
            transactions=[AppTransaction(OPERATION, version, intent.number), *replaced],
        )
        try:
            table.commit(change)
            return
        except CommitConflict:  # files were merged, or rows came: look again
            if attempt == _ATTEMPTS:
                raise


def _encode(intent: Intent) -> bytes:
    document = asdict(intent)
    document[_REPLACED] = document.pop("replaced")
    return json.dumps(document).encode()


def _read(table: LakeStore) -> Intent | None:
    try:
        document = json.loads(table.get(_KEY))
    except FileNotFoundError:
        return None
    return Intent(
        document["number"],
        document["what"],
        document["topic"],
        [OffsetRange(**r) for r in document[_REPLACED]],
        [StagedFile(**file) for file in document["rows"]],
        [StagedFile(**file) for file in document["quarantined"]],
    )
