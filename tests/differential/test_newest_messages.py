"""The messages that this repository reads and writes are those in the jar of the newest Apache Kafka, field by field."""

from __future__ import annotations

import dataclasses
import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from ottla.broker.requests.registry import APIS, INTER_BROKER_APIS
from ottla.pipeline.jars import JarsNotFound
from ottla.wire.apis import API_INFO, ApiKey
from tests.properties.kio_twin import kio_class
from tests.support.kafka_jars import NEWEST, kafka_jars
from tests.support.newer_messages import NEWER

pytestmark = pytest.mark.external

KINDS: tuple[Literal["Request", "Response"], ...] = ("Request", "Response")
# kio gives a meaning to some numbers; on the wire they are these.
PLAIN = {"error_code": "int16", "timedelta_i32": "int32", "timedelta_i64": "int64", "datetime_i64": "int64"}

Shape = list[Any]


@pytest.fixture(scope="module")
def definitions() -> dict[tuple[int, str], dict[str, Any]]:
    """Kafka's own definitions, by the key of the API and `request` or `response`."""
    try:
        (jar,) = kafka_jars(NEWEST).glob("kafka-clients-*.jar")
    except JarsNotFound as error:
        pytest.skip(f"no Apache Kafka jars: {error}")
    found: dict[tuple[int, str], dict[str, Any]] = {}
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if name.startswith("common/message/") and name.endswith(".json"):
                text = re.sub(r"^\s*//.*$|(?<=[,{}\]])\s*//.*$", "", archive.read(name).decode(), flags=re.MULTILINE)
                definition = json.loads(text)
                if "apiKey" in definition:
                    found[definition["apiKey"], definition["type"]] = definition
    return found


@pytest.mark.parametrize("key", [*APIS, *INTER_BROKER_APIS], ids=lambda key: key.name.lower())
def test_every_served_api_has_the_versions_and_fields_of_the_newest_kafka(
    definitions: dict[tuple[int, str], dict[str, Any]], key: ApiKey
) -> None:
    for kind in KINDS:
        definition = definitions[key, kind.lower()]
        low, high = _bounds(definition["validVersions"])
        assert (API_INFO[key].min_version, API_INFO[key].max_version) == (low, high)
        structs = {struct["name"]: struct["fields"] for struct in definition.get("commonStructs", ())}
        for version in range(low, high + 1):
            declared = list(_declared(definition["fields"], structs, version))
            assert _known(kio_class(key, version, kind)) == declared, f"{kind} version {version}"


def test_only_what_kio_lacks_is_added_to_it() -> None:
    assert set(NEWER) <= {info.name for info in API_INFO.values()}


def _bounds(text: str) -> tuple[int, int]:
    """Of `3-5`, `3+`, `3` and `none`: the first and the last version."""
    if text == "none":
        return 1, 0
    low, sep, high = re.fullmatch(r"(\d+)([-+]?)(\d*)", text).groups()  # type: ignore[union-attr]
    return int(low), {"-": int(high or 0), "+": 32767, "": int(low)}[sep]


def _in(text: str, version: int) -> bool:
    low, high = _bounds(text)
    return low <= version <= high


def _declared(fields: list[dict[str, Any]], structs: dict[str, Any], version: int) -> Iterator[Shape]:
    """Of each field in this version: its type or fields, whether it is an array, may be null, and its tag."""
    for field in fields:
        if not _in(field["versions"], version):
            continue
        name = field["type"].removeprefix("[]")
        inner = field.get("fields") or structs.get(name)
        tag = field.get("tag") if _in(field.get("taggedVersions", "none"), version) else None
        nullable = _in(field.get("nullableVersions", "none"), version)
        shape = name if inner is None else list(_declared(inner, structs, version))
        yield [shape, field["type"].startswith("[]"), nullable, tag]


def _known(cls: Any) -> list[Shape]:
    """The same of a class."""
    shapes: list[Shape] = []
    for field in dataclasses.fields(cls):
        text = str(field.type)
        kafka_type = field.metadata.get("kafka_type")
        entity = _entity(field.type)
        is_array = "tuple[" in text
        # kio's None stands for the zero id and for time -1, which are no nulls on the wire.
        nullable = "None" in text and (is_array or kafka_type not in {"uuid", "datetime_i64"})
        shapes.append(
            [
                _known(entity) if entity else PLAIN.get(str(kafka_type), kafka_type),
                is_array,
                nullable,
                field.metadata.get("tag"),
            ]
        )
    return shapes


def _entity(annotation: Any) -> Any:
    if dataclasses.is_dataclass(annotation):
        return annotation
    return next((found for found in map(_entity, getattr(annotation, "__args__", ())) if found is not None), None)
