"""Declares the section `[[stream]]` of a job file: aggregates by windows of event time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ottla.pipeline.changes.rule import LoadMode
from ottla.pipeline.job_file.schema import Key, KeyProblem, SectionSchema, Values, ValueType
from ottla.pipeline.lake.lake import table_name
from ottla.pipeline.loading.load import TOPIC_IN_NAME
from ottla.pipeline.stream.measures import InvalidMeasure, Measure, parse_measure

SECOND_MS = 1000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN = frozenset({"window_start", "window_end", "window_date"})

COLUMNS = SectionSchema(
    "columns",
    "New columns by name, each an expression of Spark's SQL; a later one may use an earlier.",
    (),
    entries=Key(
        "", ValueType.TEXT, "An expression of Spark's SQL.", example="kind = \"substring_index(path, '/', 2)\""
    ),
)
VALUES = SectionSchema(
    "values",
    f"What is counted, by the result's column: {', '.join(Measure)}, each with `if` and a condition where wanted.",
    (),
    entries=Key(
        "",
        ValueType.TEXT,
        'A measure, such as "count", "sum(bytes) if status < 400" or "top(path, 10)".',
        example='requests = "count"',
    ),
)


def check(values: Values) -> Iterator[KeyProblem]:
    """Report keys that contradict each other."""
    if not _NAME.fullmatch(values["name"] or ""):
        yield "name", f"{values['name']!r} is no table's name: letters, digits and underscores"
    if (values["window"] or SECOND_MS) % SECOND_MS or not values["window"]:
        yield "window", "a window is whole seconds long"
    slide = values["slide"]
    if slide is not None and (slide <= 0 or slide % SECOND_MS or slide > (values["window"] or slide)):
        yield "slide", "slide is whole seconds, and not longer than the window"
    yield from _check_own(values) if values["function"] else _check_declared(values)


def _check_own(values: Values) -> Iterator[KeyProblem]:
    for name in ("columns", "values"):
        if values[name]:
            yield name, f"the function says what is computed, so {name} means nothing"
    if values["where"]:
        yield "where", "the function says what is computed, so where means nothing"
    module, colon, function = values["function"].partition(":")
    if not (module and colon and function):
        yield "function", f"{values['function']!r}: write module:function"


def _check_declared(values: Values) -> Iterator[KeyProblem]:
    if not values["values"]:
        yield "values", 'what is counted? Write [stream.values] and below it for example requests = "count"'
    for name, text in values["values"].items():
        try:
            parse_measure(name, text)
        except InvalidMeasure as error:
            yield "values", f"{name}: {error}"
    for name in (*values["values"], *values["columns"], *values["by"]):
        if not _NAME.fullmatch(name) or name in _OWN:
            yield "values", f"{name!r} cannot be the name of a column"
    for name in set(values["values"]) & set(values["by"]):
        yield "values", f"{name} is counted, and counted by"


STREAM = SectionSchema(
    "stream",
    "Aggregates by windows of event time, kept up to date as a table is loaded.",
    (
        Key("name", ValueType.TEXT, "The table of the results.", example='"traffic"', required=True),
        Key(
            "from",
            ValueType.TEXT,
            "The table whose rows are counted: one of a load.",
            example='"web_access"',
            required=True,
        ),
        Key("window", ValueType.SPAN, "How long a window is.", example='"5m"', required=True),
        Key("slide", ValueType.SPAN, "How far from one window to the next, where they overlap.", example='"1m"'),
        Key("by", ValueType.TEXTS, "The dimensions: columns whose values are counted apart.", (), example='["status"]'),
        Key("where", ValueType.TEXT, "Rows for which this is not true are left out.", example='"status >= 200"'),
        Key(
            "late",
            ValueType.TEXT,
            "What rows do that the load marked late: update their window, or be left out (drop).",
            "update",
            choices=("update", "drop"),
            example='"update"',
        ),
        Key("topic", ValueType.TEXT, "A compacted topic that the results are published to.", example='"web-traffic"'),
        Key("partitions", ValueType.NUMBER, "Of that topic, where it has to be made.", 1, example="4"),
        Key(
            "function",
            ValueType.TEXT,
            "A function of your own, DataFrame to DataFrame, in place of values: module:function. Its result has the "
            "column window_start and those of `by`. The command that runs the job must allow it by --function.",
            example='"my_job:traffic"',
        ),
    ),
    many=True,
    sections=(COLUMNS, VALUES),
    check=check,
    defaults_to_present=False,
)


def source_faults(streams: Sequence[Values], loads: Sequence[Values]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the contradictions between sections: streams of tables that no load writes, and duplicate names."""
    tables: set[str] = set()
    any_table = False
    for load in loads:
        any_table = any_table or (load["pattern"] is not None and TOPIC_IN_NAME in load["table"])
        tables |= _tables_of(load)
    changing = {table for load in loads if load["mode"] != LoadMode.APPEND for table in _tables_of(load)}
    names: set[str] = set()
    for n, stream in enumerate(streams):
        if stream["from"] not in tables and not any_table:
            known = ", ".join(sorted(tables)) or "nothing"
            yield ("stream", n, "from"), f"no load fills the table {stream['from']!r}; loads fill {known}"
        if stream["from"] in changing:
            yield ("stream", n, "from"), f"rows of {stream['from']!r} change, and a stream reads new rows of a table"
        if stream["name"] in tables | names:
            yield ("stream", n, "name"), f"there is another table {stream['name']!r}"
        names.add(stream["name"])


def _tables_of(load: Values) -> set[str]:
    """Return the tables that a load names; one by a pattern for topics and a table for each names none."""
    if TOPIC_IN_NAME not in load["table"]:
        return {load["table"]}
    return {load["table"].replace(TOPIC_IN_NAME, table_name(topic)) for topic in load["topics"]}
