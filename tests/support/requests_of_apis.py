"""Makes a request of each API in each version: about two topics with two partitions each, where it has topics."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from ottla.broker.requests.registry import APIS, INTER_BROKER_APIS, Api
from ottla.testing.kit.faults.elements import Level, elements_of
from ottla.testing.kit.faults.names import name_of
from ottla.wire import codec
from ottla.wire.apis import ApiKey

ROWS = [*APIS.values(), *INTER_BROKER_APIS.values()]
VERSIONS = [(row, version) for row in ROWS for version in range(row.min_version, row.max_version + 1)]
WITH_TOPICS = [
    (row, version)
    for row, version in VERSIONS
    if (elements := elements_of(row.key, version)) is not None and elements.level.has_topics
]
TOPICS = {"orders": uuid.UUID(int=1), "payments": uuid.UUID(int=2)}


def named(parameter: object) -> str:
    return name_of(parameter.key) if isinstance(parameter, Api) else f"v{parameter}"


each_version = pytest.mark.parametrize(("row", "version"), VERSIONS, ids=named)
each_with_topics = pytest.mark.parametrize(("row", "version"), WITH_TOPICS, ids=named)


def request_of(key: ApiKey, version: int, ids: Mapping[str, uuid.UUID] = TOPICS) -> Any:
    """Return a request about two topics, with two partitions each, or two of whatever its elements are."""
    body = codec.shape_class(key, "Request")()
    elements = elements_of(key, version)
    if elements is not None:
        for level in (elements.level, *elements.more):
            _fill(body, level, "", ids)
    return codec.decode_request(key, version, codec.encode_request(key, version, body))


def _fill(holder: Any, level: Level, topic: str, ids: Mapping[str, uuid.UUID]) -> None:
    made: list[Any] = []
    (field,) = (field for field in holder.WIRE if field.name == level.elements)
    for index, name in enumerate(ids):
        if made and level.answers is None:
            break  # a topic is in one directory
        here = name if level.topic is not None else topic
        if isinstance(field.type, str):
            made.append(name if field.type == "string" else index)
            continue
        element = field.type()
        for part in element.WIRE:
            if part.name in ("name", "topic", "topic_name", "resource_name"):
                setattr(element, part.name, here)
            elif part.name == "topic_id":
                element.topic_id = ids.get(here, ids[name])
            elif part.name == "resource_type":
                element.resource_type = 2
            elif part.name in (level.partition, "producer_id"):
                setattr(element, part.name, index)
            elif part.name in ("group_id", "transactional_id", "path"):
                setattr(element, part.name, f"{part.name} {index}")
        if level.below is not None:
            _fill(element, level.below, here, ids)
        made.append(element)
    setattr(holder, level.elements, made)
