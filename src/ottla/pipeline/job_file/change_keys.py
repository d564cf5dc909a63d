"""Declares the keys of `[[load]]` that say what a record does with the rows of its table."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.pipeline.changes.rule import BUCKETS, BUCKETS_MAX, ChangeRule, Envelope, LoadMode
from ottla.pipeline.event_time import Granularity
from ottla.pipeline.job_file.schema import Key, KeyProblem, Values, ValueType
from ottla.pipeline.loading.load import TOPIC_IN_NAME
from ottla.pipeline.loading.row_mapping import COORDINATES

CHANGE_KEYS = (
    Key(
        "mode",
        ValueType.TEXT,
        "What a record does: append makes a row of each, upsert replaces the row of its key (a null value deletes it), "
        "history also keeps former rows with the times between which they were valid.",
        LoadMode.APPEND,
        choices=tuple(LoadMode),
        example='"append"',
    ),
    Key(
        "key_fields",
        ValueType.TEXTS,
        "Of upsert and history: the fields that identify a row. Left out: the record's key.",
        (),
        example='["id"]',
    ),
    Key(
        "buckets",
        ValueType.NUMBER,
        "Of upsert and history: the number of parts that a table's keys are divided into; a change rewrites files of "
        "its part alone. A table keeps it.",
        BUCKETS,
        example=str(BUCKETS),
    ),
    Key(
        "envelope",
        ValueType.TEXT,
        "Of upsert and history: what is around the row in the value. debezium: change events in JSON.",
        Envelope.NONE,
        choices=tuple(Envelope),
        example='"none"',
    ),
)
_RESERVED = {*COORDINATES.names, "event_time", "late", *ChangeRule(history=True).columns.names}


def change_rule_of(values: Values) -> ChangeRule | None:
    """Return the rule that checked values mean; None for a load that appends."""
    if values["mode"] == LoadMode.APPEND:
        return None
    return ChangeRule(
        history=values["mode"] == LoadMode.HISTORY,
        key_fields=tuple(values["key_fields"]),
        buckets=values["buckets"],
        envelope=Envelope(values["envelope"]),
    )


def change_faults(values: Values) -> Iterator[KeyProblem]:
    """Report keys that contradict the mode, or each other."""
    mode, fields = values["mode"], values["key_fields"]
    if mode == LoadMode.APPEND:
        for name, default in (("key_fields", ()), ("buckets", BUCKETS), ("envelope", Envelope.NONE)):
            if values[name] != default:
                yield name, f'{name} says how rows change: write mode = "upsert" or mode = "history"'
        return
    if not 1 <= values["buckets"] <= BUCKETS_MAX:
        yield "buckets", f"buckets is a number from 1 to {BUCKETS_MAX}"
    if TOPIC_IN_NAME not in values["table"] and (values["pattern"] is not None or len(values["topics"] or ()) > 1):
        yield "table", f"a load of mode {mode} needs a table for each topic: keys of different topics are not the same"
    if values["time"]["granularity"] == Granularity.HOUR:
        yield "time", f"a table of mode {mode} is partitioned by its keys, not by time: leave time.granularity out"
    if fields and values["format"] in {"raw", "text", "access-log"}:
        yield "key_fields", f"the format {values['format']} has no fields that are a key; leave key_fields out"
    if len(set(fields)) != len(fields):
        yield "key_fields", "key_fields has a name twice"
    for name in fields:
        if name in _RESERVED or name in values["keep"]:
            yield "key_fields", f"{name} is a column of every such table; a field of that name becomes {name}_"
    if values["envelope"] == Envelope.DEBEZIUM and values["format"] != "json":
        yield "envelope", f"Debezium's envelopes are understood in JSON, and the format is {values['format']}"
