"""Generates, from the messages' own schema, the requests that cost a broker most: as many elements as are accepted.

For each array of a request there is a request whose elements are mostly in that array, in several forms: elements with
nothing in them, the same known topic or group again and again, names that nothing has, names as long as they can be, and
as many elements in each array around it. And each API is asked for everything it has.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from ottla.broker.requests.registry import APIS, Api
from ottla.wire import codec
from ottla.wire.apis import ApiKey
from ottla.wire.codec import REQUEST_BYTES_MAX
from ottla.wire.headers import encode_request_header
from ottla.wire.schema import Field
from tests.support.wire_client import Wire

KNOWN_TOPIC, KNOWN_GROUP = "known", "known-group"
WIDE_TOPIC, WIDE_PARTITIONS = "wide", 1000
LONG_NAME_BYTES = 30_000
FORMS = ("empty", "known", "unknown", "long", "square")
CORRELATION_ID = 7

_NUMBERS: dict[str, int] = {
    "timeout_ms": 20_000,
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 10_000,
    "max_wait_ms": 0,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 20,
    "resource_type": 2,
    "num_partitions": 1,
    "replication_factor": 1,
    "response_partition_limit": 2000,
    "endpoint_type": 1,
    "session_epoch": -1,
    "current_leader_epoch": -1,
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "retention_time_ms": -1,
    "replica_id": -1,
    "acks": 1,
    "timestamp": -1,
}
"""Values that do not end the request at its first check."""


class ArrayPath(NamedTuple):
    """An array of a request: the names of the fields that lead to it."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join(self.names) or "-"


@dataclass(frozen=True, slots=True)
class LargeRequest:
    """One request and how it was made."""

    key: ApiKey
    version: int
    array: ArrayPath
    form: str
    frame: bytes  # without its length

    def __str__(self) -> str:
        return f"{self.key.name.lower()} v{self.version} {self.array} {self.form}"


class Names(NamedTuple):
    """What the broker at hand knows."""

    topic_id: UUID


def large_requests(
    names: Names, *, elements: int, versions: str = "newest", apis: Iterable[Api] = tuple(APIS.values())
) -> Iterator[LargeRequest]:
    """All large requests of the APIs; `versions` is "newest" or "oldest"."""
    for api in apis:
        version = api.max_version if versions == "newest" else api.min_version
        yield LargeRequest(
            api.key, version, ArrayPath(()), "all", _frame(api.key, version, ArrayPath(()), "all", 0, names)
        )
        for array in arrays_of(api.key, version):
            for form in FORMS:
                wanted = elements
                while len(frame := _frame(api.key, version, array, form, wanted, names)) > REQUEST_BYTES_MAX:
                    wanted = wanted * 9 // 10
                if frame:
                    yield LargeRequest(api.key, version, array, form, frame)


def arrays_of(key: ApiKey, version: int) -> list[ArrayPath]:
    """Every array of an API's request in a version."""
    return [ArrayPath(names) for names in _arrays(codec.shape_class(key, "Request"), version)]


def _arrays(shape: Any, version: int) -> Iterator[tuple[str, ...]]:
    for field in shape.WIRE:
        if not field.in_version(version):
            continue
        if field.array:
            yield (field.name,)
        if not isinstance(field.type, str):
            yield from ((field.name, *rest) for rest in _arrays(field.type, version))


def _frame(key: ApiKey, version: int, array: ArrayPath, form: str, elements: int, names: Names) -> bytes:
    """The request; nothing where the form does not differ from "empty"."""
    maker = _Maker(version, form, array.names, elements, names)
    request = maker.shape(codec.shape_class(key, "Request"), ())
    if form in {"known", "unknown", "long"} and form not in maker.forms:
        return b""
    if form == "square" and len(array.names) < 2:
        return b""
    return encode_request_header(key, version, CORRELATION_ID, "large") + codec.encode_request(key, version, request)


def with_length(frame: bytes) -> bytes:
    """The frame as it is sent."""
    return struct.pack(">i", len(frame)) + frame


class _Maker:
    """Fills one request: many elements in one array, one element in each array around it, none elsewhere."""

    def __init__(self, version: int, form: str, array: tuple[str, ...], elements: int, names: Names) -> None:
        self.version, self.form, self.array, self.names = version, form, array, names
        self.elements = min(elements, REQUEST_BYTES_MAX // LONG_NAME_BYTES) if form == "long" else elements
        self.elements -= len(array) - 1
        self.around = 1
        if form == "square":
            self.elements = self.around = int((elements // 2) ** (1 / max(len(array), 1)))
        self.forms: set[str] = set()  # those that make a difference to this request

    def shape(self, shape: Any, at: tuple[str, ...], number: int = 0) -> Any:
        return shape(
            **{
                field.name: self.field(shape, field, at, number)
                for field in shape.WIRE
                if field.in_version(self.version)
            }
        )

    def field(self, shape: Any, field: Field, at: tuple[str, ...], number: int) -> Any:
        here = (*at, field.name)
        if field.array:
            if here == self.array:
                return [self.item(field, here, number) for number in range(self.elements)]
            if here == self.array[: len(here)]:
                return [self.item(field, here, number) for number in range(self.around)]
            return None if self.form == "all" and self.version >= field.null_since else []
        if isinstance(field.type, str):
            return self.value(field, number, inside=self.array[: len(at)] == at and bool(at), shape=shape)
        return None if self.version >= field.null_since else self.shape(field.type, here, number)

    def item(self, field: Field, here: tuple[str, ...], number: int) -> Any:
        if isinstance(field.type, str):
            return self.value(field, number, inside=True, shape=None)
        return self.shape(field.type, here, number)

    def value(self, field: Field, number: int, *, inside: bool, shape: Any) -> Any:
        """`inside`: in an element of an array; outside of them the request is a right one."""
        match field.type:
            case "string":
                return self.text(field, number, inside=inside)
            case "uuid":
                return self.topic_id(number) if inside else UUID(int=0)
            case "bytes" | "records":
                return b""
            case "bool":
                return field.name in {"allow_auto_topic_creation", "include_synonyms", "include_documentation"}
            case _ if inside and shape is None:
                self.forms |= {"unknown"}
                return number % (1 << 7) if field.type == "int8" else number if self.form == "unknown" else 0
            case _ if inside and "partition" in field.name and field.name not in _NUMBERS:
                self.forms |= {"unknown"}
                return number if self.form == "unknown" else 0
            case _:
                return _NUMBERS.get(field.name, 0)

    def text(self, field: Field, number: int, *, inside: bool) -> str | None:
        if not inside:
            if "group_id" in field.name:
                return KNOWN_GROUP
            if field.name in {"client_software_name", "client_software_version", "protocol_type"}:
                return "consumer"
            return None if self.version >= field.null_since else ""
        self.forms |= {"known", "unknown", "long"}
        match self.form:
            case "empty":
                return ""
            case "known" | "square":
                return KNOWN_GROUP if "group" in field.name else KNOWN_TOPIC
            case "unknown":
                return f"none{number:x}"
            case _:
                return f"{number:x}".ljust(LONG_NAME_BYTES, "n")

    def topic_id(self, number: int) -> UUID:
        self.forms |= {"known", "unknown"}
        match self.form:
            case "known" | "square":
                return self.names.topic_id
            case "empty":
                return UUID(int=0)
            case _:
                return UUID(int=number + 1)


# ---- Sending


def prepare(port: int) -> Names:
    """Create the topics and the group that large requests name."""
    with Wire(port, timeout_s=60) as wire:
        topics = [(KNOWN_TOPIC, 1), ("innocent", 1), (WIDE_TOPIC, WIDE_PARTITIONS), ("__consumer_offsets", 1)]
        wanted = [{"name": name, "num_partitions": count, "replication_factor": 1} for name, count in topics]
        answer = wire.call("create_topics", 5, topics=wanted, timeout=60_000)
        assert not any(each["error_code"] for each in answer["topics"]), answer
        wire.call("find_coordinator", 4, coordinator_keys=[KNOWN_GROUP])
        known = wire.call("metadata", 12, topics=[{"topic_id": None, "name": KNOWN_TOPIC}])["topics"][0]["topic_id"]
        part = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            committed = wire.call(
                "offset_commit",
                8,
                group_id=KNOWN_GROUP,
                generation_id_or_member_epoch=-1,
                member_id="",
                topics=[{"name": KNOWN_TOPIC, "partitions": [part]}],
            )
            if committed["topics"][0]["partitions"][0]["error_code"] == 0:
                return Names(known)
            time.sleep(0.1)
    raise TimeoutError("the group coordinator did not load")


def exchange(port: int, frame: bytes, *, timeout_s: float = 60.0) -> int:
    """Send the frame and read its answer; how many bytes that has, -1 if the connection is closed instead."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as sock:
        try:
            sock.sendall(with_length(frame))
            received, wanted = 0, 4
            head = b""
            while received < wanted:
                piece = sock.recv(1 << 18)
                if not piece:
                    return -1
                received += len(piece)
                if len(head) < 4:
                    head += piece
                    wanted = 4 + int.from_bytes(head[:4], "big") if len(head) >= 4 else 4
        except ConnectionError:
            return -1
        return received
