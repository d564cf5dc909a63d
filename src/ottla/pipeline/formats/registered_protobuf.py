"""Decodes Protobuf messages by the descriptors that a schema registry has, to values as JSON has them.

A number stays a number, however large; a field without presence has its default, so that searches find it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    json_format,
    message_factory,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

_WELL_KNOWN: Final = {
    module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb
    for module in (
        any_pb2,
        api_pb2,
        descriptor_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        source_context_pb2,
        struct_pb2,
        timestamp_pb2,
        type_pb2,
        wrappers_pb2,
    )
}
_OF_JSON: Final = "google.protobuf."
"""Messages with a form of their own in JSON: times, wrappers."""
_OWN_FILE: Final = "schema.proto"
_INDEXES_MAX: Final = 32


class ProtobufSchema:
    """The messages of one schema. Raises ValueError for descriptors that do not fit together."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        """Take the files of `SchemaRegistry.serialized_files`."""
        self._pool = descriptor_pool.DescriptorPool()
        self._added: set[str] = set()
        for name, serialized in files.items():
            self._add(name or _OWN_FILE, serialized)
        self._file = self._pool.FindFileByName(_OWN_FILE)
        self._classes: dict[tuple[int, ...], Any] = {}

    def _add(self, name: str, serialized: bytes) -> None:
        if name in self._added:
            return
        self._added.add(name)
        try:
            file = descriptor_pb2.FileDescriptorProto.FromString(serialized)
            file.name = name
            for imported in file.dependency:
                if imported in _WELL_KNOWN:
                    self._add(imported, _WELL_KNOWN[imported])
            self._pool.Add(file)
            self._pool.FindFileByName(name)
        except (DecodeError, TypeError, KeyError) as error:
            raise ValueError(f"the descriptor of {name} cannot be used: {error}") from None

    def decode(self, body: bytes) -> Any:
        """Decode a message after its schema's id: the place of its type in the schema, and the fields."""
        indexes, at = read_indexes(body)
        message = self.class_of(indexes)()
        try:
            message.ParseFromString(body[at:])
        except DecodeError as error:
            raise ValueError(f"no message of its type: {error}") from None
        return _plain(message)

    def descriptor_of(self, name: str) -> Descriptor:
        """Return the descriptor of a message by its full name. Raises ValueError if there is none."""
        try:
            descriptor: Descriptor = self._pool.FindMessageTypeByName(name)
        except KeyError:
            raise ValueError(f"the schema has no message {name}") from None
        return descriptor

    def class_of(self, indexes: tuple[int, ...]) -> Any:
        """Return the class of the message at a place of the schema. Raises ValueError if there is none."""
        if indexes not in self._classes:
            types: list[Descriptor] = list(self._file.message_types_by_name.values())
            descriptor: Descriptor | None = None
            for index in indexes:
                if index >= len(types):
                    raise ValueError(f"the schema has no message at {list(indexes)}")
                descriptor = types[index]
                types = list(descriptor.nested_types)
            self._classes[indexes] = message_factory.GetMessageClass(descriptor)
        return self._classes[indexes]


def read_indexes(body: bytes) -> tuple[tuple[int, ...], int]:
    """Read the path to the type of a message: a count and numbers, zigzag; a count of 0 is the first type.

    Returns it, and where the message begins. Raises ValueError.
    """
    count, at = _varint(body, 0)
    if not 0 <= count <= _INDEXES_MAX:
        raise ValueError(f"a type {count} messages deep")
    indexes = []
    for _ in range(count):
        index, at = _varint(body, at)
        if index < 0:
            raise ValueError(f"a message at {index}")
        indexes.append(index)
    return tuple(indexes) or (0,), at


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(body) and shift < 35:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    raise ValueError("a number without an end")


def _plain(message: Message) -> Any:
    if message.DESCRIPTOR.full_name.startswith(_OF_JSON):
        return json_format.MessageToDict(message)
    fields: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if _is_map(field):
            of_map = field.message_type.fields_by_name["value"]
            fields[field.name] = {_key(key): _one(of_map, value[key]) for key in value}
        elif field.is_repeated:
            fields[field.name] = [_one(field, item) for item in value]
        elif not field.has_presence or message.HasField(field.name):
            fields[field.name] = _one(field, value)
    return fields


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _one(field: FieldDescriptor, value: Any) -> Any:
    kind: EnumDescriptor | None = field.enum_type
    if field.message_type is not None:
        return _plain(value)
    if kind is not None:
        named = kind.values_by_number.get(value)
        return value if named is None else named.name
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
