"""Avro records with a registry's header, and without one; the registry is a small one over HTTP in this process."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from ottla.pipeline.formats.avro import Avro
from ottla.pipeline.formats.by_schema import UnsupportedSchema
from ottla.pipeline.formats.format import NO_VALUE
from ottla.pipeline.formats.registry import RegistryFailed
from ottla.pipeline.loading.row_mapping import RowMapper, RowMapping
from tests.pipeline.formats.records import parse, records
from tests.support.schema_registry import FakeRegistry, fake_registry

USER = {"type": "record", "name": "User", "fields": [{"name": "id", "type": "int"}, {"name": "name", "type": "string"}]}


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as found:
        yield found


def body(schema: Any, row: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def framed(schema_id: int, schema: Any, row: Any) -> bytes:
    return b"\x00" + schema_id.to_bytes(4) + body(schema, row)


def test_records_are_read_with_the_schema_they_name(registry: FakeRegistry) -> None:
    newer = {**USER, "fields": [*USER["fields"], {"name": "age", "type": ["null", "long"], "default": None}]}
    registry.register(7, USER)
    registry.register(8, newer)
    values = [
        framed(7, USER, {"id": 1, "name": "a"}),
        framed(8, newer, {"id": 2, "name": "b", "age": 40}),
        framed(7, USER, {"id": 3, "name": "c"}),
    ]
    rows, reasons = parse(Avro(registry.url), *values)
    assert rows == [
        {"id": 1, "name": "a", "age": None},
        {"id": 2, "name": "b", "age": 40},
        {"id": 3, "name": "c", "age": None},
    ]
    assert reasons == [None] * 3


def test_schemas_are_fetched_once_and_pickled_with_the_format(registry: FakeRegistry) -> None:
    registry.register(7, USER)
    form = Avro(registry.url)
    for _ in range(3):
        parse(form, framed(7, USER, {"id": 1, "name": "a"}), framed(9, USER, {"id": 1, "name": "a"}))
    assert registry.asked == {"/schemas/ids/7": 1, "/schemas/ids/9": 1}
    parse(pickle.loads(pickle.dumps(form)), framed(7, USER, {"id": 1, "name": "a"}))
    assert registry.asked["/schemas/ids/7"] == 1


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, NO_VALUE),
        (b"", "no header of a schema registry"),
        (b"\x01\x00\x00\x00\x07\x02\x02a", "no header of a schema registry"),
        (b"\x00\x00\x00\x00\x63\x02\x02a", "there is no schema 99 in the registry"),
        (b"\x00\x00\x00\x00\x07", "not a record of its Avro schema"),
        (b"\x00\x00\x00\x00\x07\x02\xffa", "not a record of its Avro schema"),
        (b"\x00\x00\x00\x00\x07\x02\x02ab", "not a record of its Avro schema: 1 bytes are left over"),
        (b"\x00\x00\x00\x00\x07\x02\x02\xff", "not a record of its Avro schema"),
    ],
)
def test_invalid_values_get_a_reason_and_the_others_are_read(
    registry: FakeRegistry, value: bytes | None, reason: str
) -> None:
    registry.register(7, USER)
    good = framed(7, USER, {"id": 1, "name": "a"})
    rows, reasons = parse(Avro(registry.url), good, value, good)
    assert [rows[0], rows[2]] == [{"id": 1, "name": "a"}] * 2
    assert reasons[1] is not None
    assert reasons[1].startswith(reason)
    assert reasons[0] is reasons[2] is None


def test_a_request_to_an_unavailable_registry_is_retried(registry: FakeRegistry) -> None:
    registry.register(7, USER)
    registry.broken = 2
    assert parse(Avro(registry.url), framed(7, USER, {"id": 1, "name": "a"}))[1] == [None]


def test_an_unreachable_registry_quarantines_no_records(registry: FakeRegistry) -> None:
    value = framed(7, USER, {"id": 1, "name": "a"})
    registry.broken = 1000
    with pytest.raises(RegistryFailed, match="answers 500"):
        parse(Avro(registry.url), value)
    with pytest.raises(RegistryFailed, match="cannot be asked"):
        parse(Avro("http://127.0.0.1:1"), value)
    registry.broken, registry.password = 0, "me:secret"
    with pytest.raises(RegistryFailed, match="answers 401") as found:
        parse(Avro(registry.url.replace("//", "//me:wrong@")), value)
    assert "wrong" not in str(found.value)


def test_a_user_and_a_password_in_the_url_are_shown_to_the_registry(registry: FakeRegistry) -> None:
    registry.register(7, USER)
    registry.password = "me:s/cret"
    url = registry.url.replace("//", "//me:s%2Fcret@")
    assert parse(Avro(url), framed(7, USER, {"id": 1, "name": "a"}))[1] == [None]


def test_schemas_that_refer_to_others_are_read(registry: FakeRegistry) -> None:
    order = {"type": "record", "name": "Order", "fields": [{"name": "by", "type": "User"}]}
    registry.subjects["user-value", 3] = {"schema": json.dumps(USER)}
    registry.register(9, order, references=[{"name": "User", "subject": "user-value", "version": 3}])
    whole = {**order, "fields": [{"name": "by", "type": USER}]}
    rows, _ = parse(Avro(registry.url), framed(9, whole, {"by": {"id": 1, "name": "a"}}))
    assert rows == [{"by": {"id": 1, "name": "a"}}]


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()]}


KIND = {"type": "enum", "name": "x.Kind", "symbols": ["HOME", "WORK"]}
COUNTRY = record("x.Country", code="string", kind="x.Kind")
ADDRESS = record("x.Address", country="x.Country", kind="x.Kind")
PERSON = record("x.Person", address="x.Address", country="x.Country")


def refer(name: str) -> dict[str, Any]:
    return {"name": name, "subject": name, "version": 1}


def test_references_of_references_are_read(registry: FakeRegistry) -> None:
    """A chain, a diamond (two ways to x.Country) and an enum at the end of both."""
    for schema, names in ((KIND, []), (COUNTRY, ["x.Kind"]), (ADDRESS, ["x.Country", "x.Kind"])):
        answer = {"schema": json.dumps(schema), "references": [refer(name) for name in names]}
        registry.subjects[str(schema["name"]), 1] = answer
    registry.register(9, PERSON, references=[refer("x.Address"), refer("x.Country")])
    whole = record("x.Person", address=record("x.Address", country={**COUNTRY}, kind="x.Kind"), country="x.Country")
    whole["fields"][0]["type"]["fields"][0]["type"]["fields"][1]["type"] = KIND
    country = {"code": "at", "kind": "WORK"}
    row = {"address": {"country": country, "kind": "HOME"}, "country": {**country, "code": "de"}}
    assert parse(Avro(registry.url), framed(9, whole, row)) == ([row], [None])


def test_a_union_with_null_at_the_top_that_names_a_type_twice_is_read(registry: FakeRegistry) -> None:
    schema = ["null", record("P", a={"type": "enum", "name": "E", "symbols": ["X", "Y"]}, b="E")]
    registry.register(9, schema)
    values = [framed(9, schema, {"a": "X", "b": "Y"}), framed(9, schema, None)]
    rows, reasons = parse(Avro(registry.url), *values)
    assert (rows[0], reasons) == ({"a": "X", "b": "Y"}, [None, "not a record of its Avro schema: it is null"])


@pytest.mark.parametrize(
    ("references", "answers", "reason"),
    [
        ([refer("a")], {}, "the schema refers to a 1, which is not in the registry"),
        ([refer("a")], {"a": ["b"], "b": ["a"]}, "the schema refers to a 1, which refers to itself"),
        ([{"name": "a"}], {}, "the schema's references cannot be read: KeyError('subject')"),
        ([refer("0")], {str(n): [str(n + 1)] for n in range(50)}, "the schema refers to 20 1, which refers to others,"),
    ],
)
def test_a_schema_whose_references_cannot_be_followed_quarantines_its_records(
    registry: FakeRegistry, references: list[Any], answers: dict[str, list[str]], reason: str
) -> None:
    for name, names in answers.items():
        schema = json.dumps(record(f"N{name}", a="int"))
        registry.subjects[name, 1] = {"schema": schema, "references": [refer(other) for other in names]}
    registry.register(7, USER)
    registry.register(9, USER, references=references)
    good = framed(7, USER, {"id": 1, "name": "a"})
    _, (first, second) = parse(Avro(registry.url), framed(9, USER, {"id": 1, "name": "a"}), good)
    assert first is not None
    assert first.startswith(reason)
    assert second is None


def test_an_id_that_no_registry_gives_is_not_asked_for(registry: FakeRegistry) -> None:
    assert parse(Avro(registry.url), b"\0\xff\xff\xff\xff\0")[1] == ["4294967295 is no id of a schema"]
    assert not registry.asked


def test_nanoseconds_are_kept_as_a_declared_long(registry: FakeRegistry) -> None:
    schema = record("T", at={"type": "long", "logicalType": "timestamp-nanos"})
    registry.register(9, schema)
    plain = record("T", at="long")
    whole, fraction = (framed(9, plain, {"at": nanos}) for nanos in (1_000, 1_001))
    mapped = RowMapper(RowMapping(Avro(registry.url)), "t", pa.schema([])).map(records(whole, fraction))
    assert mapped.rows["at"].cast(pa.int64()).to_pylist() == [1]
    assert mapped.quarantined["reason"].to_pylist() == [
        "field at holds a value that does not fit timestamp[us, tz=UTC]"
    ]
    declared = {"at": "long"}
    mapping = RowMapping(Avro(registry.url, declared=declared), columns=declared)
    mapped = RowMapper(mapping, "t", pa.schema([])).map(records(whole, fraction))
    assert mapped.rows["at"].to_pylist() == [1_000, 1_001]


def test_a_schema_of_another_kind_is_reported(registry: FakeRegistry) -> None:
    registry.register(7, {}, schemaType="PROTOBUF")
    assert parse(Avro(registry.url), b"\x00\x00\x00\x00\x07")[1] == ["the schema is PROTOBUF, not AVRO"]


EVERYTHING = {
    "type": "record",
    "name": "Everything",
    "fields": [
        {"name": "i", "type": "int"},
        {"name": "l", "type": "long"},
        {"name": "f", "type": "float"},
        {"name": "d", "type": "double"},
        {"name": "b", "type": "boolean"},
        {"name": "by", "type": "bytes"},
        {"name": "fx", "type": {"type": "fixed", "name": "Two", "size": 2}},
        {"name": "e", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "us", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "p", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "u", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "ls", "type": {"type": "array", "items": ["null", "int"]}},
        {"name": "m", "type": {"type": "map", "values": "long"}},
        {"name": "n", "type": ["int", "null", "long"]},
    ],
}


def test_every_type_has_its_column(registry: FakeRegistry) -> None:
    time = datetime(2015, 5, 17, 10, tzinfo=UTC)
    row = {
        "i": 1,
        "l": 1 << 40,
        "f": 0.5,
        "d": 0.25,
        "b": True,
        "by": b"\x00\xff",
        "fx": b"xy",
        "e": "B",
        "day": date(2015, 5, 17),
        "ms": time,
        "us": time,
        "p": Decimal("12.34"),
        "u": "12345678-1234-5678-1234-567812345678",
        "ls": [1, None],
        "m": {"k": 5},
        "n": 1 << 40,
    }
    registry.register(7, EVERYTHING)
    parsed = Avro(registry.url).parse(records(framed(7, EVERYTHING, row)), pa.schema([]))
    (got,) = parsed.rows.to_pylist()
    assert got.pop("m") == [("k", 5)]
    assert got == {name: value for name, value in row.items() if name != "m"}
    types = {f.name: str(f.type) for f in parsed.rows.schema}
    assert (types["ms"], types["day"], types["p"], types["n"]) == (
        "timestamp[us, tz=UTC]",
        "date32[day]",
        "decimal128(6, 2)",
        "int64",
    )


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("int", "the schema is no record"),
        ({**USER, "fields": [{"name": "x", "type": ["int", "string"]}]}, "the schema.x is a union of int32 and string"),
        (
            {**USER, "fields": [{"name": "next", "type": ["null", "User"]}]},
            "the schema.next refers to User, which it is part of",
        ),
        ({"type": "nonsense"}, "the schema cannot be read"),
    ],
)
def test_schemas_without_a_table_quarantine_their_records(registry: FakeRegistry, schema: Any, reason: str) -> None:
    registry.register(7, schema)
    (found,) = parse(Avro(registry.url), b"\x00\x00\x00\x00\x07\x00")[1]
    assert found is not None
    assert found.startswith(reason)


def test_records_without_a_header_have_the_schema_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "user.avsc"
    path.write_text(json.dumps(USER))
    form = Avro.of_file(path)
    assert form.columns() == pa.schema([("id", pa.int32()), ("name", pa.string())])
    rows, reasons = parse(form, body(USER, {"id": 1, "name": "a"}), b"\x02")
    assert (rows[0], reasons[0]) == ({"id": 1, "name": "a"}, None)
    assert reasons[1] is not None
    path.write_text('"int"')
    with pytest.raises(UnsupportedSchema):
        Avro.of_file(path)


def test_a_field_whose_type_changed_from_schema_to_schema_is_a_conflict(registry: FakeRegistry) -> None:
    other = {**USER, "fields": [{"name": "id", "type": "string"}]}
    registry.register(7, USER)
    registry.register(8, other)
    rows, reasons = parse(Avro(registry.url), framed(7, USER, {"id": 1, "name": "a"}), framed(8, other, {"id": "x"}))
    assert rows[0] == {"id": 1, "name": "a"}
    assert reasons == [None, "field id is string, and the table has int32"]


def test_a_renamed_field_is_the_column_of_its_oldest_name_where_that_is_wanted(registry: FakeRegistry) -> None:
    def schema(name: str, *aliases: str) -> dict[str, Any]:
        inner = {"type": "record", "name": "In", "fields": [{"name": name, "type": "int", "aliases": list(aliases)}]}
        fields = [{"name": name, "type": "int", "aliases": list(aliases)}, {"name": "in", "type": inner}]
        return {"type": "record", "name": "User", "fields": fields}

    schemas = [schema("a"), schema("b", "a"), schema("c", "b", "a")]
    values = []
    for number, (made, name) in enumerate(zip(schemas, "abc", strict=True)):
        registry.register(number, made)
        values.append(framed(number, made, {name: number, "in": {name: number}}))
    rows, reasons = parse(Avro(registry.url, by_alias=True), *values)
    assert (rows, reasons) == ([{"a": n, "in": {"a": n}} for n in range(3)], [None] * 3)
    rows, _ = parse(Avro(registry.url), *values)
    assert [sorted(name for name, value in row.items() if value is not None) for row in rows] == [
        ["a", "in"],
        ["b", "in"],
        ["c", "in"],
    ]


def test_records_inside_lists_and_maps_evolve(registry: FakeRegistry) -> None:
    def schema(*fields: tuple[str, str]) -> dict[str, Any]:
        item = {"type": "record", "name": "Item", "fields": [{"name": n, "type": t} for n, t in fields]}
        kinds = {"list": {"type": "array", "items": item}, "map": {"type": "map", "values": ["null", "Item"]}}
        return {"type": "record", "name": "E", "fields": [{"name": n, "type": t} for n, t in kinds.items()]}

    old, new = schema(("x", "int"), ("gone", "string")), schema(("x", "long"), ("y", "double"))
    registry.register(1, old)
    registry.register(2, new)
    before, after = {"x": 1, "gone": "g"}, {"x": 1 << 40, "y": 0.5}
    values = [
        framed(1, old, {"list": [before], "map": {"k": before}}),
        framed(2, new, {"list": [after], "map": {"k": None}}),
    ]
    rows, reasons = parse(Avro(registry.url), *values)
    assert reasons == [None, None]
    was, now = {**before, "y": None}, {**after, "gone": None}
    assert rows == [{"list": [was], "map": [("k", was)]}, {"list": [now], "map": [("k", None)]}]
