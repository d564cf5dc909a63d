"""Protobuf records with a registry's header, and of one message in a file of descriptors."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

from ottla.pipeline.formats.by_schema import UnsupportedSchema
from ottla.pipeline.formats.protobuf import Protobuf
from tests.pipeline.formats.records import parse
from tests.support.schema_registry import FakeRegistry, fake_registry

PARTS = {
    "name": "shop/parts.proto",
    "package": "shop",
    "syntax": "proto3",
    "message_type": [{"name": "Part", "field": [("code", 1, Field.TYPE_STRING), ("size", 2, Field.TYPE_INT32)]}],
}
ORDER = {
    "name": "shop/order.proto",
    "package": "shop",
    "syntax": "proto3",
    "dependency": [
        "shop/parts.proto",
        "google/protobuf/timestamp.proto",
        "google/protobuf/wrappers.proto",
        "google/protobuf/struct.proto",
    ],
    "enum_type": [("State", ["NEW", "PAID"])],
    "message_type": [
        {"name": "Other", "field": [("id", 1, Field.TYPE_STRING)]},
        {
            "name": "Order",
            "field": [
                ("id", 1, Field.TYPE_UINT64),
                ("at", 2, ".google.protobuf.Timestamp"),
                ("state", 3, Field.TYPE_ENUM, ".shop.State"),
                ("parts", 4, [".shop.Part"]),
                ("note", 5, ".google.protobuf.StringValue"),
                ("more", 6, ".google.protobuf.Struct"),
                ("data", 7, Field.TYPE_BYTES),
                ("small", 8, Field.TYPE_UINT32),
                ("counts", 9, [".shop.Order.CountsEntry"]),
                ("ratio", 10, Field.TYPE_FLOAT),
                ("by_card", 11, Field.TYPE_STRING, "oneof"),
                ("by_cash", 12, Field.TYPE_BOOL, "oneof"),
                ("inner", 13, ".shop.Order.Inner"),
            ],
            "oneof": "payment",
            "nested_type": [
                {"name": "CountsEntry", "field": [("key", 1, Field.TYPE_INT32), ("value", 2, Field.TYPE_INT64)]},
                {"name": "Inner", "field": [("flag", 1, Field.TYPE_BOOL)]},
            ],
        },
    ],
}
INDEXES_OF_ORDER = bytes([2, 2])
INDEXES_OF_INNER = bytes([4, 2, 2])


def message(about: dict[str, Any]) -> descriptor_pb2.DescriptorProto:
    found = descriptor_pb2.DescriptorProto(name=about["name"])
    for name, number, given, *more in about["field"]:
        f = found.field.add(name=name, number=number, label=Field.LABEL_OPTIONAL)
        kind = given
        if isinstance(given, list):
            f.label, kind = Field.LABEL_REPEATED, given[0]
        if isinstance(kind, str):
            f.type, f.type_name = Field.TYPE_MESSAGE, kind
        else:
            f.type = kind
        if more == ["oneof"]:
            f.oneof_index = 0
        elif more:
            f.type_name = more[0]
    if "oneof" in about:
        found.oneof_decl.add(name=about["oneof"])
    for inside in about.get("nested_type", ()):
        nested = message(inside)
        nested.options.map_entry = inside["name"].endswith("Entry")
        found.nested_type.append(nested)
    return found


def file(about: dict[str, Any]) -> descriptor_pb2.FileDescriptorProto:
    found = descriptor_pb2.FileDescriptorProto(
        name=about["name"], package=about["package"], syntax=about["syntax"], dependency=about.get("dependency", [])
    )
    for name, values in about.get("enum_type", ()):
        kind = found.enum_type.add(name=name)
        for number, value in enumerate(values):
            kind.value.add(name=value, number=number)
    found.message_type.extend(map(message, about["message_type"]))
    return found


def message_class(name: str) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, wrappers_pb2, struct_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    for about in (PARTS, ORDER):
        pool.Add(file(about))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def order(**fields: Any) -> bytes:
    found = message_class("shop.Order")(**fields)
    return bytes(found.SerializeToString())


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as found:
        found.register_protobuf(3, "parts", file(PARTS).SerializeToString(), "parts")
        references = [{"name": "shop/parts.proto", "subject": "parts", "version": 1}]
        found.register_protobuf(7, "orders", file(ORDER).SerializeToString(), "orders", references=references)
        yield found


def framed(body: bytes, indexes: bytes = INDEXES_OF_ORDER, schema_id: int = 7) -> bytes:
    return b"\0" + schema_id.to_bytes(4) + indexes + body


def test_a_record_becomes_a_row_by_the_schema_and_the_message_that_it_names(registry: FakeRegistry) -> None:
    part = {"code": "p", "size": -3}
    full = order(
        id=(1 << 64) - 1,
        at={"seconds": -62_135_596_800, "nanos": 5_000},
        state=1,
        parts=[part, {}],
        note={"value": ""},
        data=b"\xff",
        small=(1 << 32) - 1,
        counts={2: 20, -1: 10},
        ratio=0.5,
        by_card="visa",
        inner={},
    )
    rows, reasons = parse(Protobuf(registry.url), framed(full), framed(b""))
    assert reasons == [None, None]
    assert rows[0] == {
        "id": Decimal((1 << 64) - 1),
        "at": datetime(1, 1, 1, 0, 0, 0, 5, UTC),
        "state": "PAID",
        "parts": [part, {"code": "", "size": 0}],
        "note": "",
        "more": None,
        "data": b"\xff",
        "small": (1 << 32) - 1,
        "counts": [("-1", 10), ("2", 20)],
        "ratio": 0.5,
        "by_card": "visa",
        "by_cash": None,
        "inner": {"flag": False},
    }
    nulls = {name for name, value in rows[1].items() if value is None}
    assert nulls == {"at", "note", "more", "by_card", "by_cash", "inner"}
    assert (rows[1]["id"], rows[1]["state"], rows[1]["parts"]) == (Decimal(0), "NEW", [])


def test_json_of_a_struct_and_an_unknown_value_of_an_enum_are_texts(registry: FakeRegistry) -> None:
    more = struct_pb2.Struct()
    more.update({"b": [1, None], "a": "ü"})
    rows, _ = parse(Protobuf(registry.url), framed(order(more=more, state=9)))
    assert (rows[0]["more"], rows[0]["state"]) == ('{"a": "ü", "b": [1.0, null]}', "9")


def test_records_of_different_messages_of_one_schema_have_their_own_columns(registry: FakeRegistry) -> None:
    other = message_class("shop.Other")(id="o").SerializeToString()
    rows, reasons = parse(
        Protobuf(registry.url), framed(other, bytes([0])), framed(b"\x08\x01", INDEXES_OF_INNER), framed(order(id=1))
    )
    assert (rows[0]["id"], rows[1]["flag"]) == ("o", True)
    assert reasons[:2] == [None, None]
    assert reasons[2] is not None and reasons[2].startswith("field id")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"\1", "no header of a schema registry"),
        (framed(b"\xff"), "not a record of its Protobuf schema: "),
        (framed(b"", bytes([2, 10])), "the schema has no message at [5]"),
        (framed(b"", bytes([3])), "a type -2 messages deep"),
        (framed(b"", b""), "a number without an end"),
        (framed(b"", b"\0", 8), "there is no schema 8 in the registry"),
        (framed(order(at={"nanos": 1})), "a timestamp with a fraction of a microsecond"),
        (framed(order(at={"nanos": -1})), "a timestamp with -1 nanoseconds"),
        (framed(order(at={"seconds": 1 << 62})), f"a timestamp of {1 << 62} seconds"),
    ],
)
def test_what_is_no_record_is_refused_with_the_reason(registry: FakeRegistry, value: bytes, reason: str) -> None:
    _, (found,) = parse(Protobuf(registry.url), value)
    assert found is not None and reason in found


def test_schemas_are_fetched_once_as_descriptors_and_forgotten_by_a_pickle(registry: FakeRegistry) -> None:
    form = Protobuf(registry.url)
    for _ in range(2):
        parse(form, framed(order(id=1)))
    assert registry.asked["/schemas/ids/7?format=serialized"] == registry.asked["/schemas/ids/3?format=serialized"] == 1
    rows, _ = parse(pickle.loads(pickle.dumps(form)), framed(order(id=1)))
    assert rows[0]["id"] == 1


def test_schemas_that_make_no_table_are_reasons(registry: FakeRegistry) -> None:
    itself = {**PARTS, "message_type": [{"name": "Tree", "field": [("left", 1, ".shop.Tree")]}]}
    registry.register_protobuf(1, "itself", file(itself).SerializeToString(), "")
    registry.register_protobuf(2, "alone", file(ORDER).SerializeToString(), "")
    deep = [{"name": f"M{n}", "field": [("a", 1, f".shop.M{n + 1}"), ("b", 2, f".shop.M{n + 1}")]} for n in range(20)]
    wide = {**PARTS, "message_type": [*deep, {"name": "M20", "field": []}]}
    registry.register_protobuf(5, "wide", file(wide).SerializeToString(), "")
    registry.register(4, {"type": "string"})
    _, reasons = parse(Protobuf(registry.url), *(framed(b"", b"\0", n) for n in (1, 2, 5, 4)))
    wanted = ["contains itself", "shop/parts.proto", "more than 10,000 fields", "the schema is AVRO"]
    assert [part in str(found) for part, found in zip(wanted, reasons, strict=True)] == [True] * 4


def test_a_registry_that_gives_no_descriptors_is_a_reason(registry: FakeRegistry) -> None:
    del registry.serialized[7]
    _, (reason,) = parse(Protobuf(registry.url), framed(b""))
    assert reason is not None and "format=serialized" in reason


def test_records_of_a_file_of_descriptors_have_no_header(tmp_path: Path) -> None:
    files = descriptor_pb2.FileDescriptorSet(file=[file(PARTS)])
    path = tmp_path / "parts.pb"
    path.write_bytes(files.SerializeToString())
    form = Protobuf.of_file(path, "shop.Part", {})
    assert form.columns().names == ["code", "size"]
    rows, _ = parse(form, b"\x0a\x01x\x10\x05")
    assert rows == [{"code": "x", "size": 5}]
    with pytest.raises(UnsupportedSchema, match=r"no message shop\.Nothing"):
        Protobuf.of_file(path, "shop.Nothing", {})
    path.write_bytes(b"no descriptors")
    with pytest.raises(UnsupportedSchema):
        Protobuf.of_file(path, "shop.Part", {})
