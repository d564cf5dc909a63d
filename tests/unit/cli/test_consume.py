"""What `ottla consume` selects."""

from __future__ import annotations

import io
import json
import uuid
from decimal import Decimal

import fastavro
import pytest

from ottla.testing import Kafka, ProducerRecord
from tests.support.schema_registry import fake_registry
from tests.unit.cli.conftest import CommandLine

DAY_MS = 86_400_000
FIRST_MS = 1_767_225_600_000  # 2026-01-01


@pytest.fixture
def topic(broker: Kafka, request: pytest.FixtureRequest) -> str:
    """A topic of two partitions with an order a day."""
    name = str(request.node.name)
    broker.create_topic(name, partitions=2)
    broker.produce_many(
        name,
        [
            ProducerRecord(
                json.dumps({"amount": n, "by": "ab"[n % 2]}),
                key=f"k{n % 3}",
                headers=[("trace", f"t{n}")] if n % 2 else [],
                partition=n % 2,
                timestamp_ms=FIRST_MS + n * DAY_MS,
            )
            for n in range(10)
        ],
    )
    return name


def amounts(printed: str) -> list[int]:
    return [json.loads(line)["amount"] for line in printed.splitlines()]


def test_where_selects_by_json_header_key_and_time_before_records_are_counted(cli: CommandLine, topic: str) -> None:
    where = 'key == "k1" and value.amount > 0 and header.trace exists and timestamp >= "2026-01-02"'
    assert amounts(cli.out("consume", topic, "--where", where)) == [1, 7]
    assert amounts(cli.out("consume", topic, "--where", where, "--count", "1")) == [1]
    assert amounts(cli.out("consume", topic, "--where", where, "--tail", "1")) == [7]
    assert cli.out("consume", topic, "--where", "value.amount > 100") == ""


def test_a_condition_on_the_time_reads_no_earlier_records(cli: CommandLine, broker: Kafka, topic: str) -> None:
    before = len(broker.requests("Fetch"))
    assert sorted(amounts(cli.out("consume", topic, "--where", 'timestamp > "2026-01-08"'))) == [8, 9]
    fetches = broker.requests("Fetch")[before:]
    offsets = [p.fetch_offset for fetch in fetches for t in fetch.body.topics for p in t.partitions]
    assert min(offsets) == 3


def test_key_grep_and_where_select_together(cli: CommandLine, topic: str) -> None:
    assert amounts(cli.out("consume", topic, "--key", "k0")) == [0, 6, 3, 9]
    selected = cli.out("consume", topic, "--key", "k0", "--grep", '"by": "b"', "--where", "value.amount != 9")
    assert amounts(selected) == [3]


def test_a_condition_with_a_mistake_is_refused_with_its_position(cli: CommandLine) -> None:
    refused = cli.fails("consume", "t", "--where", 'key = "a"', code=2)
    assert "--where: unexpected '= \"a\"'; write == at position 5" in refused
    assert "`ottla consume --help` describes the conditions" in refused
    assert "'(' is not a regular expression" in cli.fails("consume", "t", "--grep", "(", code=2)


def test_avro_of_a_schema_registry_is_decoded_before_records_are_selected_and_printed(
    cli: CommandLine, broker: Kafka
) -> None:
    broker.create_topic("registered")
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
            {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "raw", "type": ["null", "bytes"]},
        ],
    }
    with fake_registry() as registry:
        registry.register(7, schema)
        for amount in (5, 1250):
            order = {"id": uuid.UUID(int=1), "amount": Decimal(amount) / 100, "at": FIRST_MS, "raw": b"\xff"}
            body = io.BytesIO()
            fastavro.schemaless_writer(body, fastavro.parse_schema(schema), order)
            broker.produce("registered", b"\0" + (7).to_bytes(4) + body.getvalue())
        broker.produce("registered", "plain")
        where = ("--registry", registry.url, "--where", "value.amount > 10")
        (line,) = cli.out("consume", "registered", *where).splitlines()
        assert json.loads(line) == {
            "id": "00000000-0000-0000-0000-000000000001",
            "amount": 12.5,
            "at": "2026-01-01T00:00:00+00:00",
            "raw": "/w==",
        }
        assert cli.out("consume", "registered", "--registry", registry.url).splitlines()[-1] == "plain"
        assert registry.asked["/schemas/ids/7"] == 2, "once a command"
        cli.out("profile", "set", "registered", broker.bootstrap, "-s", f"schema.registry.url={registry.url}")
        by_profile = cli.out("consume", "registered", "--profile", "registered", "--where", "value.amount > 10")
        assert json.loads(by_profile)["amount"] == 12.5
        registry.broken = 100
        assert "answers 500" in cli.fails("consume", "registered", "--registry", registry.url, code=1)
    assert "write a URL like" in cli.fails("consume", "registered", "--registry", "registry:8081", code=2)
