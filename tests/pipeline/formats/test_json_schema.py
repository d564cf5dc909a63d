"""JSON records with a registry's header, as serializers of JSON Schema write them."""

from __future__ import annotations

import pickle

from ottla.pipeline.formats.json_schema import JsonSchema
from tests.pipeline.formats.records import parse
from tests.support.schema_registry import fake_registry


def framed(body: bytes, schema_id: int = 7) -> bytes:
    return b"\0" + schema_id.to_bytes(4) + body


def test_records_are_parsed_after_their_header_or_refused_with_the_reason() -> None:
    with fake_registry() as registry:
        registry.register(7, {"type": "object"}, schemaType="JSON")
        registry.register(8, {"type": "string"})
        form = JsonSchema(registry.url)
        values = [framed(b'{"a": 1}'), framed(b"[]"), framed(b"{}", 8), framed(b"{}", 9), b'{"a": 2}', None]
        rows, reasons = parse(pickle.loads(pickle.dumps(form)), *values, framed(b'{"a": 2.5}'))
        assert [row["a"] for row in rows] == [1.0, None, None, None, None, None, 2.5]
        assert [str(reason)[:22] for reason in reasons] == [
            "None",
            "not a JSON object",
            "the schema is AVRO, no",
            "there is no schema 9 i",
            "no header of a schema ",
            "the record has no valu",
            "None",
        ]
        assert registry.asked == {f"/schemas/ids/{n}": 1 for n in (7, 8, 9)}
