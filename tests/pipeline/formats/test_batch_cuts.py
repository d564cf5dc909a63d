"""Which records share a batch changes nothing: every record becomes the row it is alone, or is quarantined alone."""

from __future__ import annotations

import io
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ottla.pipeline.event_time import Granularity, TimeFrom, TimeRule
from ottla.pipeline.formats.access_log import AccessLog
from ottla.pipeline.formats.avro import Avro, reader_of
from ottla.pipeline.formats.csv_lines import CsvLines
from ottla.pipeline.formats.json_objects import JsonObjects
from ottla.pipeline.formats.plain import Raw, Text
from ottla.pipeline.formats.protobuf import Protobuf
from ottla.pipeline.formats.protobuf import reader_of as protobuf_reader_of
from ottla.pipeline.formats.registry import RegisteredSchema
from ottla.pipeline.formats.typed import EPOCHS, NAMES
from ottla.pipeline.lake import delta
from ottla.pipeline.lake.file_writer import FileTarget
from ottla.pipeline.lake.local_store import LocalStore
from ottla.pipeline.lake.schema import storable_schema
from ottla.pipeline.loading.commit_protocol import UNIFY_ROUNDS_MAX
from ottla.pipeline.loading.row_mapping import RowMapping
from ottla.pipeline.loading.write_task import WriteSpec, unify_columns
from ottla.pipeline.offset_range import OffsetRange
from ottla.pipeline.topic_reader import HEADERS, RECORDS
from tests.support.in_process_tasks import run_in_process

SCHEMA = RECORDS.append(pa.field("headers", HEADERS))
RULE = TimeRule(granularity=Granularity.NONE)
TYPES = [*(name for name in NAMES if "(" not in name), *EPOCHS, "decimal(10,2)", "decimal(38,0)", "decimal(4,4)"]
LARGE = (1 << 53) + 1


@dataclass(frozen=True)
class CutTopic:
    """A `TopicReader` of a partition whose batches end at `cuts`."""

    values: Sequence[bytes | None]
    cuts: Sequence[int]

    def read(self, offsets: OffsetRange) -> Iterator[pa.RecordBatch]:
        inside = [cut for cut in self.cuts if offsets.first_offset < cut < offsets.end_offset]
        for first, end in itertools.pairwise([offsets.first_offset, *inside, offsets.end_offset]):
            at = range(first, end)
            yield pa.record_batch(
                [
                    pa.array([0] * len(at), pa.int32()),
                    pa.array(at, pa.int64()),
                    pa.array([1_431_857_103_000_000] * len(at), pa.timestamp("us", tz="UTC")),
                    pa.nulls(len(at), pa.binary()),
                    pa.array([self.values[n] for n in at], pa.binary()),
                    pa.nulls(len(at), HEADERS),
                ],
                schema=SCHEMA,
            )


def rows_in(path: Path) -> list[dict[str, Any]]:
    """Rows with times as numbers: Python's end in the year 9999."""
    rows = pq.read_table(path)
    for at, f in enumerate(rows.schema):
        if pa.types.is_timestamp(f.type):
            rows = rows.set_column(at, f.name, rows.column(at).cast(pa.int64()))
    found: list[dict[str, Any]] = rows.to_pylist()
    return found


def load(
    mapping: RowMapping, values: Sequence[bytes | None], cuts: Sequence[int], tasks: Sequence[int] = ()
) -> tuple[dict[int, dict[str, Any]], set[int], dict[str, str]]:
    """The rows by offset, the offsets that are quarantined, and the columns' types."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        rows_at, quarantined_at = (
            FileTarget(LocalStore(root / part), delta.LAYOUT, ()) for part in ("rows", "quarantined")
        )
        job = WriteSpec("t", CutTopic(values, cuts), mapping, rows_at, quarantined_at, pa.schema([]), stem="x")
        ends = [n for n in tasks if 0 < n < len(values)]
        parts = [[OffsetRange(0, a, b)] for a, b in itertools.pairwise([0, *ends, len(values)])]
        staged = run_in_process(job, parts)
        for _ in range(UNIFY_ROUNDS_MAX + len(parts)):
            job, again = unify_columns(staged, job)
            for n, task in zip(again, run_in_process(job, [parts[n] for n in again]), strict=True):
                staged[n] = task
            if not again:
                break
        assert not again
        rows = [row for task in staged for file in task.rows for row in rows_in(root / "rows" / file.path)]
        quarantined = [
            offset
            for task in staged
            for file in task.quarantined
            for offset in pq.read_table(root / "quarantined" / file.path)["offset"].to_pylist()
        ]
    fields = {f.name: str(f.type) for f in sorted(storable_schema(job.fields), key=lambda f: f.name)}
    found = {row["offset"]: {n: row[n] for n in fields if row.get(n) is not None} for row in rows}
    assert len(rows) + len(quarantined) == len(values)
    return found, set(quarantined), fields


def check(mapping: RowMapping, values: Sequence[bytes | None], cuts: Sequence[int], tasks: Sequence[int] = ()) -> None:
    alone = load(mapping, values, range(len(values)))
    assert repr(load(mapping, values, cuts)) == repr(alone)
    assert repr(load(mapping, values, cuts, tasks)) == repr(alone)


cuts = st.lists(st.integers(1, 12), max_size=4, unique=True).map(sorted)
PROPERTY = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)

NUMBERS = ["1", "-3", str(LARGE), str(-LARGE), str(LARGE - 1), str((1 << 63) - 1), str(1 << 63), "12345678901234567890"]
NUMBERS += [
    "1.5",
    "4.0",
    "0.1",
    "1e2",
    "1e15",
    "1e300",
    "12.345",
    "123456789.5",
    "16777217",
    "1431857103.25",
    "10" + "0" * 18,
]
SCALARS = [*NUMBERS, '"x"', '"5"', '" 5 "', '"1.50"', '"2015-05-17T10:05:03Z"', '"2015-05-17"', '"2015-05-17T10Z"']
SCALARS += ["true", "null", '"12.345"', '"true"']
NESTED = ["[]", "[1]", "[1.5]", f"[{LARGE}]", f"[{LARGE},1.5]", '["x"]', "[[]]", "[[1]]", "{}", '{"x":1}', '{"x":1.5}']
NESTED += ["[null,null]", "[[null,null],[]]", '{"x":[null,null]}', '[{"a":[null,null]}]', "[null,1,null]"]
NESTED += ['{"X":1}', '{"X":1.5}', '{"X":"t"}', '{"x":1,"X":2}', f'[{{"x":1}},{{"X":{LARGE}}}]', f'{{"X":{LARGE}}}']
NESTED += [f'{{"x":{LARGE}}}', '{"x":"t"}', '{"x":[]}', '{"x":[1],"y":2.5}', '[{"a":[]}]', '[{"a":[1]},{}]', "[null]"]


def objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    fields = st.dictionaries(st.sampled_from(["a", "b", "c", "A", "a.x"]), values, max_size=2)
    return fields.map(lambda found: ("{" + ",".join(f'"{n}":{v}' for n, v in found.items()) + "}").encode())


json_values = st.lists(
    objects(st.sampled_from([*SCALARS, *NESTED])) | objects(st.sampled_from(NUMBERS)) | st.just(b"{no"), max_size=12
)


@PROPERTY
@example([b'{"b":1,"A":9007199254740993}', b'{"a":9223372036854775808}'], [], [])
@given(json_values, cuts, cuts)
def test_json_objects_become_the_same_rows_in_any_batches(values: list[bytes], at: list[int], tasks: list[int]) -> None:
    check(RowMapping(JsonObjects(), RULE), values, at, tasks)


@PROPERTY
@example([b"{}", b'{"a":9223372036854775808}'], [], [], "string", "decimal(10,2)")  # read at once, and in parts
@example([b"{}", b'{"a":[1]}'], [], [], "string", "decimal(10,2)")
@example([b'{"A":1}', b'{"b":1,"A":9223372036854775808}'], [], [1], "string", "string")
@example([b"{}", b'{"b":1,"A":9223372036854775808}'], [], [], "decimal(10,2)", "string")
@given(json_values, cuts, cuts, st.sampled_from(TYPES), st.sampled_from(TYPES))
def test_json_objects_with_declared_types_become_the_same_rows_in_any_batches(
    values: list[bytes], at: list[int], tasks: list[int], a: str, b: str
) -> None:
    columns = {"a": a, "b": b}
    check(RowMapping(JsonObjects(columns), RULE, columns), values, at, tasks)


@PROPERTY
@given(json_values, cuts, cuts, st.sampled_from(["iso", *EPOCHS]))
def test_json_objects_with_a_time_in_a_field_become_the_same_rows_in_any_batches(
    values: list[bytes], at: list[int], tasks: list[int], form: str
) -> None:
    rule = TimeRule(TimeFrom.FIELD, field="a", form=form, granularity=Granularity.NONE)
    check(RowMapping(JsonObjects(), rule), values, at, tasks)


@pytest.mark.parametrize("kind", TYPES)
def test_json_objects_become_the_same_rows_beside_every_other_value(kind: str) -> None:
    values = [f'{{"a":{text}}}'.encode() for text in SCALARS]
    check(RowMapping(JsonObjects({"a": kind}), RULE, {"a": kind}), values, [])


TEXTS = ["1", "-3", str(LARGE), "1.5", "4.0", " 7 ", "1e2", "x", "", "true", "2015-05-17", "2015-05-17T10:05:03Z"]
TEXTS += ["2015-05-17T10Z", "2015-05-17 10:05", "12.345", "123456789.55", "12345678901234567890", "1431857103"]


@PROPERTY
@given(st.lists(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=3), max_size=12), cuts, st.sampled_from(TYPES))
def test_csv_lines_become_the_same_rows_in_any_batches(lines: list[list[str]], at: list[int], kind: str) -> None:
    values = [",".join(fields).encode() for fields in lines]
    check(RowMapping(CsvLines(("a", "b")), RULE, {"a": kind}), values, at, at)


AVRO_TYPES: dict[str, tuple[Any, list[Any]]] = {
    "long": ("long", [1, LARGE, -LARGE, (1 << 63) - 1]),
    "int": ("int", [1, -3]),
    "double": ("double", [1.5, 4.0, 1e300]),
    "either": (["null", "long", "double"], [None, 1, 1.5, LARGE]),
    "string": ("string", ["x", "5"]),
    "longs": ({"type": "array", "items": "long"}, [[], [1], [LARGE]]),
    "doubles": ({"type": "array", "items": "double"}, [[], [1.5]]),
    "decimal": (
        {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
        [Decimal("1.50"), Decimal("1234567890.12")],
    ),
    "record": ({"type": "record", "name": "R", "fields": [{"name": "x", "type": "long"}]}, [{"x": 1}, {"x": LARGE}]),
    "other": ({"type": "record", "name": "O", "fields": [{"name": "x", "type": "double"}]}, [{"x": 1.5}]),
}


def _schema(name: str) -> dict[str, Any]:
    return {"type": "record", "name": "E", "fields": [{"name": "a", "type": AVRO_TYPES[name][0]}]}


def avro_value(name: str, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(_schema(name)), {"a": value})
    return b"\0" + list(AVRO_TYPES).index(name).to_bytes(4) + out.getvalue()


def avro(declared: dict[str, str]) -> Avro:
    made = Avro(registry_url="http://127.0.0.1:1", declared=declared)
    for number, name in enumerate(AVRO_TYPES):
        made._memory.readers[number] = reader_of(RegisteredSchema("AVRO", json.dumps(_schema(name))))
    return made


avro_values = st.lists(
    st.sampled_from(sorted(AVRO_TYPES)).flatmap(
        lambda name: st.sampled_from(AVRO_TYPES[name][1]).map(lambda value: avro_value(name, value))
    )
    | st.just(b"none"),
    max_size=12,
)


@PROPERTY
@given(avro_values, cuts, cuts, st.none() | st.sampled_from(TYPES))
@example(values=[avro_value("long", LARGE), avro_value("double", 1.5)], at=[], tasks=[], kind=None)
@example(values=[avro_value("record", {"x": LARGE}), avro_value("other", {"x": 1.5})], at=[], tasks=[], kind=None)
def test_avro_records_become_the_same_rows_in_any_batches(
    values: list[bytes], at: list[int], tasks: list[int], kind: str | None
) -> None:
    columns = {} if kind is None else {"a": kind}
    check(RowMapping(avro(columns), RULE, columns), values, at, tasks)


PROTOBUF_NUMBERS = Field.TYPE_INT64, Field.TYPE_DOUBLE, Field.TYPE_UINT64, Field.TYPE_INT32
PROTOBUF_TYPES: list[tuple[Any, Any, list[Any]]] = [
    *((kind, Field.LABEL_OPTIONAL, [0, 1, 4]) for kind in PROTOBUF_NUMBERS),
    (Field.TYPE_INT64, Field.LABEL_OPTIONAL, [LARGE, -LARGE]),
    (Field.TYPE_STRING, Field.LABEL_OPTIONAL, ["", "x", "5"]),
    (Field.TYPE_INT64, Field.LABEL_REPEATED, [[], [1], [LARGE]]),
    (Field.TYPE_DOUBLE, Field.LABEL_REPEATED, [[], [1.5]]),
]


def protobuf(declared: dict[str, str]) -> Protobuf:
    """A registry's schemas, each with one message."""
    made = Protobuf(registry_url="http://127.0.0.1:1", declared=declared)
    for number, (kind, label, _) in enumerate(PROTOBUF_TYPES):
        file = FileDescriptorProto(name="a.proto", syntax="proto3")
        file.message_type.add(name="M").field.add(name="a", number=1, type=kind, label=label)
        made._memory.readers[number] = protobuf_reader_of({"": file.SerializeToString()})
    return made


def protobuf_value(number: int, value: Any) -> bytes:
    reader: Any = protobuf({})._memory.readers[number]
    message, _ = reader.select(b"\0", 0)
    body: bytes = message.make(a=value).SerializeToString()
    return b"\0" + number.to_bytes(4) + b"\0" + body


protobuf_values = st.lists(
    st.integers(0, len(PROTOBUF_TYPES) - 1).flatmap(
        lambda number: st.sampled_from(PROTOBUF_TYPES[number][2]).map(lambda value: protobuf_value(number, value))
    )
    | st.just(b"none"),
    max_size=12,
)


@PROPERTY
@given(protobuf_values, cuts, cuts, st.none() | st.sampled_from(TYPES))
def test_protobuf_records_become_the_same_rows_in_any_batches(
    values: list[bytes], at: list[int], tasks: list[int], kind: str | None
) -> None:
    columns = {} if kind is None else {"a": kind}
    check(RowMapping(protobuf(columns), RULE, columns), values, at, tasks)


LINES = [b'203.0.113.9 - - [17/May/2015:10:05:03 +0000] "GET /a?b HTTP/1.1" 200 512', b"no line", b"", b"\xff", None]
LINES += [b'h - - [31/Feb/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 -', b'h - - [17/May/2015:10:05:03 +0200] "-" 408 0']


@pytest.mark.parametrize("make", [AccessLog, Text, Raw])
@PROPERTY
@given(st.lists(st.sampled_from(LINES), max_size=12), cuts)
def test_lines_become_the_same_rows_in_any_batches(
    make: Callable[[], Any], values: list[bytes | None], at: list[int]
) -> None:
    check(RowMapping(make(), RULE), values, at, at)


def test_numbers_are_stored_digit_for_digit() -> None:
    values = [
        b'{"id":9007199254740993,"n":1}',
        b'{"id":1.5,"n":2}',
        b'{"id":12345678901234567890}',
        b'{"n":1.5,"id":7}',
    ]
    rows, quarantined, fields = load(RowMapping(JsonObjects(), RULE), values, [])
    assert rows == {0: {"id": 9007199254740993, "n": 1.0}, 3: {"id": 7, "n": 1.5}}
    assert quarantined == {1, 2}
    assert fields == {"id": "int64", "n": "double"}


def test_declared_decimals_take_every_number_that_they_hold() -> None:
    texts = ["1", "1.5", '"2.50"', "12345678.91", "1e2", "12.345", "123456789", "9007199254740993", "0.10", "true"]
    values = [f'{{"a":{text},"b":{text}}}'.encode() for text in texts]
    columns = {"a": "decimal(10,2)", "b": "decimal(38,2)"}
    rows, quarantined, _ = load(RowMapping(JsonObjects(columns), RULE, columns), values, [])
    wanted = {0: "1.00", 1: "1.50", 2: "2.50", 3: "12345678.91", 4: "100.00", 8: "0.10"}
    assert {n: row["a"] for n, row in rows.items()} == {n: Decimal(text) for n, text in wanted.items()}
    assert quarantined == {5, 6, 7, 9}
    large = [b'{"b":9007199254740993}', b'{"b":123456789012345678.91}', b'{"b":1.5}']
    rows, _, _ = load(RowMapping(JsonObjects(columns), RULE, columns), large, [])
    assert [row["b"] for row in rows.values()] == [
        Decimal(9007199254740993),
        Decimal("123456789012345678.91"),
        Decimal("1.5"),
    ]
