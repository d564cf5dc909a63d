"""A client that says exactly what a test wants said: any API at any version, fields as plain values, over one socket.

It stands on kio directly, not on Ottla's own codec, so that a fault of that codec cannot hide itself. Fields a version
lacks are left out of requests, so that one description serves all versions; answers come back as nested dictionaries
with Kafka's error numbers, times in milliseconds and the zero UUID for "no id".
"""

from __future__ import annotations

import datetime as dt
import io
import itertools
import socket
import struct
import uuid
from collections.abc import Hashable
from dataclasses import MISSING, field, fields, is_dataclass, make_dataclass
from functools import cache
from pkgutil import resolve_name
from typing import Any, Self, Union, cast, get_args, get_origin, get_type_hints

from kio.schema.index import api_key_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from kio.static.primitive import TZAware

from tests.support.newer_messages import schema_name_map

KEYS = {name: key for key, name in api_key_map.items()}
NO_ID = uuid.UUID(int=0)
Answer = dict[str, Any]
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MILLISECOND = dt.timedelta(milliseconds=1)


class ConnectionEnded(Exception):
    """The broker closed the connection instead of answering."""


@cache
def classes(api: str, version: int) -> tuple[type[Any], type[Any]]:
    """kio's request and response class."""
    request, response = (schema_name_map[api][version][kind] for kind in (EntityType.request, EntityType.response))
    return resolve_name(request), _without_times(resolve_name(response))


def _without_times(response: type[Any]) -> type[Any]:
    """A response class whose own times may be -1, which kio takes for a fault: those of a token that is refused are."""
    timeless = [
        (part.name, TZAware | None, field(metadata=part.metadata))
        for part in fields(response)
        if part.metadata.get("kafka_type") == "datetime_i64" and part.type is TZAware
    ]
    if not timeless:
        return response
    return make_dataclass(response.__name__, timeless, bases=(response,), frozen=True, slots=True, kw_only=True)


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind)


def _parts(hint: Any) -> tuple[Any, bool, bool]:
    """A field's inner type, whether it may be null, whether it is an array."""
    nullable = False
    if get_origin(hint) in {Union, type(int | None)}:
        nullable = type(None) in get_args(hint)
        hint = next(arg for arg in get_args(hint) if arg is not type(None))
    if get_origin(hint) is tuple:
        return get_args(hint)[0], nullable, True
    return hint, nullable, False


def build(kind: type[Any], values: dict[str, Any]) -> Any:
    """An instance of a kio class from plain values; unknown names are dropped, missing ones get their default."""
    made: dict[str, Any] = {}
    for part in fields(kind):
        inner, nullable, many = _parts(_hints(cast("Hashable", kind))[part.name])
        if part.name in values:
            made[part.name] = _to_kio(part.metadata.get("kafka_type"), inner, values[part.name], many=many)
        elif part.default is MISSING:
            made[part.name] = _nothing(part.metadata.get("kafka_type"), inner, nullable=nullable, many=many)
    return kind(**made)


def _to_kio(kafka_type: str | None, inner: Any, value: Any, *, many: bool) -> Any:
    if value is None:
        return None
    if many:
        return tuple(_to_kio(kafka_type, inner, item, many=False) for item in value)
    if is_dataclass(inner):
        return build(inner, value)  # type: ignore[arg-type]
    match kafka_type:
        case "timedelta_i32" | "timedelta_i64":
            return value * MILLISECOND
        case "datetime_i64":
            return EPOCH + value * MILLISECOND
        case "uuid":
            return None if value == NO_ID else value
        case _:
            return value


def _nothing(kafka_type: str | None, inner: Any, *, nullable: bool, many: bool) -> Any:
    if many:
        return ()
    if is_dataclass(inner):
        return None if nullable else build(inner, {})  # type: ignore[arg-type]
    if nullable:
        return None
    match kafka_type:
        case "string":
            return ""
        case "bytes" | "records":
            return b""
        case "bool":
            return False
        case "timedelta_i32" | "timedelta_i64":
            return dt.timedelta()
        case "datetime_i64":
            return EPOCH
        case "float64":
            return 0.0
        case _:
            return 0


def plain(value: Any) -> Any:
    """A kio value as plain dictionaries, lists, numbers, text and bytes."""
    match value:
        case dt.timedelta():
            return value // MILLISECOND
        case dt.datetime():
            return (value - EPOCH) // MILLISECOND
        case tuple() | list():
            return [plain(item) for item in value]
        case bool() | None | uuid.UUID() | float():
            return value
        case int():
            return int(value)
        case str():
            return str(value)
        case bytes() | memoryview():
            return bytes(value)
        case _ if is_dataclass(value):
            return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
        case _:
            raise AssertionError(f"unforeseen value {value!r}")


def encode(
    api: str, version: int, correlation_id: int, values: dict[str, Any], client_id: str | None = "test"
) -> bytes:
    """A request as a frame without its length."""
    request, _ = classes(api, version)
    header = request.__header_schema__
    out = io.BytesIO()
    said = {
        "request_api_key": KEYS[api],
        "request_api_version": version,
        "correlation_id": correlation_id,
        "client_id": client_id,
    }
    entity_writer(header)(out, build(header, said))
    entity_writer(request)(out, build(request, values))
    return out.getvalue()


def decode(api: str, version: int, frame: bytes) -> tuple[int, Answer]:
    """An answer's correlation id and body. Asserts that nothing is left over."""
    _, response = classes(api, version)
    header, at = entity_reader(response.__header_schema__)(frame, 0)
    body, size = entity_reader(response)(frame, at)
    assert at + size == len(frame), f"{len(frame) - at - size} bytes left over in {api} v{version}"
    return int(header.correlation_id), plain(body)


class Wire:
    """One connection. Not for use from several threads."""

    def __init__(
        self, port: int, *, host: str = "127.0.0.1", timeout_s: float = 30.0, client_id: str | None = "test"
    ) -> None:
        self.socket = socket.create_connection((host, port), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client_id = client_id
        self._correlation_ids = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self.socket.close()

    def send(self, api: str, version: int, **values: Any) -> int:
        """Send a request without waiting; its correlation id."""
        correlation_id = next(self._correlation_ids)
        self.send_frame(encode(api, version, correlation_id, values, self.client_id))
        return correlation_id

    def send_frame(self, frame: bytes) -> None:
        """Send bytes after their length."""
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive_frame(self) -> bytes:
        """The next whole answer. Raises `ConnectionEnded`, or TimeoutError."""
        return self._exactly(struct.unpack(">i", self._exactly(4))[0])

    def receive(self, api: str, version: int, correlation_id: int) -> Answer:
        """The next answer, which must be the one asked for."""
        found, answer = decode(api, version, self.receive_frame())
        assert found == correlation_id, f"answer {found} came instead of {correlation_id}"
        return answer

    def call(self, api: str, version: int, **values: Any) -> Answer:
        """Send a request and wait for its answer."""
        return self.receive(api, version, self.send(api, version, **values))

    def _exactly(self, size: int) -> bytes:
        pieces = bytearray()
        while len(pieces) < size:
            try:
                piece = self.socket.recv(size - len(pieces))
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise ConnectionEnded
            pieces += piece
        return bytes(pieces)


def answers(host: str, port: int) -> bool:
    """Whether a broker there answers ApiVersions and Metadata and is in its own list of brokers."""
    try:
        with Wire(port, host=host, timeout_s=2.0) as wire:
            return wire.call("api_versions", 0)["error_code"] == 0 and bool(
                wire.call("metadata", 8, topics=[])["brokers"]
            )
    except (OSError, ConnectionEnded):
        return False
