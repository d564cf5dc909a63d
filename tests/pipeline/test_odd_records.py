"""Every record is loaded or quarantined with its reason, whatever it holds and whatever its schema: no load gets stuck."""

from __future__ import annotations

import io
import itertools
import json
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from ottla.pipeline.event_time import FORMS, Granularity, TimeFrom, TimeRule
from ottla.pipeline.formats.avro import Avro
from ottla.pipeline.formats.format import Parsed
from ottla.pipeline.formats.json_objects import JsonObjects
from ottla.pipeline.formats.plain import Text
from ottla.pipeline.formats.registry import RegistryFailed
from ottla.pipeline.lake.rewrite import compact
from ottla.pipeline.lake.schema import Path as LeafPath
from ottla.pipeline.lake.table_format import TableFormat
from ottla.pipeline.loading.row_mapping import UNFORESEEN, RowMapping
from ottla.pipeline.loading.spark_tasks import run_on_spark
from tests.pipeline.memory_log import Bench, MemoryTopic, Values
from tests.support.examples import examples
from tests.support.schema_registry import FakeRegistry, fake_registry

LONG_MAX, LONG_MIN = (1 << 63) - 1, -(1 << 63)
FIRST_US, END_US = -62_135_596_800_000_000, 253_402_300_800_000_000
RECORD_TIMES_US = [None, 0, -1, FIRST_US, FIRST_US - 1, END_US - 1, END_US - 1000, END_US, LONG_MAX, LONG_MIN]
ODD_TIMES: list[Any] = [
    "-0001-01-01T00:00:00Z",
    "0000-01-01T00:00:00Z",
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+14:00",
    "1600-02-29",
    "1900-02-29",
    "1969-12-31T23:59:59.999Z",
    "2015-05-17T10:00:00.123456789Z",
    "2015-05-17T24:00:00Z",
    "2015-05-17T10:00:00+99:99",
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-14:00",
    "10000-01-01T00:00:00Z",
    "262143-12-31T00:00:00Z",
    FIRST_US,
    FIRST_US - 1,
    END_US - 1,
    END_US,
    0,
    -1,
    LONG_MAX,
    LONG_MIN,
    0.5,
    1e300,
    10**30,
]
PROPERTY = settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(params=list(TableFormat))
def table_format(request: pytest.FixtureRequest) -> TableFormat:
    found: TableFormat = request.param
    return found


@pytest.fixture(scope="module")
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as found:
        yield found


def check_loads(
    table_format: TableFormat,
    mapping: RowMapping,
    loads: Sequence[Sequence[bytes]],
    times_us: dict[int, int | None] | None = None,
) -> list[str]:
    """Load values in one load after another; return the reasons of the quarantine."""
    with tempfile.TemporaryDirectory() as root:
        bench = Bench(Path(root), MemoryTopic({0: []}, times_us=times_us or {}), mapping, table_format=table_format)
        for values in loads:
            bench.topic.values[0] += values
            bench.load()
        bench.check_every_offset_once()
        for table in (bench.table, bench.quarantine):
            compact(table, "abc")
        bench.check_every_offset_once()
        reasons: list[str] = bench.quarantined_files("reason")
    assert not [why for why in reasons if why.startswith(UNFORESEEN)]
    return reasons


# ---- JSON: names and times


NAMES = [
    "a",
    "A",
    "a.b",
    "b",
    "B",
    "a.element",
    "element",
    "",
    " ",
    "a b",
    "a,b",
    "a_b",
    "\u0130",
    "\ud800",
    "\0",
    "`",
    "1",
]
NAMES += ["offset", "OFFSET", "offset_", "event_date", "late", "key", "value", "list", "x" * 300]
odd_values = st.recursive(
    st.sampled_from([None, True, 1, 1.5, LONG_MAX, 10**30, 1e308, "x", *ODD_TIMES]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)
odd_objects = st.dictionaries(st.sampled_from(NAMES), odd_values, max_size=4).map(lambda row: json.dumps(row).encode())
rules = st.builds(
    TimeRule,
    st.sampled_from([TimeFrom.RECORD, TimeFrom.FIELD]),
    field=st.sampled_from(["a", "a.b"]),
    form=st.sampled_from([*FORMS, "%Y-%m-%d"]),
    granularity=st.sampled_from(Granularity),
    lateness_ms=st.sampled_from([None, 5]),
)
record_times = st.dictionaries(st.integers(0, 8), st.sampled_from(RECORD_TIMES_US))


@PROPERTY
@given(st.lists(st.lists(odd_objects, min_size=1, max_size=4), min_size=1, max_size=3), rules, record_times)
def test_objects_with_odd_names_and_times_are_loaded_or_quarantined(
    table_format: TableFormat, loads: list[list[bytes]], rule: TimeRule, times_us: dict[int, int | None]
) -> None:
    check_loads(table_format, RowMapping(JsonObjects(), rule), loads, times_us)


@pytest.mark.parametrize("form", ["iso", "timestamp_us"])
def test_every_odd_time_is_loaded_or_quarantined(table_format: TableFormat, form: str) -> None:
    values = [json.dumps({"at": time}).encode() for time in ODD_TIMES]
    rule = TimeRule(TimeFrom.FIELD, field="at", form=form)
    reasons = check_loads(table_format, RowMapping(JsonObjects({"at": "string"}), rule, {"at": "string"}), [values])
    assert 0 < len(reasons) < len(values)


def test_records_with_every_odd_timestamp_are_loaded_or_quarantined(table_format: TableFormat) -> None:
    times_us = dict(enumerate(RECORD_TIMES_US))
    reasons = check_loads(table_format, RowMapping(JsonObjects()), [[b'{"a":1}'] * len(times_us)], times_us)
    outside = "the record's timestamp is outside of the years 1 to 9999"
    assert sorted(reasons) == ["the record has no timestamp", *[outside] * 4]


@pytest.mark.parametrize(
    "value",
    ["[null,1]", "[null,null]", "[null,[]]", "[[null,null],null]", '{"x":[null,null,null]}', '[{"y":[null,null]},{}]'],
)
def test_arrays_of_nulls_are_loaded(table_format: TableFormat, value: str) -> None:
    record_value = f'{{"v":{value},"w":1}}'.encode()
    assert check_loads(table_format, RowMapping(JsonObjects()), [[record_value], [b'{"v":null}', record_value]]) == []


@pytest.mark.parametrize("inside", ["[", '{"a":'])
@pytest.mark.parametrize("depth", [33, 500, 1000, 2000, 100_000])
def test_deep_values_are_quarantined(table_format: TableFormat, inside: str, depth: int) -> None:
    end = "]" if inside == "[" else "}"
    deep = f'{{"a":{inside * depth}{"" if inside == "[" else 1}{end * depth}}}'.encode()
    reasons = check_loads(table_format, RowMapping(JsonObjects()), [[deep], [b'{"a":1}', deep]])
    assert reasons == ["objects and arrays in each other, more than 32 deep"] * 2


NAME_CLASHES = [
    ({"s": {"x": 1, "X": 2}}, "fields inside s differ only in case"),
    ({"s": [{"x": 1}, {"X": "t"}]}, "fields inside s differ only in case, and have different types"),
    ({"a": {"b": 1}, "a.b": 2}, "two fields would have the path a.b"),
    ({"a": [1], "a.element": 2}, "two fields would have the path a.element"),
    ({"offset": 1, "offset_": 2}, "two fields would be the column offset_"),
    ({"x": 1, "X": 2}, "two fields would be the column x"),
]


@pytest.mark.parametrize(("row", "reason"), NAME_CLASHES)
def test_a_record_with_names_that_clash_is_quarantined_with_that_reason(
    table_format: TableFormat, row: Any, reason: str
) -> None:
    assert check_loads(table_format, RowMapping(JsonObjects()), [[json.dumps(row).encode()]]) == [reason]


def test_names_inside_structs_that_differ_only_in_case_are_one_field(tmp_path: Path, table_format: TableFormat) -> None:
    topic = MemoryTopic({0: []})
    bench = Bench(tmp_path, topic, RowMapping(JsonObjects()), table_format=table_format)
    for rows in (
        [{"s": {"x": 1}, "l": [{"y": {"z": 1}}]}],
        [{"s": {"X": 2}}, {"s": {"X": 2.5, "n": "t"}}],
        [{"l": [{"Y": {"Z": 3}}, {"y": {"z": 4}}]}, {"s": {"N": "u"}}],
    ):
        topic.values[0] += [json.dumps(row).encode() for row in rows]
        bench.load()
    assert not bench.quarantined_files()
    kinds = {f.name: str(f.type) for f in bench.table.spec().schema}
    assert (kinds["s"], kinds["l"]) == ("struct<x: double, n: string>", "list<item: struct<y: struct<z: int64>>>")
    assert sorted(bench.rows("s.x", "s.x is not null")) == [1, 2, 2.5]
    assert bench.rows("l[2].y.z", "l[2] is not null") == [4]


# ---- Avro: schemas


SIMPLE = ["null", "int", "long", "float", "double", "boolean", "string", "bytes"]
LOGICAL = [
    {"type": "int", "logicalType": "date"},
    *({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros", "nanos")),
    {"type": "bytes", "logicalType": "decimal", "precision": 400, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": "x"},
    {"type": "long", "logicalType": []},
    {"type": "enum", "name": "E", "symbols": ["P", "Q"]},
    {"type": "fixed", "name": "F", "size": 2},
    "x.Shared",
    "Own",
    5,
    None,
]
FIELD_NAMES = ["a", "A", "b", "b", "a_b", "offset", "offset_", "late"]


def records_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = st.lists(st.tuples(st.sampled_from([*FIELD_NAMES, 5, None]), inner), max_size=3)
    return st.builds(
        lambda name, found: {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in found]},
        st.sampled_from(["Own", "R", "S", "x.R"]),
        fields,
    )


types = st.recursive(
    st.sampled_from([*SIMPLE, *LOGICAL]),
    lambda inner: (
        records_of(inner)
        | st.lists(inner, max_size=3)
        | st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(lambda values: {"type": "map", "values": values}, inner)
    ),
    max_leaves=8,
)
schemas = records_of(types) | types


@PROPERTY
@given(st.lists(st.tuples(schemas, types, st.lists(st.binary(max_size=24), min_size=1, max_size=3)), max_size=4))
def test_records_of_any_registered_schemas_are_loaded_or_quarantined(
    registry: FakeRegistry, table_format: TableFormat, registered: list[tuple[Any, Any, list[bytes]]]
) -> None:
    """The schemas refer to a shared one, which may be anything itself."""
    values = []
    for number, (schema, shared, bodies) in enumerate(registered, 1):
        registry.subjects["shared", number] = {
            "schema": json.dumps({"type": "record", "name": "x.Shared", "fields": [{"name": "c", "type": shared}]})
        }
        registry.register(number, schema, references=[{"name": "x", "subject": "shared", "version": number}])
        values += [b"\0" + number.to_bytes(4) + body for body in bodies]
    check_loads(table_format, RowMapping(Avro(registry.url)), [values[:3], values[3:]])


def deep_schema(depth: int) -> Any:
    kind: Any = "int"
    for _ in range(depth):
        kind = {"type": "array", "items": kind}
    return kind


def field(kind: Any, name: Any = "v") -> Any:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind}]}


def record(name: str, **fields: Any) -> Any:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def avro_body(schema: Any, row: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def bomb(levels: int) -> Any:
    """Each record has the former one twice: a few lines, and two to the power of `levels` columns."""
    kind: Any = {"type": "record", "name": "T0", "fields": [{"name": "n", "type": "int"}]}
    for level in range(levels):
        fields = [{"name": "p", "type": kind}, {"name": "q", "type": f"T{level}"}]
        kind = {"type": "record", "name": f"T{level + 1}", "fields": fields}
    return kind


TWICE = [{"type": "enum", "name": "E", "symbols": ["P"]}, "E"]
BAD_SCHEMAS: list[tuple[Any, str]] = [
    ({**field("int"), "fields": [{"name": "n", "type": "int"}] * 2}, "the schema has the field n twice"),
    (field("int", name=5), "the schema has a field whose name is 5"),
    (field(deep_schema(100)), "the schema is more than 32 deep"),
    (field(bomb(25)), "the schema.v"),
    ({"type": "array", "items": field(TWICE[0])}, "the schema is no record"),
    ({"type": "map", "values": "int"}, "the schema is no record"),
    ([field("int"), {**field("int"), "name": "S"}], "the schema is a union of"),
    (field({"type": "array", "items": "null"}), "the schema.v is an array of values that take no bytes"),
    ({"type": "record", "name": "R", "fields": 5}, "the schema cannot be read"),
    ([], "the schema is no record"),
    ({}, "the schema"),
    (None, "the schema"),
    (field("Unknown"), "the schema cannot be read"),
]


@pytest.mark.parametrize(("schema", "reason"), BAD_SCHEMAS)
def test_records_of_a_bad_schema_are_quarantined_and_the_others_loaded(
    registry: FakeRegistry, table_format: TableFormat, schema: Any, reason: str
) -> None:
    registry.register(1, schema)
    registry.register(2, field("int"))
    reasons = check_loads(
        table_format, RowMapping(Avro(registry.url)), [[b"\0\0\0\0\1\2", b"\0\0\0\0\2\2", b"\0\0\0\0\1"]]
    )
    assert len(reasons) == 2
    assert all(why.startswith(reason) for why in reasons), reasons


def test_records_of_a_schema_of_2000_nested_arrays_are_quarantined(
    registry: FakeRegistry, table_format: TableFormat
) -> None:
    text = '{"type":"array","items":' * 2000 + '"int"' + "}" * 2000
    registry.schemas[1] = {"schema": f'{{"type":"record","name":"R","fields":[{{"name":"v","type":{text}}}]}}'}
    reasons = check_loads(table_format, RowMapping(Avro(registry.url)), [[b"\0\0\0\0\1\0"]])
    assert reasons == ["the schema is more than 32 deep"]


MAPS = [
    ("int", 1, "long", 1 << 40),
    ("int", 1, "double", 1.5),
    (record("S", a="int"), {"a": 1}, record("S", a="int", b="int"), {"a": 1, "b": 2}),
    ({"type": "map", "values": "int"}, {"k": 1}, {"type": "map", "values": "long"}, {"k": 1 << 40}),
]


@pytest.mark.parametrize(("before", "first", "after", "second"), MAPS)
def test_the_values_of_maps_are_promoted_from_load_to_load(
    registry: FakeRegistry, table_format: TableFormat, before: Any, first: Any, after: Any, second: Any
) -> None:
    loads = []
    for number, kind, value in ((1, before, first), (2, after, second)):
        schema = record("R", v={"type": "map", "values": kind})
        registry.register(number, schema)
        loads.append([b"\0" + number.to_bytes(4) + avro_body(schema, {"v": {"k": value}})])
    assert check_loads(table_format, RowMapping(Avro(registry.url)), loads) == []


# ---- Errors that no rule foresees


@dataclass(frozen=True)
class FailingText:
    """A format with a bug: it raises over some records."""

    error: Exception

    def columns(self) -> pa.Schema:
        return Text().columns()

    def parse(self, records: pa.RecordBatch, known: pa.Schema, fixed: Collection[LeafPath] = ()) -> Parsed:
        if b"bad" in records.column("value").to_pylist():
            raise self.error
        return Text().parse(records, known, fixed)


def test_a_record_over_which_a_format_fails_is_quarantined_alone(tmp_path: Path) -> None:
    values: Values = [b"a", b"bad", b"b", b"c", b"bad", b"d"]
    bench = Bench(tmp_path, MemoryTopic({0: values}), RowMapping(FailingText(RuntimeError("no rule"))))
    bench.load()
    assert sorted(bench.rows("text")) == ["a", "b", "c", "d"]
    assert bench.quarantined_files("reason") == [f"{UNFORESEEN}: RuntimeError: no rule"] * 2


@pytest.mark.parametrize("error", [RegistryFailed("the registry is out of order"), OSError("no space left")])
def test_an_error_that_says_nothing_about_a_record_fails_the_load(tmp_path: Path, error: Exception) -> None:
    bench = Bench(tmp_path, MemoryTopic({0: [b"a", b"bad"]}), RowMapping(FailingText(error)))
    with pytest.raises(type(error), match=str(error)):
        bench.load()
    assert bench.table.positions("web", [0]) == {}


# ---- Through Spark


def test_odd_records_pass_through_a_load_on_spark(
    spark: SparkSession, tmp_path: Path, table_format: TableFormat, registry: FakeRegistry
) -> None:
    rows: list[Any] = [row for row, _ in NAME_CLASHES]
    rows += [{"at": time, "s": {name: 1}} for time, name in zip(ODD_TIMES, itertools.cycle(NAMES), strict=False)]
    values: Values = [json.dumps(row).encode() for row in rows]
    values += [b'{"a":' * 1990 + b"1" + b"}" * 1990, b"{"]
    times_us = dict(enumerate(RECORD_TIMES_US))
    rule = TimeRule(TimeFrom.FIELD, field="at", granularity=Granularity.NONE)
    bench = Bench(
        tmp_path / "json",
        MemoryTopic({0: values}, times_us=times_us),
        RowMapping(JsonObjects({"at": "string"}), rule, {"at": "string"}),
        table_format=table_format,
    )
    _load_on_spark(spark, bench)
    for number, (schema, _) in enumerate(BAD_SCHEMAS, 1):
        registry.register(number, schema)
    good = field({"type": "int", "logicalType": "date"})
    registry.register(99, good)
    framed = [b"\0" + number.to_bytes(4) + b"\2" for number in range(1, len(BAD_SCHEMAS) + 1)]
    framed += [b"\0\0\0\0\x63" + avro_body(field("int"), {"v": 2932896}), b"\0\0\0\0\x63\xfe\xff\xff\xff\x0f"]
    bench = Bench(
        tmp_path / "avro", MemoryTopic({0: list(framed)}), RowMapping(Avro(registry.url)), table_format=table_format
    )
    _load_on_spark(spark, bench)
    assert len(bench.rows()) == 1


def _load_on_spark(spark: SparkSession, bench: Bench) -> None:
    loading = bench.loading()
    loading.task_runner = run_on_spark(spark)
    loading.run(bench.topic.bounds())
    bench.check_every_offset_once()
    assert bench.table.dataframe(spark).count() == len(bench.rows()) > 0
    assert bench.quarantine.dataframe(spark).where("reason is not null").count() == len(bench.quarantined_files())
