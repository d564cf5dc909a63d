"""Declares the section `[[load]]` of a job file, and the same options of the command line: topics to tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ottla.pipeline.changes.rule import KEY
from ottla.pipeline.connector.subscription import TopicSubscription
from ottla.pipeline.event_time import FORMS, Granularity, TimeFrom, TimeRule, pattern_fault
from ottla.pipeline.formats import typed
from ottla.pipeline.formats.access_log import AccessLog
from ottla.pipeline.formats.csv_lines import CsvLines
from ottla.pipeline.formats.format import Format
from ottla.pipeline.formats.json_objects import JsonObjects
from ottla.pipeline.formats.plain import Raw, Text
from ottla.pipeline.formats.record_format import RecordFormat
from ottla.pipeline.job_file.change_keys import CHANGE_KEYS, change_faults, change_rule_of
from ottla.pipeline.job_file.schema import Key, KeyProblem, SectionSchema, Values, ValueType
from ottla.pipeline.lake.file_writer import FILE_BYTES
from ottla.pipeline.lake.lake import Lake
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.loading.load import COMMIT_OFFSETS_MAX, TOPIC_IN_NAME, LoadSpec, is_pattern
from ottla.pipeline.loading.on_loss import OnLoss
from ottla.pipeline.loading.row_mapping import RowMapping
from ottla.pipeline.locations import is_uri
from ottla.pipeline.source import Brokers

_PARTS = ("key", "headers")

TIME = SectionSchema(
    "time",
    "When an event happened, and how rows are partitioned by it. Left out: the record's own timestamp, by day.",
    (
        Key(
            "from",
            ValueType.TEXT,
            "Where the event time is: the record's timestamp, a field, a pattern in the value, or what the format says "
            "(access logs).",
            choices=tuple(TimeFrom),
            example='"field"',
        ),
        Key("field", ValueType.TEXT, "The field, `a.b` for one inside another.", example='"created_at"'),
        Key("pattern", ValueType.TEXT, "A regular expression with a group named time.", example="'ts=(?P<time>\\S+)'"),
        Key(
            "form",
            ValueType.TEXT,
            f"How the time is written: {', '.join(FORMS)}, or strptime's letters, %z only last.",
            "iso",
            example='"iso"',
        ),
        Key(
            "granularity",
            ValueType.TEXT,
            "What a directory holds of event time.",
            "day",
            choices=tuple(Granularity),
            example='"day"',
        ),
        Key(
            "lateness",
            ValueType.SPAN,
            "A row whose event is longer ago, when its record was made, is late: it goes to the partition late=true. "
            "Left out: nothing is late.",
            example='"1h"',
        ),
    ),
)
CSV = SectionSchema(
    "csv",
    "Values separated by commas, or by something else.",
    (
        Key("fields", ValueType.TEXTS, "The columns' names, in order.", (), example='["id", "name"]'),
        Key(
            "header",
            ValueType.FLAG,
            "The names come as a record, as they do where files were sent line by line; without `fields` they are "
            "taken from the topic's first record. Such records go to the quarantine as what they are.",
            default=False,
            example="false",
        ),
        Key("delimiter", ValueType.TEXT, "Between fields.", ",", example='","'),
        Key("quote", ValueType.TEXT, 'Around fields with a delimiter inside; "" for none.', '"', example="'\"'"),
    ),
)
AVRO = SectionSchema(
    "avro",
    "Where schemas are: in a registry (records with its header), or in a file (records without).",
    (
        Key(
            "registry",
            ValueType.TEXT,
            "The schema registry's URL (schema.registry.url).",
            example='"http://registry.example:8081"',
        ),
        Key("schema", ValueType.PATH, "A file with the schema of every record.", example='"event.avsc"'),
        Key(
            "aliases",
            ValueType.FLAG,
            "Whether a field that has aliases is the column of the last of them, so that a renamed field stays one "
            "column: list the oldest name last.",
            default=False,
            example="true",
        ),
    ),
)
JSON = SectionSchema(
    "json",
    "Records of a serializer of JSON Schema, with a registry's header.",
    (
        Key(
            "registry",
            ValueType.TEXT,
            "The schema registry's URL. Left out: the value is JSON without a header.",
            example='"http://registry.example:8081"',
        ),
    ),
)
PROTOBUF = SectionSchema(
    "protobuf",
    "Where schemas are: in a registry (records with its header), or in a file of descriptors (records without).",
    (
        Key("registry", ValueType.TEXT, "The schema registry's URL.", example='"http://registry.example:8081"'),
        Key(
            "descriptors",
            ValueType.PATH,
            "A file that `protoc --include_imports --descriptor_set_out` wrote.",
            example='"orders.pb"',
        ),
        Key("message", ValueType.TEXT, "The message of every record in that file.", example='"shop.v1.Order"'),
    ),
)
COLUMNS = SectionSchema(
    "columns",
    "Types of fields, by name. A declared column never widens; what does not fit goes to the quarantine.",
    (),
    entries=Key("", ValueType.TEXT, f"{', '.join((*typed.NAMES, *typed.EPOCHS))}."),
)
HEADERS = SectionSchema(
    "headers",
    "Types of headers that become columns, by their names: the last header of that name, as a text of that type.",
    (),
    entries=Key("", ValueType.TEXT, f"{', '.join((*typed.NAMES, *typed.EPOCHS))}."),
)


def check(values: Values) -> Iterator[KeyProblem]:
    """Report keys that contradict each other."""
    if bool(values["topics"]) == bool(values["pattern"]):
        yield "topics", "say either topics or pattern: which topics are loaded"
    if values["pattern"] is not None and (fault := _pattern_fault(values["pattern"])):
        yield "pattern", fault
    for topic in values["topics"] or ():
        if is_pattern(topic):
            yield "topics", f"{topic!r} is no topic's name; is pattern = {topic!r} meant?"
    dead_letters = values["dead_letters"]
    if any(dead_letters.replace(TOPIC_IN_NAME, topic) == topic for topic in values["topics"] or ()):
        yield "dead_letters", "a topic's dead letters cannot go to the topic itself"
    if dead_letters and is_pattern(dead_letters.replace(TOPIC_IN_NAME, "")):
        yield "dead_letters", f"{dead_letters!r} is no topic's name"
    if is_uri(values["table"]):
        yield "table", f"{values['table']!r} is a location, not a table's name. The location belongs to the lake's path"
    if any(part not in _PARTS for part in values["keep"]):
        yield "keep", f"a record has the parts {' and '.join(_PARTS)} besides its value"
    yield from change_faults(values)
    yield from _check_format(values)
    yield from _check_time(values["time"], values["format"])
    for section in ("columns", "headers"):
        for name, kind in values[section].items():
            if typed.column_type(kind) is None:
                yield section, f"{section}: {name} is {kind!r}; types are {', '.join((*typed.NAMES, *typed.EPOCHS))}"
    if both := {name.lower() for name in values["columns"]} & {name.lower() for name in values["headers"]}:
        yield "headers", f"headers: {min(both)} is the name of a declared column too"
    if values["format"] == "access-log" and values["columns"]:
        yield "columns", "an access log's columns have their types"


def _pattern_fault(pattern: str) -> str | None:
    import re

    try:
        re.compile(pattern)
    except re.error as error:
        return f"{pattern!r} is no regular expression: {error}"
    return None if TopicSubscription(pattern=pattern).pattern else "the pattern is empty"


def _check_format(values: Values) -> Iterator[KeyProblem]:
    csv, form = values["csv"], values["format"]
    if form == "csv":
        if not csv["fields"] and not csv["header"]:
            yield "csv", "a csv load needs csv.fields, or csv.header = true"
        if len(csv["delimiter"]) != 1 or len(csv["quote"]) > 1:
            yield "csv", "csv.delimiter is one character, csv.quote one or none"
        if len(set(csv["fields"])) != len(csv["fields"]):
            yield "csv", "csv.fields has a name twice"
    elif csv["fields"] or csv["header"]:
        yield "csv", f"csv says something, and the format is {form}"
    yield from _check_schemas(values)


def _check_schemas(values: Values) -> Iterator[KeyProblem]:
    """Report where schemas are, if that is not said or contradicts the format."""
    avro, protobuf, json, form = values["avro"], values["protobuf"], values["json"], values["format"]
    if form == "protobuf":
        if bool(protobuf["registry"]) == bool(protobuf["descriptors"]):
            yield "protobuf", "a protobuf load needs protobuf.registry or protobuf.descriptors, not both"
        elif bool(protobuf["descriptors"]) != bool(protobuf["message"]):
            yield "protobuf", "protobuf.message says which message of protobuf.descriptors every record is"
    elif any(protobuf.values()):
        yield "protobuf", f"protobuf says something, and the format is {form}"
    if form != "json" and json["registry"]:
        yield "json", f"json says something, and the format is {form}"
    for name in ("protobuf", "json"):
        if (url := values[name]["registry"]) and urlsplit(url).scheme not in {"http", "https"}:
            yield name, f"{name}.registry: {url!r} is no URL of http or https"
    if form == "avro":
        if bool(avro["registry"]) == bool(avro["schema"]):
            yield "avro", "an avro load needs avro.registry or avro.schema, not both"
        elif avro["registry"] and urlsplit(avro["registry"]).scheme not in {"http", "https"}:
            yield "avro", f"avro.registry: {avro['registry']!r} is no URL of http or https"
    elif any(avro.values()):
        yield "avro", f"avro says something, and the format is {form}"


def _check_time(time: Values, form: str) -> Iterator[KeyProblem]:
    source = time["from"]
    if source == TimeFrom.FIELD and not time["field"]:
        yield "time", "time.from is a field: time.field says which"
    if source == TimeFrom.PATTERN and not time["pattern"]:
        yield "time", "time.from is a pattern: time.pattern says which"
    if time["field"] and source != TimeFrom.FIELD:
        yield "time", 'time.field says where the time is: write time.from = "field"'
    if time["pattern"] and source != TimeFrom.PATTERN:
        yield "time", 'time.pattern says where the time is: write time.from = "pattern"'
    if time["pattern"] and (fault := pattern_fault(time["pattern"])):
        yield "time", f"time.pattern: {fault}"
    if source == TimeFrom.FORMAT and form != "access-log":
        yield "time", f"the format {form} says nothing of the event time; only an access log does"
    if source == TimeFrom.FIELD and form in {"raw", "text"}:
        yield "time", f'the format {form} has no fields; time.from = "pattern" searches the value'
    if "%f" in time["form"] or "%z" in time["form"].removesuffix("%z"):
        yield "time", 'time.form: no %f, and %z only at the end; "iso" reads fractions of seconds'
    if time["form"] not in FORMS and "%" not in time["form"]:
        yield "time", f"time.form is one of {', '.join(FORMS)}, or strptime's letters, not {time['form']!r}"


LOAD = SectionSchema(
    "load",
    "Topics to tables, each offset exactly once.",
    (
        Key("topics", ValueType.TEXTS, "Names of topics.", (), example='["web-access"]'),
        Key("pattern", ValueType.TEXT, "A regular expression for whole names of topics, in place of `topics`."),
        Key(
            "table",
            ValueType.TEXT,
            "The table. `{topic}` in it stands for the topic's name, so that every topic has a table of its own.",
            TOPIC_IN_NAME,
            example='"{topic}"',
        ),
        Key(
            "table_format",
            ValueType.TEXT,
            "Of this load's tables. Left out: the lake's `format`.",
            choices=tuple(TableFormat),
            example='"iceberg"',
        ),
        Key(
            "format", ValueType.TEXT, "The format of the value.", "json", choices=tuple(RecordFormat), example='"json"'
        ),
        Key(
            "keep", ValueType.TEXTS, "Parts of the record that become columns too: key, headers.", (), example='["key"]'
        ),
        Key(
            "start",
            ValueType.OFFSET_SPEC,
            "Where a topic begins that was never loaded. Left out: at the start of its log.",
            example='"start"',
        ),
        Key(
            "on_loss",
            ValueType.TEXT,
            "Where offsets were deleted from the log before they were loaded: fail, or skip them and say so.",
            "fail",
            choices=tuple(OnLoss),
            example='"fail"',
        ),
        Key(
            "quarantine_max",
            ValueType.SHARE,
            "The share of a topic's records that a load may quarantine. With more, or all of them, the command ends "
            "with exit code 10; what was loaded stays.",
            1.0,
            example='"100%"',
        ),
        Key(
            "dead_letters",
            ValueType.TEXT,
            "A topic that quarantined records are produced to too, for `ottla pipeline redrive` and other programs. "
            "`{topic}` stands for the topic's name. Left out: none.",
            "",
            example='"{topic}-dead-letters"',
        ),
        Key(
            "group",
            ValueType.TEXT,
            'The consumer group that shows how far the load is; "" for none. `{table}` stands for the table\'s name.',
            "ottla-pipeline-{table}",
            example='"ottla-pipeline-{table}"',
        ),
        Key(
            "commit_offsets",
            ValueType.NUMBER,
            "Offsets of a partition in one commit at most.",
            COMMIT_OFFSETS_MAX,
            example=str(COMMIT_OFFSETS_MAX),
        ),
        Key(
            "checksums",
            ValueType.FLAG,
            "Whether commits record checksums of what was loaded: the audit needs them for rows without a record.",
            default=True,
            example="true",
        ),
        Key("file_size", ValueType.SIZE, "How large a file may become.", FILE_BYTES, example='"256MB"'),
        *CHANGE_KEYS,
    ),
    many=True,
    sections=(TIME, COLUMNS, HEADERS, CSV, JSON, AVRO, PROTOBUF),
    check=check,
)


def spec_of(values: Values, *, lake: Lake, brokers: Brokers) -> LoadSpec:
    """Build a load as the section says it. The values were checked.

    Raises OSError or UnsupportedSchema over a file with schemas.
    """
    changes, time = change_rule_of(values), _time(values)
    keep = tuple(values["keep"])
    if changes is not None:
        time = replace(time, granularity=Granularity.NONE)
        keep = keep if changes.key_fields or KEY in keep else (KEY, *keep)
    return LoadSpec(
        lake=replace(lake, table_format=TableFormat(values["table_format"])) if values["table_format"] else lake,
        brokers=brokers,
        mapping=RowMapping(_format(values), time, dict(values["columns"]), keep, dict(values["headers"]), changes),
        topics=tuple(values["topics"] or ()),
        pattern=values["pattern"],
        table=values["table"],
        group=values["group"],
        start=values["start"],
        on_loss=OnLoss(values["on_loss"]),
        quarantine_max=values["quarantine_max"],
        commit_offsets=values["commit_offsets"],
        file_bytes=values["file_size"],
        dead_letters=values["dead_letters"],
        checksums=values["checksums"],
    )


def _format(values: Values) -> Format:
    match values["format"]:
        case "json":
            objects = JsonObjects(declared=dict(values["columns"]))
            return _json_schema(values["json"]["registry"], objects) if values["json"]["registry"] else objects
        case "csv":
            csv = values["csv"]
            return CsvLines(tuple(csv["fields"]), csv["delimiter"], csv["quote"], csv["header"])
        case "access-log":
            return AccessLog()
        case "text":
            return Text()
        case "raw":
            return Raw()
        case "protobuf":
            return _protobuf(values["protobuf"], dict(values["columns"]))
        case _:
            return _avro(values["avro"], dict(values["columns"]))


def _avro(values: Values, declared: dict[str, str]) -> Format:
    from ottla.pipeline.formats.avro import Avro  # `fastavro` only where there is Avro

    path: Path | None = values["schema"]
    by_alias: bool = values["aliases"]
    if path is None:
        return Avro(registry_url=values["registry"], by_alias=by_alias, declared=declared)
    return Avro.of_file(path, by_alias=by_alias)


def _json_schema(registry: str, objects: JsonObjects) -> Format:
    from ottla.pipeline.formats.json_schema import JsonSchema

    return JsonSchema(registry, objects)


def _protobuf(values: Values, declared: dict[str, str]) -> Format:
    from ottla.pipeline.formats.protobuf import Protobuf  # Google's library only where there is Protobuf

    path: Path | None = values["descriptors"]
    if path is None:
        return Protobuf(registry_url=values["registry"], declared=declared)
    return Protobuf.of_file(path, values["message"], declared)


def _time(values: Values) -> TimeRule:
    time: dict[str, Any] = values["time"]
    otherwise = TimeFrom.FORMAT if values["format"] == "access-log" else TimeFrom.RECORD
    return TimeRule(
        source=TimeFrom(time["from"] or otherwise),
        field=time["field"] or "",
        pattern=time["pattern"] or "",
        form=time["form"],
        granularity=Granularity(time["granularity"]),
        lateness_ms=time["lateness"],
    )
