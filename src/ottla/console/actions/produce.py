"""Writes one record, new or as a copy of one that exists."""

from __future__ import annotations

import base64
import binascii
import json
import shlex
from dataclasses import dataclass, field

from ottla.client.producer import Producer
from ottla.console.decoding import decode
from ottla.console.plans import Plan, carry_out
from ottla.console.visit import INT_MAX, Refused, Visit, whole_number
from ottla.core.clock import SystemClock
from ottla.http.web import Response
from ottla.records.record_reader import Record

_BASE64 = "base64:"


@dataclass(frozen=True, slots=True)
class ProduceFields:
    """The texts of the form. Bytes that are no text are `base64:...`."""

    key: str = ""
    is_null_key: bool = True
    value: str = ""
    is_null_value: bool = False
    headers: str = ""
    """A line for each: `name: value`."""
    problems: list[str] = field(default_factory=list)


def fields_of(record: Record | None) -> ProduceFields:
    """Return the form's fields for a copy of a record."""
    if record is None:
        return ProduceFields()
    headers = "\n".join(f"{name}: {_text(value)}" for name, value in record.headers)
    return ProduceFields(_text(record.key), record.key is None, _text(record.value), record.value is None, headers)


def _text(data: bytes | None) -> str:
    r"""Return bytes as a text that `_bytes` reads back.

    >>> _text(b"abc"), _text(b"\xff")
    ('abc', 'base64:/w==')
    """
    if data is None:
        return ""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = _BASE64
    is_plain = not text.startswith(_BASE64) and "\r" not in text
    return text if is_plain else _BASE64 + base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    if not text.startswith(_BASE64):
        return text.replace("\r\n", "\n").encode()  # as browsers send what is typed
    try:
        return base64.b64decode(text.removeprefix(_BASE64), validate=True)
    except (ValueError, binascii.Error):
        raise Refused("what follows base64: is not base64") from None


async def produce(visit: Visit) -> Response:
    """Write a record with acks=all."""
    topic = visit.path("topic")
    key = None if visit.field("null_key") else _bytes(visit.field("key"))
    value = None if visit.field("null_value") else _bytes(visit.field("value"))
    headers = _headers(visit.field("headers"))
    partition_text = visit.field("partition").strip()
    partition = whole_number(partition_text, INT_MAX) if partition_text else None
    if partition_text and partition is None:
        raise Refused(f"partition: {partition_text!r} is not a number of one")
    cluster = await visit.cluster()

    async def apply() -> str:
        async with Producer(cluster, clock=SystemClock()) as producer:
            sent = await producer.send(topic, key=key, value=value, headers=headers, partition=partition)
            await producer.flush()
            metadata = await sent
        return f"Written to partition {metadata.partition} at offset {metadata.offset}."

    line = json.dumps({"key": _shown(key), "value": _shown(value)}, ensure_ascii=False)
    words = ["produce", topic, "--input", "json"] + (["--partition", str(partition)] if partition is not None else [])
    plan = Plan(
        f"Write a record to {topic}",
        f"echo {shlex.quote(line)} | {visit.cli(*words)}",
        f"/topics/{topic}/messages",
        apply,
        ("Part", "Content"),
        [
            ["Partition", "chosen by the key" if partition is None else partition],
            ["Key", decode(key).preview],
            ["Value", decode(value).preview],
            *(["Header " + name, decode(text).preview] for name, text in headers),
        ],
        button="Write record",
    )
    return await carry_out(visit, plan)


def _shown(data: bytes | None) -> str | None:
    return None if data is None else _text(data)


def _headers(text: str) -> list[tuple[str, bytes | None]]:
    """Read the headers. Raises Refused.

    >>> _headers("a: 1")
    [('a', b'1')]
    """
    headers: list[tuple[str, bytes | None]] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise Refused(f"a header is a line like name: value, not {line!r}")
        headers.append((name.strip(), _bytes(value.strip())))
    return headers
