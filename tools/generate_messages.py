"""Writes `src/ottla/wire/generated/<api>.py`: one plain shape per API, the union of the fields of all its versions.

The schema is read from kio's classes, one per version, and those of newer versions (tests/support/newer_messages.py).
What is written is ordinary source that editors and type checkers see, checked in, and compared by
`tools/generate.py --check`. kio's rich types become plain ones: an error
code, a duration and a point in time are the integers that travel (durations and times in milliseconds, with Kafka's own
field names), and the id kio gives as None is the zero UUID, as on the wire.
"""

from __future__ import annotations

import dataclasses
import graphlib
import importlib
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeAlias, Union, get_args, get_origin

from kio.static.constants import EntityType

from ottla.broker.requests.registry import APIS, INTER_BROKER_APIS
from ottla.wire.apis import API_INFO, ApiKey

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)] if str(ROOT) not in sys.path else []

from tests.support.newer_messages import schema_name_map  # noqa: E402 - the tree's root is no package's

TARGET = ROOT / "src" / "ottla" / "wire" / "generated"
KEYS = {
    *APIS,
    *INTER_BROKER_APIS,
    ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
}
"""The APIs to generate: those the broker serves. Another API needs its key here, or a row in the registry, and `make
generate`."""

Kind: TypeAlias = Literal[EntityType.request, EntityType.response]
KINDS: tuple[Kind, Kind] = (EntityType.request, EntityType.response)

# Null is the schema's default for these arrays ("unchanged" in a heartbeat); kio's classes do not carry that default.
# Found by holding every default against the constructors of Kafka 4.1.1's own message classes.
NULL_BY_DEFAULT = {
    "ConsumerGroupHeartbeatRequest": {"topic_partitions"},
    "ListPartitionReassignmentsRequest": {"topics"},
    "StreamsGroupHeartbeatRequest": {
        "active_tasks",
        "client_tags",
        "standby_tasks",
        "task_end_offsets",
        "task_offsets",
        "warmup_tasks",
    },
    "StreamsGroupHeartbeatResponse": {
        "active_tasks",
        "partitions_by_user_endpoint",
        "standby_tasks",
        "status",
        "warmup_tasks",
    },
    "Topology": {"subtopologies"},  # of StreamsGroupDescribe, where it is nullable
}

_PLAIN = {
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "int",
    "uint16": "int",
    "error_code": "int",
    "timedelta_i32": "int",
    "timedelta_i64": "int",
    "datetime_i64": "int",
    "float64": "float",
    "string": "str",
    "bytes": "bytes",
    "bool": "bool",
    "uuid": "UUID",
}
_ON_THE_WIRE = {"error_code": "int16", "timedelta_i32": "int32", "timedelta_i64": "int64", "datetime_i64": "int64"}
_EMPTY = {"int": "0", "float": "0.0", "str": '""', "bytes": 'b""', "bool": "False", "UUID": "NO_ID"}


class FieldShape(NamedTuple):
    """What one field is in one version of one class."""

    kafka_type: str | None
    entity: str | None
    is_array: bool
    nullable: bool
    tag: int | None
    default: Any


def _unwrap(annotation: Any) -> tuple[Any, bool, bool]:
    """The inner type, whether it is an array, and whether null is allowed."""
    nullable = False
    if get_origin(annotation) in {UnionType, Union}:
        (annotation,) = (part for part in get_args(annotation) if part is not NoneType)
        nullable = True
    if get_origin(annotation) is tuple:
        return get_args(annotation)[0], True, nullable
    return annotation, False, nullable


def _field_shape(field: dataclasses.Field[Any]) -> FieldShape:
    inner, is_array, nullable = _unwrap(field.type)
    entity = str(inner.__name__) if isinstance(inner, type) and dataclasses.is_dataclass(inner) else None
    kafka_type = field.metadata.get("kafka_type")
    return FieldShape(
        kafka_type=kafka_type,
        entity=entity,
        is_array=is_array,
        # kio's None stands for the zero id and for time -1: both travel as plain values.
        nullable=nullable and (is_array or kafka_type not in {"uuid", "datetime_i64"}),
        tag=field.metadata.get("tag"),
        default=field.default,
    )


def _field_name(name: str, kafka_type: str | None) -> str:
    timed = kafka_type in {"timedelta_i32", "timedelta_i64", "datetime_i64"}
    return f"{name}_ms" if timed else name


Versions = dict[int, FieldShape]
Classes = dict[str, dict[str, Versions]]  # class name -> field name -> version -> shape


def _load(path: str) -> Any:
    module, name = path.split(":")
    return getattr(importlib.import_module(module), name)


def _walk(cls: Any) -> Iterator[Any]:
    """The nested classes of `cls`, innermost first, then `cls`."""
    for field in dataclasses.fields(cls):
        inner, _, _ = _unwrap(field.type)
        if dataclasses.is_dataclass(inner):
            yield from _walk(inner)
    yield cls


def read_schema(api: str, kind: Kind) -> Classes:
    """Every class of a request or response, all versions laid over one another, fields in the order of the wire."""
    classes: Classes = {}
    orders: dict[str, list[list[str]]] = {}
    for version in sorted(schema_name_map[api], reverse=True):
        for cls in _walk(_load(schema_name_map[api][version][kind])):
            fields = classes.setdefault(cls.__name__, {})
            order = []
            for field in dataclasses.fields(cls):
                shape = _field_shape(field)
                order.append(_field_name(field.name, shape.kafka_type))
                fields.setdefault(order[-1], {})[version] = shape
            orders.setdefault(cls.__name__, []).append(order)
    return {name: {field: fields[field] for field in _merged(orders[name])} for name, fields in classes.items()}


def _merged(orders: list[list[str]]) -> list[str]:
    """One order of fields of which the order in every version is a part: that of Kafka's own schema."""
    after: dict[str, list[str]] = {name: [] for order in orders for name in order}
    for order in orders:
        for before, name in itertools.pairwise(order):
            after[name].append(before)
    return list(graphlib.TopologicalSorter(after).static_order())


def _differing(request: Classes, response: Classes) -> set[str]:
    """Names that mean one thing in the request and another in the response, directly or through what they hold."""
    shared = request.keys() & response.keys()

    def shape_of(classes: Classes, name: str) -> Any:
        return {
            field: {v: (s.kafka_type, s.entity and shape_of(classes, s.entity)) for v, s in versions.items()}
            for field, versions in classes[name].items()
        }

    return {name for name in shared if shape_of(request, name) != shape_of(response, name)}


def _spread(versions: Versions, first: int, last: int) -> str:
    """In words: which versions have the field; empty if all have."""
    low, high = min(versions), max(versions)
    assert len(versions) == high - low + 1, "Kafka's fields live in one range of versions"
    words = [] if (low, high) == (first, last) else [f"v{low}+" if high == last else f"v{low}-{high}"]
    tags = {shape.tag for shape in versions.values()} - {None}
    words += [f"tag {tag}" for tag in sorted(tags, key=str)]
    return ", ".join(words)


def _default_text(value: Any, kafka_type: str | None, type_text: str) -> str:
    if value is dataclasses.MISSING:
        return _EMPTY[type_text]
    if kafka_type in {"timedelta_i32", "timedelta_i64"}:
        return str(round(value.total_seconds() * 1000))
    if kafka_type == "datetime_i64":
        return "-1" if value is None else str(round(value.timestamp() * 1000))
    if kafka_type == "uuid":
        return "NO_ID" if value is None else f"UUID(int={value.int:#x})"
    if kafka_type == "error_code":
        return str(int(value.value))
    return repr(type(value).__mro__[-2](value)) if not isinstance(value, bool) else repr(value)


class _Writer:
    """Collects the text of one API's module."""

    def __init__(self, api: str) -> None:
        self.api = api
        self.versions = sorted(schema_name_map[api])
        self.body: list[str] = []
        self.written: set[str] = set()

    def write_class(self, name: str, fields: dict[str, Versions], renamed: dict[str, str], kind: Kind) -> None:
        if renamed.get(name, name) in self.written:
            return
        self.written.add(renamed.get(name, name))
        self.body += ["", "", f"class {renamed.get(name, name)}(Struct):"]
        slots = ", ".join(f'"{field}"' for field in sorted(fields)) + ("," if len(fields) == 1 else "")
        self.body += [f"    __slots__ = ({slots})", ""]
        self.body += ["    WIRE: ClassVar[Wire] = ("]
        self.body += [f"        {self._wire(field, versions, renamed)}," for field, versions in fields.items()]
        self.body += ["    )"]
        if fields:
            self._write_init(name, fields, renamed, kind)

    def _write_init(self, name: str, fields: dict[str, Versions], renamed: dict[str, str], kind: Kind) -> None:
        self.body += ["", "    def __init__(", "        self,", "        *,"]
        assignments = []
        for field, versions in fields.items():
            spread = _spread(versions, self.versions[0], self.versions[-1])
            parameter, made = self._field(name, field, versions, renamed, kind)
            self.body.append(f"        {field}: {parameter}," + (f"  # {spread}" if spread else ""))
            assignments.append(f"        self.{field} = {f'{made} if {field} is NEW else {field}' if made else field}")
        self.body += ["    ) -> None:", *assignments]

    def _wire(self, name: str, versions: Versions, renamed: dict[str, str]) -> str:
        newest = versions[max(versions)]
        entity = newest.entity and renamed.get(newest.entity, newest.entity)
        words = [f'"{name}"', entity or f'"{_ON_THE_WIRE.get(newest.kafka_type or "", newest.kafka_type)}"']
        words += ["array=True"] if newest.is_array else []
        words += [f"since={min(versions)}"] if min(versions) != self.versions[0] else []
        words += [f"until={max(versions)}"] if max(versions) != self.versions[-1] else []
        nullable = [version for version, shape in versions.items() if shape.nullable]
        words += [f"null_since={0 if len(nullable) == len(versions) else min(nullable)}"] if nullable else []
        words += [f"tag={newest.tag}"] if newest.tag is not None else []
        return f"Field({', '.join(words)})"

    def _field(self, owner: str, name: str, versions: Versions, renamed: dict[str, str], kind: Kind) -> tuple[str, str]:
        """A parameter's type and default, and the value that each instance makes if the default is NEW."""
        newest = versions[max(versions)]
        nullable = any(shape.nullable for shape in versions.values())
        null_text = " | None" if nullable else ""
        entity = newest.entity and renamed.get(newest.entity, newest.entity)
        if newest.kafka_type == "records":
            return "bytes | memoryview | None = None" if kind is EntityType.request else "RecordBytes | None = None", ""
        inner = entity or _PLAIN[newest.kafka_type or ""]
        null_default = newest.default is None or name in NULL_BY_DEFAULT.get(owner, ())
        if nullable and null_default:
            return (f"list[{inner}]" if newest.is_array else inner) + " | None = None", ""
        if newest.is_array:
            return f"list[{inner}]{null_text} = NEW", "[]"
        if entity is not None:
            return f"{inner}{null_text} = NEW", f"{entity}()"
        return f"{inner}{null_text} = {_default_text(newest.default, newest.kafka_type, inner)}", ""

    def text(self, key: int) -> str:
        body = "\n".join(self.body) + "\n"
        title = "".join(part.capitalize() for part in self.api.split("_"))
        first, last = self.versions[0], self.versions[-1]
        spread = f"version {first}" if first == last else f"versions {first} to {last}"
        head = [f'"""{title} (key {key}), {spread}: the union of the fields of all versions.', ""]
        head += ["Generated by tools/generate_messages.py from kio's schema: do not edit.", '"""', ""]
        head += ["from __future__ import annotations", ""]
        head += ["from typing import ClassVar, Final"]
        if "UUID" in body or "NO_ID" in body:
            head += ["from uuid import UUID"]
        head += [""]
        if "NO_ID" in body:
            head += ["from ottla.core.ids import NO_TOPIC_ID as NO_ID"]
        names = [name for name in ("NEW", "Field", "Messages", "RecordBytes") if name == "Messages" or name in body]
        head += [f"from ottla.wire.schema import {', '.join([*names, 'Struct', 'Wire'])}"]
        pair = ["", "", f"MESSAGES: Final = Messages({key}, {title}Request, {title}Response)"]
        return "\n".join(head) + "\n" + body + "\n".join(pair) + "\n"


def _module_text(key: int, api: str) -> str:
    request, response = (read_schema(api, kind) for kind in KINDS)
    differing = _differing(request, response)
    writer = _Writer(api)
    for kind, classes in zip(KINDS, (request, response), strict=True):
        root = next(name for name in classes if name.endswith(kind.name.capitalize()) and _is_root(classes, name))
        renamed = {name: f"{root}{name}" for name in differing}
        assert not {f"{root}{name}" for name in classes} & classes.keys(), f"{api}: a renamed class hides another"
        for name in _inner_first(classes, root):
            writer.write_class(name, classes[name], renamed, kind)
    return writer.text(key)


def _is_root(classes: Classes, name: str) -> bool:
    return all(s.entity != name for fields in classes.values() for shapes in fields.values() for s in shapes.values())


def _inner_first(classes: Classes, root: str) -> list[str]:
    """Class names so that each comes after those it holds."""
    order: list[str] = []

    def visit(name: str) -> None:
        for shapes in classes[name].values():
            for shape in shapes.values():
                if shape.entity is not None:
                    visit(shape.entity)
        if name not in order:
            order.append(name)

    visit(root)
    return order


def _formatted(texts: dict[Path, str]) -> dict[Path, str]:
    """The texts as `ruff format` leaves them, so that a check of the format passes on generated code too."""
    ruff = Path(sys.executable).parent / "ruff"
    return {
        path: subprocess.run(
            [ruff, "format", "--stdin-filename", str(path), "-"], input=text, capture_output=True, text=True, check=True
        ).stdout
        for path, text in texts.items()
    }


def generate() -> dict[Path, str]:
    """Every generated module's path and text."""
    apis = {int(key): API_INFO[key].name for key in KEYS}
    return _formatted({TARGET / f"{api}.py": _module_text(key, api) for key, api in apis.items()})


def superseded() -> list[Path]:
    """List the modules of messages that are no longer generated."""
    kept = {"__init__", *(API_INFO[key].name for key in KEYS)}
    return [path for path in sorted(TARGET.glob("*.py")) if path.stem not in kept]


def main() -> None:
    """Write the modules."""
    for path, text in generate().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
