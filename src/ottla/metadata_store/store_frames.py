"""Encodes what a metadata store and its clients send each other over a local socket.

A frame is the length of its body in four bytes, and the body, a JSON array. A request is `[id, name, ...arguments]`;
its answer `[id, "ok", result]` or `[id, "error", name of the exception, path or message]`. What the store sends unasked
has the id 0: `[0, "changes", watch, is complete, changes]` and `[0, "lost"]`. The bytes of values are JSON strings in
Latin-1.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Sequence
from typing import Any

from ottla.core.errors import StorageError
from ottla.metadata_store.store import (
    Check,
    Create,
    Delete,
    NoChildrenAllowed,
    Node,
    NodeChange,
    NodeExists,
    NodeHasChildren,
    NoSuchNode,
    Op,
    OutcomeUnknown,
    Put,
    SessionLost,
    StoreError,
    VersionConflict,
)

VERSION = 1
"""Of the protocol: both sides come from one installation, so another version means a mistake."""

PUSHED = 0
PING_S = 2.0
SESSION_TIMEOUT_S = 6.0
_BODY_BYTES_MAX = 1 << 30
_LENGTH = struct.Struct(">I")
_ERRORS: dict[str, type[StoreError]] = {
    cls.__name__: cls
    for cls in (
        NoChildrenAllowed,
        NodeExists,
        NodeHasChildren,
        NoSuchNode,
        OutcomeUnknown,
        SessionLost,
        VersionConflict,
    )
}


def frame(content: Sequence[Any]) -> bytes:
    """Encode a frame."""
    body = json.dumps(content, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader) -> list[Any]:
    """Read a frame. Raises EOFError (IncompleteReadError) or OSError if the connection has ended."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > _BODY_BYTES_MAX:
        raise ConnectionError(f"a frame of {length} bytes")
    found: list[Any] = json.loads(await reader.readexactly(length))
    return found


# ---- Values


def _text(value: bytes) -> str:
    return value.decode("latin-1")


def encode_node(node: Node | None) -> list[Any] | None:
    """Encode a node, or that there is none."""
    return None if node is None else [_text(node.value), node.version, node.created, node.ephemeral]


def decode_node(encoded: list[Any] | None) -> Node | None:
    """Decode a node, or that there is none."""
    if encoded is None:
        return None
    value, version, created, ephemeral = encoded
    return Node(value.encode("latin-1"), version, created, ephemeral)


def encode_nodes(nodes: dict[str, Node]) -> list[Any]:
    """Encode nodes with their paths."""
    return [[path, encode_node(node)] for path, node in nodes.items()]


def decode_nodes(encoded: list[Any]) -> dict[str, Node]:
    """Decode nodes with their paths."""
    return {path: node for path, text in encoded if (node := decode_node(text)) is not None}


def encode_changes(changes: Sequence[NodeChange]) -> list[Any]:
    """Encode changes."""
    return [[number, path, encode_node(node)] for number, path, node in changes]


def decode_changes(encoded: list[Any]) -> list[NodeChange]:
    """Decode changes."""
    return [NodeChange(number, path, decode_node(node)) for number, path, node in encoded]


def encode_op(op: Op) -> list[Any]:
    """Encode an operation."""
    match op:
        case Create(path, value, ephemeral, sequential):
            return ["create", path, _text(value), ephemeral, sequential]
        case Put(path, value, expected):
            return ["put", path, _text(value), expected]
        case Delete(path, expected):
            return ["delete", path, expected]
        case Check(path, expected):
            return ["check", path, expected]


def decode_op(encoded: list[Any]) -> Op:
    """Decode an operation. Raises ValueError."""
    match encoded:
        case ["create", path, value, ephemeral, sequential]:
            return Create(path, value.encode("latin-1"), ephemeral, sequential)
        case ["put", path, value, expected]:
            return Put(path, value.encode("latin-1"), expected)
        case ["delete", path, expected]:
            return Delete(path, expected)
        case ["check", path, expected]:
            return Check(path, expected)
        case _:
            raise ValueError(f"unknown operation {encoded}")


def encode_error(error: Exception) -> list[str]:
    """Encode what prevented a request."""
    if isinstance(error, StoreError):
        return [type(error).__name__, error.path]
    if isinstance(error, StorageError):
        return ["StorageError", error.message]
    return ["StorageError", f"the metadata store failed: {error!r}"]


def decode_error(name: str, text: str) -> Exception:
    """Decode what prevented a request."""
    known = _ERRORS.get(name)
    return StorageError(text) if known is None else known(text)
