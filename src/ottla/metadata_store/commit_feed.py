"""Defines the commit feed: each commit of a ZooKeeper store creates one sequential node that describes it.

A reader reads the nodes in the order of their numbers, and so knows every commit whole and in order, with its values.
Values that are large, or no text, are left out: the reader reads those nodes. By a commit's unique id its writer finds
out, after a lost connection, whether it was made.

An entry cannot contain the name of a sequential node, which is known only afterwards: the reader reads its parent. Nor
does it contain the version that a write leaves, but how many writes there were.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from ottla.metadata_store.store import Check, Create, Delete, Op, Put, parent_of, sequential_path

FEED = "/ottla_changes"
ENTRY_PREFIX = f"{FEED}/c_"
VALUE_MAX = 64 * 1024
"""Bytes of a value that an entry contains: the assignment of about 4,000 partitions."""

ENTRY_MAX = 256 * 1024
"""Bytes of values in one entry, far below the limit of ZooKeeper's requests (1 MiB), which has each value twice."""

_VERSION = 1


class MalformedEntry(Exception):
    """Reports an entry that no version of Ottla has written."""


class EffectKind(Enum):
    """Lists the effects of a commit on one node."""

    CREATED = "c"
    CREATED_EPHEMERAL = "e"
    WRITTEN = "w"
    DELETED = "d"
    UNKNOWN = "r"  # read the node
    CHILD_CREATED = "s"  # a sequential node was created: read the children of this one


class NodeEffect(NamedTuple):
    """Describes the effect of a commit on one node."""

    kind: EffectKind
    path: str
    version: int = 0  # of a created node; of a written one: how many versions it gained
    value: bytes = b""


class FeedEntry(NamedTuple):
    """Holds one commit."""

    commit_id: str
    effects: tuple[NodeEffect, ...]


def entry_path(number: int) -> str:
    """Return the path of an entry."""
    return sequential_path(ENTRY_PREFIX, number)


def entry_number(path: str) -> int:
    """Return the number in an entry's path or name.

    >>> entry_number("/ottla_changes/c_0000000012")
    12
    """
    return int(path.rpartition("_")[2])


def next_number(child_changes: int, children: int) -> int:
    """Return the number of the next entry: ZooKeeper counts the children ever created, deletions do not matter.

    >>> next_number(child_changes=7, children=3)  # 5 created, 2 of them deleted
    5
    """
    return (child_changes + children) // 2


def effects_of(ops: Sequence[Op]) -> tuple[NodeEffect, ...]:
    """Return the effects of a commit, one for each node that it changes."""
    effects: dict[str, NodeEffect] = {}
    for op in ops:
        match op:
            case Create(path, _, _, sequential) if sequential:
                effects[parent_of(path)] = NodeEffect(EffectKind.CHILD_CREATED, parent_of(path))
            case Create(path, value, ephemeral, _):
                kind = EffectKind.CREATED_EPHEMERAL if ephemeral else EffectKind.CREATED
                # of a node that this commit deletes first, too: it is another node then
                effects[path] = NodeEffect(kind, path, 0, value)
            case Put(path, value, _):
                before = effects.get(path)
                if before is None:
                    effects[path] = NodeEffect(EffectKind.WRITTEN, path, 1, value)
                else:
                    effects[path] = before._replace(version=before.version + 1, value=value)
            case Delete(path, _):
                effects[path] = NodeEffect(EffectKind.DELETED, path)
            case Check():
                pass
    return tuple(effects.values())


def encode_entry(commit_id: str, effects: Sequence[NodeEffect]) -> bytes:
    """Encode an entry."""
    rows: list[list[object]] = []
    left = ENTRY_MAX
    for kind, path, version, value in effects:
        match kind:
            case EffectKind.CREATED | EffectKind.CREATED_EPHEMERAL | EffectKind.WRITTEN:
                text = _text(value) if len(value) <= min(VALUE_MAX, left) else None
                if text is None:
                    rows.append([EffectKind.UNKNOWN.value, path])
                else:
                    left -= len(value)
                    rows.append([kind.value, path, version, text])
            case _:
                rows.append([kind.value, path])
    entry = {"version": _VERSION, "id": commit_id, "changes": rows}
    return json.dumps(entry, separators=(",", ":"), ensure_ascii=False).encode()


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def decode_entry(value: bytes) -> FeedEntry:
    """Decode an entry. Raises MalformedEntry."""
    try:
        parsed = json.loads(value)
        effects = []
        for kind, path, *rest in parsed["changes"]:
            version, text = rest or (0, "")
            effects.append(NodeEffect(EffectKind(kind), str(path), int(version), str(text).encode()))
        return FeedEntry(str(parsed["id"]), tuple(effects))
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedEntry(repr(error)) from error
