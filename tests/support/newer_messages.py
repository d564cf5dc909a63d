"""The messages of Apache Kafka 4.4 that kio's schema does not have yet, as classes of kio's kind made from its newest ones.

`schema_name_map` is kio's own and these; `tools/generate_messages.py` and the tests look versions up here. A version that
kio has is an error: then the entry goes. The fields were read from the message definitions in Kafka's jar, and
`test_newer_messages.py` holds them against the jar's own.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from types import GenericAlias, ModuleType
from typing import Any, Final, NamedTuple, get_args
from uuid import UUID

import kio.schema.index
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32

KINDS: Final = (EntityType.request, EntityType.response)


class NewField(NamedTuple):
    """A field that a version adds, before another field of its class or at its end."""

    name: str
    annotation: Any
    kafka_type: str
    default: Any = dataclasses.MISSING
    before: str = ""


class NewVersion(NamedTuple):
    """What a version changes: by the names of its classes the fields that come, and those that go."""

    number: int
    added: Mapping[str, tuple[NewField, ...]] = {}
    removed: Mapping[str, tuple[str, ...]] = {}


_TOPIC_ID: Final = (NewField("topic_id", UUID | None, "uuid", before="partitions"),)
NEWER: Final[Mapping[str, NewVersion]] = {
    "api_versions": NewVersion(
        5,
        {
            "ApiVersionsRequest": (
                NewField("cluster_id", str | None, "string", None),
                NewField("node_id", i32, "int32", i32(-1)),
            )
        },
    ),
    "delete_groups": NewVersion(3, {"DeletableGroupResult": (NewField("error_message", str | None, "string", None),)}),
    "txn_offset_commit": NewVersion(
        6,
        {"TxnOffsetCommitRequestTopic": _TOPIC_ID, "TxnOffsetCommitResponseTopic": _TOPIC_ID},
        {"TxnOffsetCommitRequestTopic": ("name",), "TxnOffsetCommitResponseTopic": ("name",)},
    ),
}


NEWER_ERRORS: Final[dict[str, int]] = {
    "GROUP_DELETION_FAILED": 134,
    "STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED": 135,
    "CONTROLLER_ID_NOT_REGISTERED": 136,
}


def _derived(cls: Any, version: NewVersion, made: dict[str, Any]) -> Any:
    """Return `cls` as of the new version; `made` collects the classes by name, so that one that several hold is made once."""
    if cls.__name__ in made:
        return made[cls.__name__]
    fields: list[tuple[str, Any, Any]] = []
    coming = list(version.added.get(cls.__name__, ()))
    for field in dataclasses.fields(cls):
        fields += [_declared(new) for new in coming if new.before == field.name]
        if field.name not in version.removed.get(cls.__name__, ()):
            # A field that already belongs to a class cannot be given to another one.
            own = dataclasses.field(default=field.default, metadata=field.metadata)
            fields.append((field.name, _annotation(field.type, version, made), own))
    fields += [_declared(new) for new in coming if not new.before]
    constants = {name: value for name, value in vars(cls).items() if name in {"__type__", "__flexible__"}}
    constants |= {"__api_key__": cls.__api_key__, "__header_schema__": cls.__header_schema__}
    made[cls.__name__] = dataclasses.make_dataclass(
        cls.__name__,
        fields,
        namespace=constants | {"__version__": i16(version.number)},
        frozen=True,
        slots=True,
        kw_only=True,
    )
    return made[cls.__name__]


def _declared(new: NewField) -> tuple[str, Any, Any]:
    return new.name, new.annotation, dataclasses.field(default=new.default, metadata={"kafka_type": new.kafka_type})


def _annotation(annotation: Any, version: NewVersion, made: dict[str, Any]) -> Any:
    """The type of a field, with the classes of messages in it as of the new version."""
    if dataclasses.is_dataclass(annotation):
        return _derived(annotation, version, made)
    inner = get_args(annotation)
    if len(inner) == 2 and inner[1] is Ellipsis:
        return GenericAlias(tuple, (_annotation(inner[0], version, made), ...))
    assert not any(map(dataclasses.is_dataclass, inner)), "no changed message has a structure that may be null"
    return annotation


def _with_newer() -> dict[str, dict[int, dict[EntityType, str]]]:
    names: dict[str, dict[int, Any]] = {
        name: dict(versions) for name, versions in kio.schema.index.schema_name_map.items()
    }
    for api, version in NEWER.items():
        newest = max(names[api])
        assert newest == version.number - 1, f"kio has version {newest} of {api}: delete it here"
        names[api][version.number] = {kind: _registered(api, version, names[api][newest][kind]) for kind in KINDS}
    return names


def _registered(api: str, version: NewVersion, path: str) -> str:
    """Put a message's class into a module, where kio's readers look up names; return its path."""
    module_name, class_name = path.split(":")
    made: dict[str, Any] = {}
    _derived(getattr(__import__(module_name, fromlist=[class_name]), class_name), version, made)
    module = ModuleType(f"{__name__}.{api}.{module_name.rpartition('.')[2]}")
    for name, cls in made.items():
        cls.__module__ = module.__name__
        setattr(module, name, cls)
    sys.modules[module.__name__] = module
    return f"{module.__name__}:{class_name}"


schema_name_map: Final = _with_newer()
