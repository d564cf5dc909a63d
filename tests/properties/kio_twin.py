"""kio's classes as an independent codec: our shapes turned into its entities, read and written by its own functions."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import importlib
import io
from typing import Any, Literal, get_args
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from ottla.wire.apis import API_INFO, ApiKey
from ottla.wire.schema import Struct
from tests.support.newer_messages import schema_name_map

EPOCH = dt.datetime.fromtimestamp(0, tz=dt.UTC)


@functools.cache
def kio_class(key: ApiKey, version: int, kind: Literal["Request", "Response"]) -> Any:
    entity_type = EntityType.request if kind == "Request" else EntityType.response
    module, name = schema_name_map[API_INFO[key].name][version][entity_type].split(":")
    return getattr(importlib.import_module(module), name)


def kio_entity(cls: Any, shape: Any) -> Any:
    """`shape` as an instance of kio's `cls`, field by field; what that version lacks is not looked at."""
    values = {}
    for field in dataclasses.fields(cls):
        kafka_type = field.metadata.get("kafka_type")
        timed = kafka_type in {"timedelta_i32", "timedelta_i64", "datetime_i64"}
        value = getattr(shape, f"{field.name}_ms" if timed else field.name)
        values[field.name] = _kio_value(field.type, kafka_type, value)
    return cls(**values)


def _kio_value(annotation: Any, kafka_type: str | None, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_kio_value(annotation, kafka_type, item) for item in value)
    if isinstance(value, Struct):
        return kio_entity(_entity_in(annotation), value)
    match kafka_type:
        case "error_code":
            return ErrorCode(value)
        case "timedelta_i32" | "timedelta_i64":
            return dt.timedelta(milliseconds=value)
        case "datetime_i64":
            return None if value == -1 else EPOCH + dt.timedelta(milliseconds=value)
        case "uuid":
            return None if value == UUID(int=0) else value
        case "records" if value is not None:
            return bytes(value)
    return value


def _entity_in(annotation: Any) -> Any:
    if dataclasses.is_dataclass(annotation):
        return annotation
    return (
        next(found for found in map(_entity_in, get_args(annotation)) if found is not None)
        if get_args(annotation)
        else None
    )


def kio_bytes(entity: Any) -> bytes:
    """What kio's writer makes of the entity."""
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def kio_read(cls: Any, data: bytes) -> Any:
    """What kio's native reader makes of the bytes; all of them must be used."""
    entity, used = entity_reader(cls)(data, 0)
    assert used == len(data)
    return entity
