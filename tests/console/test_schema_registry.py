"""The message browser with a schema registry: Avro, Protobuf and JSON, what the registry lacks, and searches."""

import html
import io
import json
import re
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from ottla.console.registry import RegistryValues
from ottla.testing import Kafka, kafka
from tests.support import chromium
from tests.support.console import browsing, options_for, served
from tests.support.schema_registry import FakeRegistry, fake_registry

AVRO, PROTOBUF, JSON, MISSING, THRIFT, KEY, BROKEN = 1, 2, 3, 44, 5, 6, 7
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "shop", "type": {"type": "map", "values": "string"}}],
}


def framed(schema_id: int, body: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4) + body


def avro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def field(name: str, number: int, kind: int, **more: Any) -> FieldDescriptorProto:
    return FieldDescriptorProto(name=name, number=number, type=kind, label=more.pop("label", 1), **more)


def protobuf_files() -> tuple[bytes, bytes]:
    """`payment.proto`, which imports `money.proto` and a file that every registry has."""
    of = FieldDescriptorProto
    money = FileDescriptorProto(name="money.proto", package="shop", syntax="proto3")
    amount = [field("currency", 1, of.TYPE_STRING), field("units", 2, of.TYPE_INT64)]
    money.message_type.append(DescriptorProto(name="Money", field=amount))
    payment = FileDescriptorProto(name="default", package="shop", syntax="proto3")
    payment.dependency.extend(["money.proto", "google/protobuf/timestamp.proto"])
    payment.message_type.append(DescriptorProto(name="Refund", field=[field("why", 1, of.TYPE_STRING)]))
    fields = [
        field("id", 1, of.TYPE_INT64),
        field("total", 2, of.TYPE_MESSAGE, type_name=".shop.Money"),
        field("at", 3, of.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp"),
        field("tags", 4, of.TYPE_STRING, label=of.LABEL_REPEATED),
        field("raw", 5, of.TYPE_BYTES),
        field("open", 6, of.TYPE_BOOL),
    ]
    inner = DescriptorProto(name="Line", field=[field("sku", 1, of.TYPE_STRING)])
    payment.message_type.append(DescriptorProto(name="Payment", field=fields, nested_type=[inner]))
    serialized: tuple[bytes, bytes] = (payment.SerializeToString(), money.SerializeToString())
    return serialized


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def payment(number: int) -> bytes:
    """The second message of its file, so with a path of one index; large numbers stay numbers."""
    total = b"\x0a\x03EUR" + b"\x10" + varint(number)
    at: bytes = timestamp_pb2.Timestamp(seconds=1_800_000_000).SerializeToString()
    body = b"\x08" + varint(1 << 60) + b"\x12" + varint(len(total)) + total + b"\x1a" + varint(len(at)) + at
    return b"\x02\x02" + body + b"\x22\x01a\x22\x01b" + b"\x2a\x02\xff\x00"


def fill(k: Kafka) -> None:
    for number in range(20):
        key = framed(KEY, avro("string", f"customer-{number}"))
        k.produce("orders", framed(AVRO, avro(ORDER, {"id": number, "shop": {"city": "Zürich"}})), key=key)
        k.produce("payments", framed(PROTOBUF, payment(number)))
    k.produce("payments", framed(PROTOBUF, b"\x04\x02\x00" + b"\x0a\x03abc"))  # Payment.Line
    k.produce("payments", framed(PROTOBUF, b"\x00" + b"\x0a\x04lost"))  # the first one, Refund
    k.produce("odd", framed(JSON, b'{"from": "JSON Schema"}'))
    k.produce("odd", framed(MISSING, b"\x02"))
    k.produce("odd", framed(THRIFT, b"\x02"))
    k.produce("odd", framed(AVRO, b"\x02"))  # cut off
    k.produce("odd", framed(PROTOBUF, b"\x02\x12"))  # the tenth message of a file with two
    k.produce("odd", framed(BROKEN, b"\x00"))
    k.produce("odd", "plain text")
    k.produce("odd", None)


def register(registry: FakeRegistry) -> None:
    registry.register(AVRO, ORDER)
    registry.subjects["orders-value", 3] = {**registry.schemas[AVRO], "id": AVRO}
    registry.register(KEY, "string")
    file, money = protobuf_files()
    registry.register_protobuf(8, "money", money, "message Money {}")
    references = [{"name": "money.proto", "subject": "money", "version": 1}]
    registry.register_protobuf(PROTOBUF, "payments-value", file, "message Payment {}", references=references)
    registry.register_protobuf(BROKEN, "broken", b"\xff\xff", "message Broken {}")
    registry.register(JSON, {"type": "object"}, schemaType="JSON")
    registry.register(THRIFT, "struct", schemaType="THRIFT")


@pytest.fixture(scope="module")
def brokers() -> Iterator[Kafka]:
    with kafka(topics={"orders": 1, "payments": 1, "odd": 1}) as k:
        fill(k)
        yield k


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as running:
        register(running)
        yield running


def offsets(page: str) -> list[int]:
    return sorted(int(number) for number in re.findall(r'messages/0/(\d+)">', page))


async def test_avro_keys_and_values_are_shown_with_their_schema(brokers: Kafka, registry: FakeRegistry) -> None:
    async with browsing(options_for(brokers.bootstrap, registry=RegistryValues(registry.url))) as browser:
        page = html.unescape(await browser.get("/topics/orders/messages/0/7"))
        assert '"id": 7' in page
        assert '"city": "Zürich"' in page
        assert '"customer-7"' in page
        assert "schema 1, orders-value version 3" in page
        listed = html.unescape(await browser.get("/topics/orders/messages"))
        assert '"customer-19"' in listed
        assert f"--registry {registry.url}" in listed
        assert registry.asked[f"/schemas/ids/{AVRO}"] == 1


async def test_a_search_by_path_compares_decoded_keys_and_values(brokers: Kafka, registry: FakeRegistry) -> None:
    async with browsing(options_for(brokers.bootstrap, registry=RegistryValues(registry.url))) as browser:
        for first in ("", "start"):
            search = {"where": "value.id >= 18", "from": first}
            assert offsets((await browser.client.get("/topics/orders/messages", params=search)).text) == [18, 19]
            search = {"where": "value.total.units == 12 and value.id == 1152921504606846976", "from": first}
            assert offsets((await browser.client.get("/topics/payments/messages", params=search)).text) == [12]
            search = {"where": "value.open == false and value.tags[*] == 'b'", "from": first}
            assert len(offsets((await browser.client.get("/topics/payments/messages", params=search)).text)) == 20
        search = {"key": '"customer-3"'}
        assert offsets((await browser.client.get("/topics/orders/messages", params=search)).text) == [3]
        search = {"text": "Z.rich", "where": "value.id == 4"}
        assert offsets((await browser.client.get("/topics/orders/messages", params=search)).text) == [4]


async def test_protobuf_is_decoded_with_imports_and_each_message_of_a_file(
    brokers: Kafka, registry: FakeRegistry
) -> None:
    async with browsing(options_for(brokers.bootstrap, registry=RegistryValues(registry.url))) as browser:
        page = html.unescape(await browser.get("/topics/payments/messages/0/5"))
        assert json.loads(page.split('<pre class="value-text" tabindex="0">')[1].split("</pre>")[0]) == {
            "id": 1 << 60,
            "total": {"currency": "EUR", "units": 5},
            "at": "2027-01-15T08:00:00Z",
            "tags": ["a", "b"],
            "raw": "/wA=",
            "open": False,
        }
        assert "schema 2, payments-value version 1" in page
        assert '"sku": "abc"' in html.unescape(await browser.get("/topics/payments/messages/0/20"))
        assert '"why": "lost"' in html.unescape(await browser.get("/topics/payments/messages/0/21"))


async def test_what_cannot_be_decoded_is_a_problem_of_its_record_alone(brokers: Kafka, registry: FakeRegistry) -> None:
    async with browsing(options_for(brokers.bootstrap, registry=RegistryValues(registry.url))) as browser:
        page = html.unescape(await browser.get("/topics/odd/messages"))
        assert offsets(page) == list(range(8))
        assert '"from": "JSON Schema"' in page
        assert "plain text" in page
        for why in (
            "schema 44: there is no schema 44 in the registry",
            "schema 5: it is of THRIFT, which is not decoded",
            "schema 2: the schema has no message at",
            "schema 1: ",
            "schema 7: the descriptor of schema.proto cannot be used",
        ):
            assert f"is not decoded: {why}" in page
        assert page.count(">not decoded</span>") == 5
        await browser.get("/topics/odd/messages/0/1")


async def test_a_registry_that_does_not_answer_fails_no_page(brokers: Kafka, registry: FakeRegistry) -> None:
    async with browsing(options_for(brokers.bootstrap, registry=RegistryValues(registry.url))) as browser:
        registry.broken = 10_000
        page = html.unescape(await browser.get("/topics/orders/messages"))
        assert len(offsets(page)) == 20
        assert "answers 500" in page
        asked = sum(registry.asked.values())
        await browser.get("/topics/orders/messages")
        assert sum(registry.asked.values()) == asked  # it is left alone for some seconds


async def test_ids_that_anybody_wrote_cost_few_requests(registry: FakeRegistry) -> None:
    with kafka(topics={"many": 1}) as k:
        for number in range(300):
            k.produce("many", framed(1000 + number, b"x"))
        async with browsing(options_for(k.bootstrap, registry=RegistryValues(registry.url))) as browser:
            await browser.get("/topics/many/messages?limit=500")
            assert sum(registry.asked.values()) <= 40


async def test_the_password_of_a_registry_is_in_no_page(brokers: Kafka, registry: FakeRegistry) -> None:
    registry.password = "reader:secret-of-it"
    url = registry.url.replace("http://", "http://reader:secret-of-it@")
    async with browsing(options_for(brokers.bootstrap, registry=RegistryValues(url))) as browser:
        for path in ("/topics/orders/messages", "/topics/orders/messages/0/1", "/topics/odd/messages"):
            assert "secret-of-it" not in await browser.get(path)
        assert '"id": 19' in html.unescape(await browser.get("/topics/orders/messages"))


@pytest.mark.parametrize("url", ["file:///etc/passwd", "registry:8081", "", "ftp://x"])
def test_a_registry_is_asked_by_http_alone(url: str) -> None:
    with pytest.raises(ValueError, match="write a URL like"):
        RegistryValues(url)


@pytest.mark.slow
@pytest.mark.external
@pytest.mark.skipif(chromium.executable() is None, reason=chromium.NOT_THERE)
def test_decoded_records_are_searched_and_followed_in_chromium(brokers: Kafka, registry: FakeRegistry) -> None:
    options = options_for(brokers.bootstrap, registry=RegistryValues(registry.url))
    with served(options) as url, chromium.chromium() as browser:
        page = browser.new_page()
        problems = chromium.Problems(page)
        page.goto(f"{url}/topics/payments/messages")
        page.get_by_label("Where").fill("value.total.units == 9")
        page.get_by_role("button", name="Search").click()
        page.wait_for_url("**where=**")
        page.locator(".messages summary").first.click()
        assert "schema 2, payments-value version 1" in page.inner_text(".messages")
        assert page.locator(".messages tbody tr").count() == 1
        page.goto(f"{url}/topics/payments/messages")
        page.get_by_role("button", name="Follow live").click()
        page.get_by_text("follows", exact=True).wait_for()
        brokers.produce("payments", framed(PROTOBUF, payment(77)))
        page.wait_for_selector(".live-tail tbody tr", timeout=30_000)
        assert '"units": 77' in page.locator(".live-tail tbody tr").first.inner_text()
        assert not chromium.violations(page, chromium.axe_script())
        assert not problems.found
